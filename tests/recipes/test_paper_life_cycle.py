"""`_Paper` on real data, from a download or a raw dataset to scores: rates, losses, the chosen epoch as specified."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nnunetv2.experiment_planning.plan_and_preprocess_api import preprocess_dataset
from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor
from nnunetv2.run.run_training import get_trainer_from_args
from PIL import Image
from torch.nn import functional

from nnunet_gdla.cli import main
from nnunet_gdla.evaluation.results import MEAN, read_results
from tests.paths import nnunet_raw_folder
from tests.recipes.trees import Converted, png
from tests.reference.boundary_dou import boundary_dou_naive
from tests.trainers.nnunet_project import threads_for_pools

TRAINER = "nnUNetTrainerGDLA_B0_Paper_2epochs"
CPU = torch.device("cpu")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def workspace(folders: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """nnU-Net's folders; everything happens in this process."""
    (folders / "results").mkdir()
    variables = {"nnUNet_results": str(folders / "results"), "nnUNet_n_proc_DA": "1", "nnUNet_def_n_proc": "1"}
    for name, value in (variables | {"NNUNET_GDLA_ENCODER_WEIGHTS": "none"}).items():
        monkeypatch.setenv(name, value)
    with threads_for_pools():
        yield folders


def train(
    dataset_id: int, plans_name: str, *, lengths: tuple[int, int, int], steps: int
) -> tuple[Any, list[float], list[float]]:
    """A whole training; returns it, every step's rate, and the losses: the first by the formula, then every step's.

    Its epochs, steps an epoch and steps of warm-up have to be `lengths`; then the epochs are shortened to `steps`.
    """
    os.environ["nnUNet_n_proc_DA"] = "0"  # set by the fixture, which restores it
    trainer = get_trainer_from_args(str(dataset_id), "2d", 0, TRAINER, plans_name, device=CPU)
    assert (trainer.num_epochs, trainer.num_iterations_per_epoch, trainer.warmup_steps) == lengths
    trainer.num_iterations_per_epoch = steps
    rates: list[float] = []
    losses: list[float] = []
    step = trainer.train_step

    def watched(batch: dict[str, Any]) -> dict[str, Any]:
        if not losses:
            trainer.loss.register_forward_hook(
                lambda _m, inputs, _o: losses.append(naive_loss(*inputs)) if len(losses) < 1 else None
            )
        done: dict[str, Any] = step(batch)
        rates.append(trainer.optimizer.param_groups[0]["lr"])
        losses.append(float(done["loss"]))
        return done

    trainer.train_step = watched
    trainer.run_training()
    return trainer, rates, losses


def naive_loss(outputs: list[torch.Tensor], targets: list[torch.Tensor]) -> float:
    """The specification's: bilinear x32, x16, x8, align_corners False, four losses added."""
    (target,) = targets
    full = [
        functional.interpolate(output, target.shape[2:], mode="bilinear", align_corners=False) for output in outputs
    ]
    return sum(float(boundary_dou_naive(output.detach().double(), target.long())) for output in full)


def dice_by_hand(trainer: Any) -> float:  # noqa: ANN401
    """Mean over whole validation cases of the mean over classes that the truth has."""
    trainer.network.eval()
    cases = []
    for _ in range(len(trainer.dataloader_val)):
        batch = next(trainer.dataloader_val)
        with torch.no_grad():
            answer = torch.cat([trainer.network(part)[0].argmax(1) for part in batch["data"].split(8)])
        truth = batch["target"][:, 0]
        own = []
        for label in trainer.label_manager.foreground_labels:
            one, other = answer == label, truth == label
            if other.any():
                own.append(2.0 * float((one & other).sum()) / float(one.sum() + other.sum()))
        if own:
            cases.append(sum(own) / len(own))
    return sum(cases) / len(cases)


def rate(step: int, total: int, warmup: int) -> float:
    if step < warmup:
        return 1e-6 + 4.99e-4 * step / warmup
    return 1e-6 + 4.99e-4 / 2 * (1 + np.cos(np.pi * step / total))


def check(trainer: Any, rates: list[float], losses: list[float], warmup: int) -> None:  # noqa: ANN401
    steps = 2 * trainer.num_iterations_per_epoch
    assert trainer.warmup_steps == warmup
    assert rates == pytest.approx([rate(step, steps, warmup) for step in range(steps)], rel=1e-9)
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)  # what the training used, and the formula
    assert all(1 < loss < 4 for loss in losses)
    dice = trainer.logger.get_value("mean_fg_dice", step=None)
    assert dice[-1] == pytest.approx(dice_by_hand(trainer), abs=1e-5)
    best = torch.load(Path(trainer.output_folder) / "checkpoint_best.pth", weights_only=False)
    assert best["current_epoch"] == 1 + int(np.argmax(dice))
    assert best["inference_allowed_mirroring_axes"] is None


def test_busi_through_the_commands_of_its_recipe(workspace: Path, run_convert: Converted) -> None:
    real = nnunet_raw_folder() / "Dataset112_BUSI"
    for image in sorted((real / "imagesTr").glob("*.png")):
        _, kind, number = image.name.removesuffix("_0000.png").split("_")
        old = workspace / "Dataset_BUSI_with_GT" / kind / f"{kind} ({int(number)}).png"
        old.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(image, old)
        with Image.open(real / "labelsTr" / f"busi_{kind}_{number}.png") as mask:
            png(old.with_name(f"{old.stem}_mask.png"), 255 * np.asarray(mask))
    raw = run_convert("busi", workspace / "Dataset_BUSI_with_GT", "-d", 503, "--size", 224)
    assert main(["plan", "-d", "503", "-e", "pvt_v2_b0", "--device", "cpu", "-np", "1"]) == 0
    assert main(["recipe", "busi", "-d", "503", "-tr", TRAINER, "--write-plans"]) == 0
    file = workspace / "preprocessed" / "Dataset503_BUSI" / "nnUNetGDLAPaperPlans_B0.json"
    plans = json.loads(file.read_text())
    plans["configurations"]["2d"]["batch_size"] = 4  # that a test can afford
    file.write_text(json.dumps(plans))
    preprocess_dataset(503, "nnUNetGDLAPaperPlans_B0", ["2d"], [1], show_progress_bar=False)

    trainer, rates, losses = train(503, "nnUNetGDLAPaperPlans_B0", lengths=(2, 39, 390), steps=1)
    check(trainer, rates, losses, warmup=10)
    batch = next(trainer.dataloader_train)
    assert batch["data"].shape == (4, 1, 224, 224)
    for image in batch["data"]:
        assert (image.min(), image.max()) == (0, 1)

    predictor = nnUNetPredictor(use_mirroring=False, perform_everything_on_device=False, device=CPU, allow_tqdm=False)
    predictor.initialize_from_trained_model_folder(trainer.output_folder_base, (0,), "checkpoint_best.pth")
    (workspace / "masks").mkdir()
    predictor.predict_from_files_sequential(str(raw / "imagesTs"), str(workspace / "masks"))
    labels = ["--dataset-json", str(raw / "dataset.json"), "--convention", "monai", "-np", "1"]
    assert main(["evaluate", str(workspace / "masks"), str(raw / "labelsTs"), *labels]) == 0
    scores = read_results(workspace / "masks" / "evaluation_monai").columns("dice")[MEAN]
    assert len(scores) == 10
    normal = [name for name in sorted(path.stem for path in (raw / "labelsTs").iterdir()) if "normal" in name]
    assert np.isnan(scores).sum() == len(normal)


def test_volumes_with_stock_plans(workspace: Path) -> None:
    source = nnunet_raw_folder() / "Dataset904_HippocampusMini"
    raw = workspace / "raw" / source.name
    shutil.copytree(source, raw)
    assert main(["plan", "-d", "904", "-e", "pvt_v2_b0", "--device", "cpu", "-np", "1"]) == 0
    preprocessed = workspace / "preprocessed" / source.name
    shutil.copyfile(source / "splits_final.json", preprocessed / "splits_final.json")
    file = preprocessed / "nnUNetGDLAPlans_B0.json"
    plans = json.loads(file.read_text())
    plans["configurations"]["2d"]["batch_size"] = 4
    file.write_text(json.dumps(plans))
    preprocess_dataset(904, "nnUNetGDLAPlans_B0", ["2d"], [1], show_progress_bar=False)

    trainer, rates, losses = train(904, "nnUNetGDLAPlans_B0", lengths=(2, 250, 25), steps=10)
    check(trainer, rates, losses, warmup=1)  # 5 % of 20 steps
    assert "SliceAugmentation" in Path(trainer.log_file).read_text()
    assert trainer.num_val_iterations_per_epoch == len(json.loads((source / "splits_final.json").read_text())[0]["val"])
