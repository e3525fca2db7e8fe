import builtins
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from nnunet_gdla.errors import UserError
from nnunet_gdla.recipes.synapse_labels import LABELS, ORDERS, choose_order
from tests.recipes.trees import (
    OTHER_RELEASE_LABELS,
    PREPARED,
    RELEASE,
    TEST,
    TRAIN,
    Converted,
    hounsfield,
    nifti,
    organs,
    ours,
    prepared_image,
    synapse_prepared,
    synapse_release,
)

EIGHT = {label: label for label in range(1, 9)}


def array(path: Path) -> np.ndarray:
    return np.asarray(nib.load(path).dataobj)


def check_parts(dataset: Path) -> None:
    fold = json.loads((dataset / "splits_final.json").read_text())[0]
    assert set(fold["train"]) == {f"case{number}" for number in TRAIN}
    for part, numbers in (("Tr", TRAIN), ("Ts", TEST)):
        for kind, ending in (("images", "_0000.nii.gz"), ("labels", ".nii.gz")):
            names = {path.name for path in (dataset / f"{kind}{part}").iterdir()}
            assert names == {f"case{number}{ending}" for number in numbers}
    description = json.loads((dataset / "dataset.json").read_text())
    assert description["numTraining"] == 18
    assert description["labels"] == LABELS
    assert list(LABELS)[1:] == [
        "spleen",
        "right kidney",
        "left kidney",
        "gallbladder",
        "pancreas",
        "liver",
        "stomach",
        "aorta",
    ]


def test_the_release_is_mapped_to_eight_organs(
    tmp_path: Path, run_convert: Converted, capsys: pytest.CaptureFixture[str]
) -> None:
    source = synapse_release(tmp_path / "BTCV (abdomen)")
    dataset = run_convert("synapse", source, "-d", 501, "-np", 2)
    check_parts(dataset)
    label = dataset / "labelsTr" / "case0005.nii.gz"
    np.testing.assert_array_equal(array(label), ours(organs(RELEASE, OTHER_RELEASE_LABELS), RELEASE))
    image = dataset / "imagesTr" / "case0005_0000.nii.gz"
    np.testing.assert_array_equal(array(image), hounsfield(5))
    np.testing.assert_allclose(nib.load(label).affine, nib.load(image).affine)
    out = capsys.readouterr().out
    assert "numbering found: the release's 13 labels; written: 1 spleen, 2 right kidney" in out
    assert "split: published list, 18 training and 12 test cases" in out
    assert "label 6 liver: 9,000 voxels in 30 cases" in out
    assert "label 5 pancreas: 540 voxels in 30 cases" in out
    assert "spacing in mm: 0.8 x 0.8 x 3" in out
    assert "the release has no labels for its test images\n  Testing/img/img0061.nii.gz" in out
    assert json.loads((dataset / "dataset.json").read_text())["channel_names"] == {"0": "CT"}


@pytest.mark.parametrize(("numbering", "said"), [(PREPARED, "order of prepared"), (EIGHT, "in the release's order")])
def test_prepared_copies_in_either_numbering_come_out_the_same(
    tmp_path: Path,
    run_convert: Converted,
    capsys: pytest.CaptureFixture[str],
    numbering: Mapping[int, int],
    said: str,
) -> None:
    dataset = run_convert("synapse", synapse_prepared(tmp_path / "data", numbering), "-d", 501)
    check_parts(dataset)
    wanted = ours(organs(numbering), numbering)
    for part, number in (("Tr", TRAIN[0]), ("Ts", TEST[0])):
        np.testing.assert_array_equal(array(dataset / f"labels{part}" / f"case{number}.nii.gz"), wanted.T)
        image = array(dataset / f"images{part}" / f"case{number}_0000.nii.gz")
        np.testing.assert_array_equal(image, prepared_image(number).T)
    out = capsys.readouterr().out
    assert said in out
    assert "distances in mm are voxels" in out
    assert json.loads((dataset / "dataset.json").read_text())["channel_names"] == {"0": "noNorm"}


def test_a_release_in_the_other_numbering_is_not_mistaken(tmp_path: Path, run_convert: Converted) -> None:
    source = synapse_release(tmp_path, TRAIN, PREPARED, extra=None)
    dataset = run_convert("synapse", source, "-d", 501)
    label = array(dataset / "labelsTr" / "case0005.nii.gz")
    np.testing.assert_array_equal(label, ours(organs(PREPARED), PREPARED))


def test_slices_are_stacked_by_number_and_gaps_are_named(tmp_path: Path, run_convert: Converted) -> None:
    source = synapse_prepared(tmp_path)
    (source / "train_npz" / "case0006_slice004.npz").unlink()
    (source / "train_npz" / "case0007_slice004.npz").write_bytes(b"PK no archive")
    labels = organs(PREPARED)
    name = source / "train_npz" / f"case{TEST[0]}_slice000.npz"
    np.savez(name, image=prepared_image("0001")[0], label=labels[0])
    dataset = run_convert("synapse", source, "-d", 501)
    told = (dataset / "skipped_files.txt").read_text()
    assert "slices are missing: 4\n  case0006" in told
    assert "case0007_slice004.npz cannot be read" in told
    assert "its case is there as slices too\n  test_vol_h5/case0008.npy.h5" in told
    assert len(list((dataset / "imagesTr").iterdir())) == 16


def test_h5_files_without_h5py_get_one_sentence(
    tmp_path: Path, run_convert: Converted, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = synapse_prepared(tmp_path)
    original = builtins.__import__

    def without_h5py(name: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if name == "h5py":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_h5py)
    with pytest.raises(UserError, match="needs h5py: pip install h5py"):
        run_convert("synapse", source, "-d", 501)


LIVER_6 = {6: 300, 5: 18, 1: 60, 7: 80}
LIVER_5 = {5: 300, 6: 18, 7: 60, 8: 80}


@pytest.mark.parametrize(
    ("counts", "order"),
    [
        ([LIVER_6], "btcv8"),
        ([LIVER_5], "prepared8"),
        ([LIVER_6 | {11: 30}], "btcv13"),
        ([LIVER_6, {0: 900}, {1: 5}], "btcv8"),
    ],
)
def test_the_liver_tells_the_numbering(counts: list[dict[int, int]], order: str) -> None:
    assert choose_order({f"case{k}": own for k, own in enumerate(counts)}, "auto") == order
    assert choose_order({f"case{k}": own for k, own in enumerate(counts)}, order) == order


@pytest.mark.parametrize(
    ("counts", "wanted", "message"),
    [
        ([{1: 90, 2: 30}], "auto", "the sizes do not tell the numbering"),
        ([{5: 100, 6: 90, 1: 20}], "auto", "the sizes do not tell the numbering"),
        ([{5: 1, 6: 100, 1: 100}], "auto", "the sizes do not tell the numbering"),
        ([{0: 10}], "auto", "the sizes do not tell the numbering"),
        ([{}], "auto", "the sizes do not tell the numbering"),
        ([LIVER_6, LIVER_5], "auto", "label 5 in case1; label 6 in case0"),
        ([LIVER_5 | {11: 3}], "auto", "another numbering"),
        ([LIVER_6 | {14: 3}], "auto", "beyond BTCV's 13"),
        ([LIVER_6], "prepared8", "the liver is label 5, but 6 is far larger in case0"),
        ([LIVER_6 | {11: 3}], "btcv8", "has labels up to 8"),
    ],
)
def test_a_doubt_or_a_contradiction_is_refused(counts: list[dict[int, int]], wanted: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        choose_order({f"case{k}": own for k, own in enumerate(counts)}, wanted)


def test_a_numbering_that_the_user_knows_is_taken_where_sizes_tell_nothing() -> None:
    assert choose_order({"a": {5: 100, 6: 90}}, "prepared8") == "prepared8"


def test_tables_agree_with_the_published_orders() -> None:
    assert {theirs: own for theirs, own in ORDERS["btcv13"].items() if own} == {v: k for k, v in RELEASE.items()}
    assert {theirs: own for theirs, own in ORDERS["prepared8"].items() if own} == {v: k for k, v in PREPARED.items()}


def test_several_copies_or_none_are_refused(tmp_path: Path, run_convert: Converted) -> None:
    synapse_release(tmp_path / "a", TRAIN[:2])
    (tmp_path / "a" / "train_npz").mkdir()
    with pytest.raises(UserError, match="several copies of Synapse"):
        run_convert("synapse", tmp_path / "a", "-d", 501)
    nifti(tmp_path / "b" / "imagesTr" / "img0001.nii.gz", hounsfield(1))
    with pytest.raises(UserError, match=r"neither a pair of folders img and label(?s:.*)imagesTr/img0001\.nii\.gz"):
        run_convert("synapse", tmp_path / "b", "-d", 501)


def test_cases_of_the_list_that_are_not_there_are_named(
    tmp_path: Path, run_convert: Converted, capsys: pytest.CaptureFixture[str]
) -> None:
    run_convert("synapse", synapse_release(tmp_path, TRAIN[:3]), "-d", 501)
    out = capsys.readouterr().out
    assert "NOTE: 27 cases of the published list not there: case0009, " in out
    assert "fold 0: 3 training, 0 validation cases (nnU-Net needs some: the training cases stand in" in out
