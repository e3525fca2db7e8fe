"""Where `doctor` says "ready to train", nnU-Net reads all that a training reads; elsewhere `doctor` says why not."""

import argparse
import contextlib
import io
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from nnunetv2.evaluation.evaluate_predictions import compute_metrics
from nnunetv2.inference.export_prediction import export_prediction_from_logits
from nnunetv2.run.run_training import get_trainer_from_args, maybe_load_checkpoint

from nnunet_gdla.commands import doctor
from nnunet_gdla.commands.findings import Finding, Level
from tests.commands.damaged import NIFTI, PNG
from tests.commands.damages import Place
from tests.commands.defects import DEFECTS, READY, Defect
from tests.commands.made_datasets import make_dataset
from tests.commands.prepared_datasets import FOLDERS, PLANS, hard_copy, prepare
from tests.paths import ROOT

KINDS = {
    "png": (PNG, (40, 48), "NaturalImage2DIO", [1.0, 1.0]),
    "nifti": (NIFTI, (3, 40, 48), "SimpleITKIO", [0.7, 0.7]),
    "resampled": (NIFTI, (3, 40, 48), "SimpleITKIO", [1.0, 1.1]),
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of nnU-Net's three folders for each kind of dataset, ready to train."""
    root = tmp_path_factory.mktemp("ready")
    for kind, (made, size, reader, spacing) in KINDS.items():
        for name in FOLDERS:
            (root / kind / name).mkdir(parents=True)
        raw = make_dataset(root / kind / FOLDERS[0], *made, size=size)
        prepare(raw, root / kind / FOLDERS[1], reader, spacing)
        with pytest.MonkeyPatch.context() as patch:
            set_folders(patch, root / kind)
            trainer = make_trainer(raw.name, Defect(lambda place: None, READY))
            trainer.initialize()
            for number in range(len(trainer.logger.local_logger.my_fantastic_logging)):
                list(trainer.logger.local_logger.my_fantastic_logging.values())[number].append(0.5)
            trainer.save_checkpoint(str(root / kind / FOLDERS[2] / "made.pth"))
    return root


def set_folders(patch: pytest.MonkeyPatch, root: Path) -> None:
    for name in FOLDERS:
        patch.setenv(name, str(root / name))
    patch.setenv("nnUNet_n_proc_DA", "0")


@pytest.fixture
def place(
    request: pytest.FixtureRequest, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    kind = DEFECTS[request.node.callspec.params["name"]].kind
    hard_copy(prepared / kind, tmp_path / kind)
    set_folders(monkeypatch, tmp_path / kind)
    raw, preprocessed, results = (tmp_path / kind / name for name in FOLDERS)
    dataset = next(raw.iterdir()).name
    yield Place(raw / dataset, preprocessed / dataset, results)
    for checkpoint in results.rglob("*.pth"):  # large, and pytest keeps the folders of several runs
        if checkpoint.is_file():
            checkpoint.unlink()


def arguments(defect: Defect, dataset: str) -> argparse.Namespace:
    usual = {"plans": PLANS, "configuration": "2d", "trainer": "nnUNetTrainerGDLA", "resume": False, "full": False}
    return argparse.Namespace(dataset=dataset, fold=defect.fold, device="cpu", json=False, **(usual | defect.options))


def make_trainer(dataset: str, defect: Defect):  # noqa: ANN201 - nnU-Net has no types
    asked = arguments(defect, dataset)
    with contextlib.redirect_stdout(io.StringIO()):
        trainer = get_trainer_from_args(
            dataset, asked.configuration, asked.fold, asked.trainer, asked.plans, asked.resume, torch.device("cpu")
        )
        maybe_load_checkpoint(trainer, asked.resume, False)
    return trainer


def read_as_a_training_does(dataset: str, defect: Defect) -> None:
    """Load all cases, take a batch and its loss, and do the final validation of an empty prediction."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = make_trainer(dataset, defect)
        if not trainer.was_initialized:
            trainer.initialize()
        assert (Path(trainer.preprocessed_dataset_folder_base) / "dataset_fingerprint.json").is_file()
        batches = trainer.get_dataloaders()
        with torch.no_grad():
            batch = next(batches[0])
            loss = trainer.loss(trainer.network(batch["data"]), batch["target"])
        assert bool(loss.isfinite())
        train, val = trainer.get_tr_and_val_datasets()
        for case in train.identifiers:
            image, mask, _, _ = train.load_case(case)
            assert np.isfinite(image[:]).all()
            assert mask[:].shape[1:] == image.shape[1:]
        for case in val.identifiers:
            validate(trainer, case, *val.load_case(case)[::3])


def validate(trainer, case, image, properties) -> None:  # noqa: ANN001 - nnU-Net has no types
    labels = trainer.label_manager
    logits = torch.zeros((labels.num_segmentation_heads, *image.shape[1:]))
    target = Path(trainer.output_folder) / case
    export_prediction_from_logits(
        logits,
        properties,
        trainer.configuration_manager,
        trainer.plans_manager,
        trainer.dataset_json,
        str(target),
        False,
        1,
    )
    ending = trainer.dataset_json["file_ending"]
    truth = Path(trainer.preprocessed_dataset_folder_base) / "gt_segmentations" / f"{case}{ending}"
    reader = trainer.plans_manager.image_reader_writer_class()
    compute_metrics(str(truth), f"{target}{ending}", reader, labels.foreground_labels, labels.ignore_label)


def look(defect: Defect, place: Place) -> list[Finding]:
    return list(doctor._dataset(arguments(defect, place.raw.name), "cpu"))


def said(findings: list[Finding], level: Level) -> str:
    return "\n".join(
        f"{finding.title}: {finding.detail} {finding.fix}" for finding in findings if finding.level is level
    )


@pytest.mark.parametrize("name", DEFECTS)
def test_ready_means_that_nnunet_trains(place: Place, name: str) -> None:
    defect = DEFECTS[name]
    defect.damage(place)
    findings = look(defect, place)
    failures, warned = said(findings, Level.FAIL), said(findings, Level.WARN)
    assert defect.warning in warned, f"{failures}\n{warned}"
    if defect.answer == READY:
        assert not failures
        assert defect.warning or not warned, warned
        read_as_a_training_does(place.raw.name, defect)
    else:
        assert defect.answer in failures, f"{failures}\n{warned}"
        assert "check itself broke" not in failures


def test_a_training_needs_a_folder_of_results(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_folders(monkeypatch, prepared / "png")
    monkeypatch.delenv("nnUNet_results")
    findings = list(doctor._dataset(arguments(DEFECTS["nothing wrong"], "801"), "cpu"))
    assert "nnUNet_results: not set" in said(findings, Level.FAIL)


def test_the_page_of_docs_lists_each_defect() -> None:
    page = (ROOT / "docs" / "doctor.md").read_text(encoding="utf-8")
    for name, defect in DEFECTS.items():
        (row,) = [line for line in page.splitlines() if line.startswith((f"| {name} |", f"| {name} ("))]
        answer = "ready to train" if defect.answer == READY else f"FAIL `{defect.answer}`"
        assert f"| {answer}{f', WARN `{defect.warning}`' if defect.warning else ''} |" in row
