"""Resuming, replacing, refusing: what happens when a conversion is not the first one, or not the last."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from nnunet_gdla.errors import UserError, WriteError
from nnunet_gdla.recipes import busi as converter
from nnunet_gdla.recipes import images
from nnunet_gdla.recipes.layout import Case, Record, Target
from tests.recipes.trees import Converted, blob, busi, ham10000, picture, png

PROGRAM = """
import argparse, sys
from nnunet_gdla.commands import arguments_recipes, convert
if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    arguments_recipes.convert(parser)
    sys.exit(convert.run(parser.parse_args(sys.argv[1:])))
"""


def bytes_of(dataset: Path) -> dict[str, bytes]:
    wanted = ("dataset.json", "splits_final.json", "skipped_files.txt")
    files = [path for path in dataset.rglob("*") if path.suffix == ".png" or path.name in wanted]
    return {path.relative_to(dataset).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return busi(tmp_path, benign=12)


def test_several_processes_write_the_same_files(source: Path, run_convert: Converted, folders: Path) -> None:
    one = bytes_of(run_convert("busi", source, "-d", 503))
    shutil.rmtree(folders / "raw")
    (folders / "raw").mkdir()
    assert bytes_of(run_convert("busi", source, "-d", 503, "-np", 3)) == one


def test_a_stopped_conversion_leaves_no_dataset_and_goes_on(
    source: Path,
    run_convert: Converted,
    folders: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = bytes_of(run_convert("busi", source, "-d", 503))
    shutil.rmtree(folders / "raw" / "Dataset503_BUSI")
    original, written = converter.write_grey_case, []

    def write_grey_case(case: Case, target: Target) -> Record:
        if len(written) == 5:
            raise KeyboardInterrupt
        written.append(case.name)
        return original(case, target)

    with monkeypatch.context() as patch:
        patch.setattr(converter, "write_grey_case", write_grey_case)
        with pytest.raises(KeyboardInterrupt, match="the same command goes on"):
            run_convert("busi", source, "-d", 503)
    assert not list((folders / "raw").glob("Dataset*"))
    unfinished = folders / "raw" / ".Dataset503_BUSI.unfinished"
    with (unfinished / "gdla_conversion.jsonl").open("a") as journal:
        journal.write('{"case": "busi_benign_00')
    before = {path: path.stat().st_mtime_ns for path in unfinished.glob("*/*.png")}
    assert len(before) == 10
    (unfinished / "imagesTr" / "stray_0000.png").write_bytes(b"of an earlier split")
    capsys.readouterr()
    dataset = run_convert("busi", source, "-d", 503)
    assert "5 cases of an earlier run kept" in capsys.readouterr().out
    assert bytes_of(dataset) == whole
    for path, changed in before.items():
        assert (dataset / path.relative_to(unfinished)).stat().st_mtime_ns == changed
    assert not unfinished.exists()


def test_a_killed_conversion_goes_on(tmp_path: Path, folders: Path, run_convert: Converted) -> None:
    source = ham10000(tmp_path / "HAM", {f"lesion {first}": range(first, first + 6) for first in range(0, 60, 6)})
    big = png(tmp_path / "big.png", picture(1, 300, 400), mode="RGB").read_bytes()
    mask = png(tmp_path / "mask.png", blob(1, 300, 400)).read_bytes()
    for path in source.glob("HAM10000_images_part_*/*.jpg"):
        path.write_bytes(big)
        (source / "HAM10000_segmentations_lesion_tschandl" / f"{path.stem}_segmentation.png").write_bytes(mask)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), "ham10000", str(source), "-d", "504", "-np", "2"]
    journal = folders / "raw" / ".Dataset504_HAM10000.unfinished" / "gdla_conversion.jsonl"
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 60
    while not (journal.is_file() and journal.read_text().count("\n") >= 5):
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    assert not list((folders / "raw").glob("Dataset*"))
    dataset = run_convert("ham10000", source, "-d", 504)
    assert len(list(dataset.glob("imagesT*/*.png"))) == len(list(dataset.glob("labelsT*/*.png"))) == 60
    assert not list(dataset.rglob(".unfinished*"))


def test_a_finished_conversion_is_not_done_again(
    source: Path, run_convert: Converted, capsys: pytest.CaptureFixture[str]
) -> None:
    png(source / "benign" / "benign (3)_mask.png", blob(1, 5, 5))
    dataset = run_convert("busi", source, "-d", 503)
    first = bytes_of(dataset)
    times = {path: path.stat().st_mtime_ns for path in dataset.glob("*/*.png")}
    capsys.readouterr()
    run_convert("busi", source, "-d", 503)
    assert bytes_of(dataset) == first
    assert {path: path.stat().st_mtime_ns for path in dataset.glob("*/*.png")} == times
    out = capsys.readouterr().out
    assert "16 cases of an earlier run kept" in out
    assert "mask benign (3)_mask.png is 5x5" in out
    assert "(unchanged)" in out


@pytest.mark.parametrize("change", ["source", "options", "split", "lost file", "more files"])
def test_a_dataset_made_otherwise_is_replaced_only_on_request(
    source: Path, tmp_path: Path, run_convert: Converted, change: str
) -> None:
    dataset = run_convert("busi", source, "-d", 503)
    before = bytes_of(dataset)
    more: list[object] = []
    if change == "source":
        png(source / "benign" / "benign (1).png", picture(99))
    elif change == "options":
        more = ["--size", 32]
    elif change == "split":
        (tmp_path / "own.csv").write_text("case,part\nbenign (1),train\nbenign (2),test\n")
        more = ["--split", tmp_path / "own.csv"]
    elif change == "lost file":
        next(dataset.glob("labelsTr/*.png")).unlink()
        before = bytes_of(dataset)
    else:
        png(source / "benign" / "benign (99).png", picture(99))
        png(source / "benign" / "benign (99)_mask.png", blob(99))
    with pytest.raises(UserError, match="add --overwrite to replace it"):
        run_convert("busi", source, "-d", 503, *more)
    assert bytes_of(dataset) == before
    run_convert("busi", source, "-d", 503, *more, "--overwrite")
    assert bytes_of(dataset) != before
    assert [path.name for path in dataset.parent.iterdir()] == [dataset.name]


def test_folders_of_others_are_left_alone(source: Path, run_convert: Converted, folders: Path) -> None:
    (folders / "raw" / "Dataset503_BUSI").mkdir()
    for more in ([], ["--overwrite"]):
        with pytest.raises(UserError, match="was not made by this command"):
            run_convert("busi", source, "-d", 503, *more)
    (folders / "preprocessed" / "Dataset504_Liver").mkdir()
    with pytest.raises(UserError, match=r"number 504 is taken by .*Dataset504_Liver; choose another"):
        run_convert("busi", source, "-d", 504)


def test_splits_are_put_where_nnunet_reads_them(
    source: Path, run_convert: Converted, folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = folders / "preprocessed" / "Dataset503_BUSI" / "splits_final.json"
    theirs.parent.mkdir()
    theirs.write_text("[]")
    dataset = run_convert("busi", source, "-d", 503)
    assert theirs.read_bytes() == (dataset / "splits_final.json").read_bytes()
    assert theirs.with_name("splits_final.before_convert.json").read_text() == "[]"
    assert "another one was there, now splits_final.before_convert.json" in capsys.readouterr().out


def test_only_the_users_own_splits_are_kept_and_all_of_them(
    source: Path, run_convert: Converted, folders: Path, tmp_path: Path
) -> None:
    theirs = folders / "preprocessed" / "Dataset503_BUSI" / "splits_final.json"
    theirs.parent.mkdir()
    theirs.write_text('["first"]')
    splits = []
    for number in range(1, 4):
        parts = {"train": [f"busi_benign_{number:03d}"], "test": ["busi_benign_005"]}
        splits.append(tmp_path / f"split{number}.json")
        splits[-1].write_text(json.dumps(parts))
    for split in splits[:2]:
        run_convert("busi", source, "-d", 503, "--split", split, "--overwrite")
    assert [path.name for path in theirs.parent.iterdir() if "before" in path.name] == [
        "splits_final.before_convert.json"
    ]
    theirs.write_text('["second"]')
    dataset = run_convert("busi", source, "-d", 503, "--split", splits[2], "--overwrite")
    assert theirs.read_bytes() == (dataset / "splits_final.json").read_bytes()
    assert theirs.with_name("splits_final.before_convert.json").read_text() == '["first"]'
    assert theirs.with_name("splits_final.before_convert_2.json").read_text() == '["second"]'


def test_what_was_made_of_the_earlier_dataset_is_named(
    source: Path, run_convert: Converted, folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_convert("busi", source, "-d", 503)
    folder = folders / "preprocessed" / "Dataset503_BUSI"
    (folder / "nnUNetPlans_2d").mkdir()
    for name in ("dataset_fingerprint.json", "nnUNetPlans_2d/busi_benign_001.pkl"):
        (folder / name).touch()
    run_convert("busi", source, "-d", 503)
    assert "before" not in capsys.readouterr().out
    run_convert("busi", source, "-d", 503, "--size", 8, "--overwrite")
    shown = capsys.readouterr().out
    assert "NOTE: dataset_fingerprint.json, nnUNetPlans_2d in nnUNet_preprocessed are of the dataset before" in shown
    assert "nnunet-gdla plan -d 503 --preprocess" in shown


def test_a_place_that_cannot_be_written_is_named(source: Path, run_convert: Converted, folders: Path) -> None:
    file = folders / "file"
    file.touch()
    with pytest.raises(UserError, match=r"file.* cannot be written: Not a directory"):
        run_convert("busi", source, "-d", 503, "--out", file / "raw")


def test_nnunets_folders_may_be_unset(
    source: Path,
    run_convert: Converted,
    folders: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("nnUNet_preprocessed")
    monkeypatch.delenv("nnUNet_raw")
    with pytest.raises(UserError, match="nnUNet_raw is not set: export nnUNet_raw=FOLDER, or name a folder with --out"):
        run_convert("busi", source, "-d", 503)
    run_convert("busi", source, "-d", 503, "--out", folders / "raw")
    out = capsys.readouterr().out
    assert 'mkdir -p "$nnUNet_preprocessed/Dataset503_BUSI" && cp "' in out


def test_a_split_that_tears_a_lesion_apart_needs_a_word(
    tmp_path: Path, run_convert: Converted, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ham10000(tmp_path / "HAM", {"HAM_1": [1, 2], "HAM_2": [3]})
    split = tmp_path / "own.json"
    split.write_text(json.dumps({"train": ["ISIC_0000001"], "test": ["ISIC_0000002", "HAM_2"]}))
    with pytest.raises(UserError, match="HAM_1 is in train and test; mend the split, or add --allow-leakage"):
        run_convert("ham10000", source, "-d", 504, "--split", split)
    run_convert("ham10000", source, "-d", 504, "--split", split, "--allow-leakage")
    assert "WARNING: 1 group of a patient, a lesion or copies on both sides of the split: " in capsys.readouterr().out


def test_nothing_that_can_be_trained_on_is_an_error(source: Path, run_convert: Converted, folders: Path) -> None:
    for path in source.glob("*/*_mask.png"):
        png(path, blob(1, 3, 3))
    with pytest.raises(UserError, match=r"no training case could be converted \(busi_benign_001: mask"):
        run_convert("busi", source, "-d", 503)
    assert not list((folders / "raw").glob("Dataset*"))


def test_options_of_other_datasets_are_refused(tmp_path: Path, run_convert: Converted) -> None:
    with pytest.raises(UserError, match="--size is for photographs"):
        run_convert("acdc", tmp_path, "-d", 502, "--size", 224)
    with pytest.raises(UserError, match="--label-order is for synapse only"):
        run_convert("busi", tmp_path, "-d", 503, "--label-order", "btcv8")


@pytest.mark.parametrize("finished", [0, 5])
def test_a_full_disk_is_one_sentence_and_the_same_command_goes_on(
    finished: int,
    source: Path,
    run_convert: Converted,
    folders: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    original, written = images.write_png, []

    def write_png(path: Path, image: Image.Image) -> None:
        if len(written) == 2 * finished + 1:  # in the middle of a case
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(path)
        original(path, image)

    with monkeypatch.context() as full:
        full.setattr(images, "write_png", write_png)
        with pytest.raises(WriteError) as caught:
            run_convert("busi", source, "-d", 503)
    unfinished = folders / "raw" / ".Dataset503_BUSI.unfinished"
    sentence = str(caught.value)
    assert sentence.startswith(f"{folders / 'raw' / 'Dataset503_BUSI'} cannot be written: the disk is full")
    assert "the same command again" in sentence
    assert (str(unfinished) in sentence) == unfinished.exists() == (finished > 0)
    capsys.readouterr()
    dataset = run_convert("busi", source, "-d", 503)
    assert (f"{finished} cases of an earlier run kept" in capsys.readouterr().out) == (finished > 0)
    assert not unfinished.exists()
    assert len(list((dataset / "imagesTr").iterdir())) > finished


def test_splits_of_somebody_else_stay_where_the_disk_is_full(
    source: Path, run_convert: Converted, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = folders / "preprocessed" / "Dataset503_BUSI" / "splits_final.json"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("[]")

    def write_json(path: Path, tree: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("nnunet_gdla.recipes.folders.write_json", write_json)
    with pytest.raises(WriteError, match=r"splits_final\.json cannot be written: the disk is full"):
        run_convert("busi", source, "-d", 503)
    assert [path.name for path in theirs.parent.iterdir()] == ["splits_final.json"]
    assert theirs.read_text() == "[]"
