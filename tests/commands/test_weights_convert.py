"""A released checkpoint becomes a model of nnU-Net: the same numbers, all of it or nothing."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor
from nnunetv2.preprocessing.normalization.default_normalization_schemes import CTNormalization
from PIL import Image

from nnunet_gdla.commands import weights_folder
from nnunet_gdla.commands.findings import Level
from nnunet_gdla.commands.weights_compare import check_models
from nnunet_gdla.errors import UserError
from nnunet_gdla.trainers import resolve
from tests.commands.weights_cases import BAD_CHECKPOINTS, options_of, released, released_golden, run_weights
from tests.golden_files import GoldenFile, golden_params
from tests.networks.released_networks import COMPARATORS, encoder_source
from tests.reference.compare import relative_error

DATASET = "Dataset850_Tiny"
FILES = ["dataset.json", "fold_0/checkpoint_final.pth", "plans.json"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    torch.save({"model_state_dict": released(1, 3), "epoch": 3}, tmp_path / "released.pth")
    return tmp_path / "released.pth"


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """nnU-Net's three folders, and a dataset of one channel and three classes."""
    for name in ("raw", "preprocessed", "results"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(f"nnUNet_{name}", str(tmp_path / name))
    (tmp_path / "raw" / DATASET).mkdir()
    write_dataset_json(tmp_path / "raw" / DATASET / "dataset.json")
    return tmp_path


def write_dataset_json(path: Path, **changes: Any) -> Path:  # noqa: ANN401
    labels = {"background": 0, "disc": 1, "corner": 2}
    content = {"channel_names": {"0": "CT"}, "labels": labels, "numTraining": 4, "file_ending": ".nii.gz"}
    path.write_text(json.dumps(content | changes))
    return path


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def loaded(folder: Path) -> nnUNetPredictor:
    predictor = nnUNetPredictor(device=torch.device("cpu"), allow_tqdm=False, perform_everything_on_device=False)
    predictor.initialize_from_trained_model_folder(str(folder), (0,), "checkpoint_final.pth")
    predictor.network.eval()
    return predictor


def assert_golden(golden: GoldenFile, tmp_path: Path, output: str, *options: str) -> None:
    torch.save(released_golden(golden), tmp_path / "released.pth")
    run_weights("convert", tmp_path / "released.pth", "--out", tmp_path / "model", *options_of(golden), *options)
    with torch.no_grad():
        y = loaded(tmp_path / "model").network(encoder_source(golden).tensors["input.x"])
    assert relative_error(y, golden.tensors[output]) <= 1e-5


@pytest.mark.parametrize("golden", golden_params("PVTGDLA"))
@pytest.mark.parametrize("gate", ["sigmoid", "silu"])
def test_golden_networks(golden: GoldenFile, gate: str, tmp_path: Path) -> None:
    assert_golden(golden, tmp_path, f"output.{gate}.eval.head1", *(["--gate", gate] if gate == "silu" else []))


@pytest.mark.parametrize("golden", golden_params(*COMPARATORS))
def test_golden_comparators(golden: GoldenFile, tmp_path: Path) -> None:
    assert_golden(golden, tmp_path, "output.eval.head1")


def test_the_folder_predicts_a_mask(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "my model"
    run_weights("convert", file, "--out", model, "--patch-size", 64, 64, "--file-ending", ".png")
    assert listing(model) == FILES
    command = f"nnUNetv2_predict_from_modelfolder -i IN -o OUT -m {shlex.quote(str(model))} -f 0\n"
    assert command in capsys.readouterr().out
    image = np.random.default_rng(0).normal(size=(1, 1, 70, 50)).astype(np.float32)
    mask = loaded(model).predict_single_npy_array(image, {"spacing": [999.0, 1.0, 1.0]})
    assert mask.shape == (1, 70, 50)
    assert set(np.unique(mask)) <= {0, 1, 2}


@pytest.mark.slow
def test_the_printed_command_predicts_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(released(3, 4), tmp_path / "released.pth")
    monkeypatch.chdir(tmp_path)
    run_weights("convert", "released.pth", "--out", "model")
    (command,) = re.findall(r"nnUNetv2_predict_from_modelfolder .*", capsys.readouterr().out)
    (tmp_path / "IN").mkdir()
    picture = np.random.default_rng(0).integers(0, 256, (90, 70, 3), dtype=np.uint8)
    Image.fromarray(picture).save(tmp_path / "IN" / "case_0000.png")
    script = "from nnunetv2.inference.predict_from_raw_data import predict_entry_point_modelfolder as main; main()"
    options = [*shlex.split(command)[1:], "-device", "cpu", "-npp", "1", "-nps", "1", "--disable_tta"]
    subprocess.run([sys.executable, "-c", script, *options], check=True, timeout=600)
    mask = np.asarray(Image.open(tmp_path / "OUT" / "case.png"))
    assert mask.shape == (90, 70)
    assert set(np.unique(mask)) <= {0, 1, 2, 3}


def test_a_dataset_gets_its_model_and_its_plans(file: Path, folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_weights("convert", file, "-d", 850)
    plans_name, trainer = "nnUNetGDLAReleasedPlans", "nnUNetTrainerGDLA"
    model = folders / "results" / DATASET / f"{trainer}__{plans_name}__2d"
    plans = json.loads((folders / "preprocessed" / DATASET / f"{plans_name}.json").read_text())
    assert plans == json.loads((model / "plans.json").read_text())
    assert plans["configurations"]["2d"]["normalization_schemes"] == ["CTNormalization"]
    assert plans["configurations"]["2d"]["architecture"]["arch_kwargs"]["gate"] == "sigmoid"
    assert listing(folders / "preprocessed" / DATASET) == ["dataset.json", f"{plans_name}.json"]
    out = capsys.readouterr().out
    assert f"nnUNetv2_predict -i IN -o OUT -d 850 -c 2d -f 0 -tr {trainer} -p {plans_name}\n" in out
    assert f"nnUNetv2_preprocess -d 850 -plans_name {plans_name} -c 2d\n" in out
    # Under the model's own name the training would write over the converted checkpoint.
    (training,) = re.findall(r"nnUNetv2_train 850 2d 0 -tr (\S+) -p (\S+) -pretrained_weights (\S+)\n", out)
    assert training == (f"{trainer}_150epochs", plans_name, str(model / "fold_0" / "checkpoint_final.pth"))
    assert resolve(training[0]).decoder == "gdla"

    (agreed,) = check_models(DATASET)
    assert (agreed.level, agreed.title) == (Level.PASS, f"model {model.name}")
    run_weights("convert", file, "-d", DATASET, "--gate", "silu", "--overwrite")
    (model / "plans.json").write_text(json.dumps(plans))
    (warning,) = check_models(DATASET)
    assert warning.level is Level.WARN
    assert "made with gate silu" in warning.detail
    assert "says sigmoid: predictions would be wrong without any error" in warning.detail


def test_the_training_plans_of_that_name_are_compared_too(file: Path, folders: Path) -> None:
    run_weights("convert", file, "-d", DATASET)
    path = folders / "preprocessed" / DATASET / "nnUNetGDLAReleasedPlans.json"
    path.write_text(path.read_text().replace("sigmoid", "silu"))
    (warning,) = check_models(DATASET)
    assert str(path) in warning.detail
    with pytest.raises(UserError, match="says something else"):
        run_weights("convert", file, "-d", DATASET, "--out", folders / "other")


@pytest.mark.parametrize("decoder", ["gdla", "linear", "self", "diff"])
def test_a_trainer_takes_the_checkpoint_over(decoder: str, tmp_path: Path, folders: Path) -> None:
    torch.save(released(1, 3, decoder), tmp_path / "file.pth")
    run_weights("convert", tmp_path / "file.pth", "-d", 850, "--decoder", decoder)
    (model,) = (folders / "results" / DATASET).iterdir()
    checkpoint = torch.load(model / "fold_0" / "checkpoint_final.pth", weights_only=False)
    start = {**checkpoint["init_args"], "device": torch.device("cpu")}
    assert start.pop("fold") == 0
    start["plans"]["continue_training"] = False
    preprocessed = folders / "preprocessed" / DATASET / "nnUNetGDLAReleasedPlans_2d"
    preprocessed.mkdir()
    for ending in ("b2nd", "pkl"):
        (preprocessed / f"case.{ending}").touch()  # by which nnU-Net tells how cases are stored
    trainer = resolve(checkpoint["trainer_name"])(**start, fold=1)
    trainer.initialize()
    trainer.load_checkpoint(str(model / "fold_0" / "checkpoint_final.pth"))
    assert trainer.current_epoch == 0
    found = trainer.network.state_dict()
    assert all(torch.equal(found[name], value) for name, value in checkpoint["network_weights"].items())


def test_the_window_of_synapse_is_exact() -> None:
    from nnunet_gdla.commands.weights_plans import CT_WINDOW

    image = np.array([[-1000.0, -125.0, 75.0, 275.0, 3000.0]], np.float32)
    scaled = CTNormalization(False, CT_WINDOW).run(image.copy())
    np.testing.assert_allclose(scaled, [[0, 0, 0.5, 1, 1]], atol=1e-7)


@pytest.mark.parametrize(
    ("channels", "options", "schemes"),
    [
        (3, [], ["RGBTo01Normalization"] * 3),
        (1, [], ["ZScoreNormalization"]),
        (2, ["--normalization", "minmax"], ["RescaleTo01Normalization"] * 2),
    ],
)
def test_normalisation(channels: int, options: list[str], schemes: list[str], tmp_path: Path) -> None:
    torch.save(released(channels, 2), tmp_path / "file.pth")
    run_weights("convert", tmp_path / "file.pth", "--out", tmp_path / "m", "--spacing", 2, 2.5, *options)
    configuration = json.loads((tmp_path / "m" / "plans.json").read_text())["configurations"]["2d"]
    assert configuration["normalization_schemes"] == schemes
    assert configuration["spacing"] == [2.0, 2.5]
    assert loaded(tmp_path / "m").network(torch.zeros(1, channels, 32, 32)).shape == (1, 2, 32, 32)


def test_half_precision_becomes_single(tmp_path: Path) -> None:
    torch.save({n: t.half() if t.is_floating_point() else t for n, t in released().items()}, tmp_path / "file.pth")
    run_weights("convert", tmp_path / "file.pth", "--out", tmp_path / "m")
    assert all(p.dtype == torch.float32 for p in loaded(tmp_path / "m").network.parameters())


@pytest.mark.parametrize("case", BAD_CHECKPOINTS)
def test_a_bad_file_is_one_sentence_and_writes_nothing(case: str, tmp_path: Path) -> None:
    write, message = BAD_CHECKPOINTS[case]
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "file.pth"
    write(path)
    before = listing(tmp_path)
    with pytest.raises(UserError, match=message) as caught:
        run_weights("convert", path, "--out", tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert listing(tmp_path) == before
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "say where the model goes"),
        (["--out", "m", "--plans-name", "a__b"], "--plans-name a__b"),
        (["--out", "m", "--decoder", "self"], "decoder 'gdla', not 'self'"),
        (["--out", "m", "--patch-size", "0", "64"], "--patch-size 0 64 must be multiples of 32"),
        (["--out", "m", "--patch-size", "50", "50"], "--patch-size 50 50 must be multiples of 32"),
        (["--out", "m", "--spacing", "1", "nan"], "greater than 0"),
        (["--out", "m", "--file-ending", ".jpg"], "no reader for file ending"),
        (["-d", "851"], "give the number or the full name of what is there: Dataset850_Tiny"),
        (["-d", "850", "--dataset-json", "none.json"], r"none\.json does not exist"),
        (["-d", "850", "--dataset-json", "two.json"], "has 3 classes.*has 2"),
        (["-d", "850", "--dataset-json", "rgb.json"], "has 1 input channels.*has 3"),
        (["-d", "850", "--dataset-json", "regions.json"], "has regions"),
        (["-d", "850", "--dataset-json", "no_labels.json"], "labels"),
    ],
)
def test_wrong_options_are_one_sentence(
    options: list[str], message: str, file: Path, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folders)
    write_dataset_json(folders / "two.json", labels={"background": 0, "disc": 1})
    write_dataset_json(folders / "rgb.json", channel_names={"0": "R", "1": "G", "2": "B"})
    regions = {"background": 0, "all": [1, 2], "corner": 2}
    write_dataset_json(folders / "regions.json", labels=regions, regions_class_order=[1, 2])
    write_dataset_json(folders / "no_labels.json", labels=None)
    before = listing(folders)
    with pytest.raises(UserError, match=message) as caught:
        run_weights("convert", file, *options)
    assert "\n" not in str(caught.value)
    assert listing(folders) == before


def test_other_files_are_told_what_they_are_for(file: Path, tmp_path: Path) -> None:
    run_weights("convert", file, "--out", tmp_path / "m")
    with pytest.raises(UserError, match="nnU-Net can use it as it is"):
        run_weights("convert", tmp_path / "m" / "fold_0" / "checkpoint_final.pth", "--out", tmp_path / "n")


def test_what_is_there_is_kept(file: Path, tmp_path: Path) -> None:
    model = tmp_path / "m"
    run_weights("convert", file, "--out", model)
    with pytest.raises(UserError, match="--overwrite"):
        run_weights("convert", file, "--out", model)
    run_weights("convert", file, "--out", model, "--overwrite", "--gate", "silu")
    assert "silu" in (model / "plans.json").read_text()
    assert listing(model) == FILES
    (model / "fold_1").mkdir()
    (model / "fold_1" / "checkpoint_final.pth").write_text("a training of days")
    with pytest.raises(UserError, match="perhaps a training"):
        run_weights("convert", file, "--out", model, "--overwrite")


@pytest.mark.parametrize("error", [OSError("No space left on device"), RuntimeError("unexpected pos 64 vs 0")])
def test_a_full_disk_leaves_what_was_there(
    error: Exception, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_weights("convert", file, "--out", tmp_path / "m")
    before = listing(tmp_path)

    def fail(content: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr(weights_folder.torch, "save", fail)
    with pytest.raises(UserError, match="cannot be written"):
        run_weights("convert", file, "--out", tmp_path / "m", "--overwrite", "--gate", "silu")
    assert listing(tmp_path) == before
    assert "sigmoid" in (tmp_path / "m" / "plans.json").read_text()


def test_ctrl_c_leaves_nothing(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(weights_folder.torch, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        run_weights("convert", file, "--out", tmp_path / "m")
    assert listing(tmp_path) == [file.name]
