"""nnU-Net's whole loop on preprocessed files: label maps, regions and an ignore label, with both losses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nnunet_gdla.trainers import resolve
from tests.trainers.nnunet_project import Project, disc_and_corner, make_trainer, prepare, small_plans, write_dataset

LOSSES = ["nnUNetTrainerGDLA_B0_1epoch", "nnUNetTrainerGDLA_B0_DiceCE_NoMirroring_1epoch"]
REGIONS = {"background": 0, "both": [1, 2], "corner": [2]}
IGNORED = {"background": 0, "disc": 1, "ignore": 2}
REGIONS_AND_IGNORED = {"background": 0, "all": [1, 2], "disc": [1], "ignore": 3}


def run(trainer: Any) -> None:  # noqa: ANN401
    trainer.num_iterations_per_epoch, trainer.num_val_iterations_per_epoch = 3, 2
    trainer.logger.plot_progress_png = lambda _folder: None  # takes seconds
    trainer.plot_network_architecture = lambda: None
    trainer.run_training()
    for key in ("train_losses", "val_losses", "mean_fg_dice"):
        assert np.isfinite(trainer.logger.get_value(key, step=None)).all()
    saved = torch.load(Path(trainer.output_folder) / "checkpoint_final.pth", weights_only=False)
    assert all(torch.isfinite(value).all() for value in saved["network_weights"].values())


@pytest.mark.parametrize(("name", "patch"), [(LOSSES[0], (56, 40)), (LOSSES[0], (97, 131)), (LOSSES[1], (64, 64))])
def test_label_maps(name: str, patch: tuple[int, int], project: Project) -> None:
    trainer = make_trainer(resolve(name), project, small_plans(project, patch))
    run(trainer)
    assert len(trainer.logger.get_value("dice_per_class_or_region", step=-1)) == 2


@pytest.mark.parametrize("name", LOSSES)
def test_regions(name: str, project: Project) -> None:
    dataset_json = project.dataset_json(labels=REGIONS, regions_class_order=[1, 2])
    trainer = make_trainer(resolve(name), project, dataset_json=dataset_json)
    run(trainer)
    assert trainer.network.decoder.seg_layers[0].out_channels == 2
    batch = next(trainer.dataloader_train)
    assert [target.dtype for target in batch["target"]] == [torch.bool] * 4


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("labels", [IGNORED, REGIONS_AND_IGNORED], ids=["labels", "regions"])
def test_an_ignore_label(labels: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = Project(tmp_path, "Dataset851_Ignored", 851)
    made.set_folders(monkeypatch, tmp_path / "results")
    monkeypatch.setenv("nnUNet_n_proc_DA", "1")
    drawn = {f"case{i}": disc_and_corner(i, 90, 75) for i in range(4)}
    maps = {case: label.copy() for case, (_, label) in drawn.items()}
    for label in maps.values():
        label[40:60, 50:] = labels["ignore"]
    write_dataset(made.raw, {case: [image] for case, (image, _) in drawn.items()}, maps, label_names=labels)
    if "all" in labels:
        file = made.raw / "dataset.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"regions_class_order": [2, 1]}))
    prepare(851)
    monkeypatch.setenv("nnUNet_n_proc_DA", "0")
    trainer = make_trainer(resolve(name), made, small_plans(made))
    trainer.fold = "all"
    run(trainer)
    assert trainer.network.decoder.seg_layers[0].out_channels == 2
