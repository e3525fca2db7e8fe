import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nnunet_gdla import cli
from nnunet_gdla.commands import demo, demo_figure, demo_steps
from nnunet_gdla.commands.phantom import CLASSES, DATASET_NAME, make_case, write_dataset
from nnunet_gdla.errors import UserError

# The command as it is, with sizes for seconds instead of minutes.
SMALL_DEMO = """
import signal, sys
# A shell starts what it puts into the background, perhaps the whole test run, with Ctrl-C ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
from nnunet_gdla import cli
from nnunet_gdla.commands import demo_steps

demo_steps.ITERATIONS, demo_steps.VALIDATION_ITERATIONS, demo_steps.PATCH, demo_steps.BATCH = 3, 1, 64, 2
sys.exit(cli.main(["demo", *sys.argv[1:]]))
"""


def arguments(folder: Path, **changes: Any) -> argparse.Namespace:  # noqa: ANN401
    values = {"out": str(folder), "epochs": 1, "seed": 0, "device": "cpu", "overwrite": False}
    return argparse.Namespace(**values | changes)


@pytest.fixture
def only_prepare(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replace the five steps by a note of the folder they would have run in."""
    ran: list[Path] = []
    monkeypatch.setattr(demo, "_demonstrate", lambda folder, args: ran.append(folder))
    return ran


def test_a_new_and_an_empty_folder_are_taken(tmp_path: Path, only_prepare: list[Path]) -> None:
    assert demo.run(arguments(tmp_path / "new" / "deep")) == 0
    (tmp_path / "empty").mkdir()
    assert demo.run(arguments(tmp_path / "empty")) == 0
    assert only_prepare == [tmp_path / "new" / "deep", tmp_path / "empty"]


def test_someone_elses_folder_is_refused_even_with_overwrite(tmp_path: Path, only_prepare: list[Path]) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    (tmp_path / "nnUNet_raw").mkdir()
    for overwrite in (False, True):
        with pytest.raises(UserError, match=r"is not empty and holds no earlier demo: .*--out"):
            demo.run(arguments(tmp_path, overwrite=overwrite))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nnUNet_raw", "thesis.txt"]
    assert not only_prepare


def test_an_earlier_demo_is_replaced_only_when_told_so(tmp_path: Path, only_prepare: list[Path]) -> None:
    demo.run(arguments(tmp_path))
    (tmp_path / "nnUNet_results" / "old").mkdir(parents=True)
    (tmp_path / "demo.png").write_bytes(b"old")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"already holds a demo \(unfinished\).*--out.*--overwrite"):
        demo.run(arguments(tmp_path))
    assert (tmp_path / "demo.png").exists()
    assert demo.run(arguments(tmp_path, overwrite=True)) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made_by_nnunet_gdla_demo.txt", "notes.txt"]
    assert len(only_prepare) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"epochs": 0}, "--epochs 0"), ({"seed": -1}, "--seed -1"), ({"seed": 2**32}, "--seed 4294967296")],
)
def test_senseless_numbers_are_refused_before_a_folder_is_made(
    tmp_path: Path, changes: dict[str, int], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        demo.run(arguments(tmp_path / "new", **changes))
    assert not (tmp_path / "new").exists()


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match="--out"):
            demo.run(arguments(path))


def test_the_command_line_gives_what_run_reads(tmp_path: Path, only_prepare: list[Path]) -> None:
    assert cli.main(["demo", "--out", str(tmp_path / "a"), "--epochs", "2", "--seed", "5"]) == 0
    assert cli.main(["demo", "--out", str(tmp_path / "a")]) == 1
    assert cli.main(["demo", "--out", str(tmp_path / "a"), "--overwrite"]) == 0
    assert only_prepare == [tmp_path / "a"] * 2


def test_the_picture_shows_truth_and_prediction_in_the_same_colours(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path, 0, num_training=0, num_test=2)
    images, labels = dataset / "imagesTs", dataset / "labelsTs"
    dice = {f"phantom_ts{index:02d}": [0.5, 0.6, 0.7, 0.8] for index in range(2)}
    demo_figure.draw(tmp_path / "right.png", images, labels, labels, dice)
    masks = tmp_path / "masks"
    masks.mkdir()
    for path in labels.iterdir():
        Image.fromarray(np.zeros_like(np.asarray(Image.open(path)))).save(masks / path.name)
    demo_figure.draw(tmp_path / "wrong.png", images, labels, masks, dice)
    right, wrong = (np.asarray(Image.open(tmp_path / name).convert("RGB")) for name in ("right.png", "wrong.png"))
    assert right.shape == wrong.shape
    columns = right.shape[1]
    changed = np.flatnonzero((right != wrong).any(axis=(0, 2)))
    assert changed.min() > 0.6 * columns
    assert changed.size > 0.1 * columns
    assert not list(tmp_path.glob("*.part"))


def test_colours_mark_their_class(tmp_path: Path) -> None:
    case = make_case(np.random.default_rng(0))
    picture = demo_figure._coloured(case.image, case.label)
    plain = demo_figure._coloured(case.image, np.zeros_like(case.label))
    assert np.array_equal(picture[case.label == 0], plain[case.label == 0])
    means = np.stack([picture[case.label == value].mean(axis=0) for value in range(len(CLASSES) + 1)])
    apart = np.abs(means[:, None] - means[None]).max(axis=2)
    assert apart[~np.eye(len(means), dtype=bool)].min() > 0.1


def test_no_augmentation_depends_on_a_stopwatch() -> None:
    from batchgeneratorsv2.transforms.noise.gaussian_blur import GaussianBlurTransform
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    def blurs(trainer: Any) -> list[bool]:  # noqa: ANN401
        pipeline = trainer.get_training_transforms((96, 96), (-0.1, 0.1), [[1.0, 1.0]], (0, 1), False)
        steps = [getattr(step, "transform", step) for step in pipeline.transforms]
        return [step.benchmark for step in steps if isinstance(step, GaussianBlurTransform)]

    trainer = SimpleNamespace(get_training_transforms=nnUNetTrainer.get_training_transforms)
    assert blurs(trainer) == [True], "nnU-Net no longer times its blur: drop the work-around"
    demo_steps._make_augmentation_repeatable(trainer)
    assert blurs(trainer) == [False]


def small_demo(folder: Path, *options: str, hash_seed: str = "0") -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", SMALL_DEMO, "--out", str(folder), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


@pytest.mark.slow
def test_two_runs_with_one_seed_are_equal_bit_for_bit(tmp_path: Path) -> None:
    outputs = []
    for name, hash_seed in (("a", "1"), ("b", "2")):
        process = small_demo(tmp_path / name, "--epochs", "2", "--seed", "7", hash_seed=hash_seed)
        out, err = process.communicate()
        assert process.returncode == 0, err
        outputs.append(out)
    out = outputs[0]
    assert all(f"{number}/5 " in out for number in range(1, 6))
    assert "epoch 2/2  loss" in out
    assert out.count("nnUNetv2_") == 4
    assert "nnUNet_raw" not in os.environ or str(tmp_path) not in os.environ["nnUNet_raw"]

    model = Path("nnUNet_results", DATASET_NAME, "nnUNetTrainerGDLA_B0__nnUNetGDLADemoPlans__2d", "fold_0")
    first, second = (
        torch.load(tmp_path / name / model / "checkpoint_final.pth", weights_only=False) for name in ("a", "b")
    )
    assert first["current_epoch"] == 2
    assert first["network_weights"].keys() == second["network_weights"].keys()
    for name, weight in first["network_weights"].items():
        assert torch.equal(weight, second["network_weights"][name]), name
    for name in ("dice.json", *(f"predictions/phantom_ts{index:02d}.png" for index in range(4))):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name

    result = json.loads((tmp_path / "a" / "dice.json").read_text())
    assert set(result["dice_per_class"]) == set(CLASSES)
    assert len(result["dice_per_case"]) == 4
    with Image.open(tmp_path / "a" / "demo.png") as picture:
        assert min(picture.size) > 500


@pytest.mark.slow
def test_ctrl_c_during_training_ends_everything_with_one_sentence(tmp_path: Path) -> None:
    process = small_demo(tmp_path / "demo", "--epochs", "1000")
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.lstrip().startswith("epoch"):
                break
        # To the whole group, as a terminal sends it.
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 130
        sentence = "Stopped; nothing is left running. The same command with --overwrite starts anew; or remove"
        assert err.strip() == f"{sentence} {tmp_path / 'demo'}."
        assert not left_in_group(process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def left_in_group(group: int) -> bool:
    """Return whether a process of the group is still there after a moment of grace for the kernel to reap it."""
    for _ in range(20):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.1)
    return True
