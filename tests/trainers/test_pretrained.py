"""Encoder weights are loaded at the start of a fresh training, all of them or none, and at no other time."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor
from nnunetv2.run.run_training import maybe_load_checkpoint
from torch import Tensor

from nnunet_gdla.errors import UserError
from nnunet_gdla.networks.released import encoder_key
from nnunet_gdla.networks.weights import WEIGHTS_VARIABLE
from nnunet_gdla.trainers import nnunet_gdla_pretrained, resolve
from tests.trainers.encoder_files import hub_cache_with, published_tensors, set_hub_cache
from tests.trainers.nnunet_project import Project, as_ours, make_trainer, small_plans

NAME = "nnUNetTrainerGDLA_B0"


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    return published_tensors()


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine that has fetched nothing yet, and (see tests/conftest.py) has no network."""
    set_hub_cache(monkeypatch, tmp_path / "hub")
    return tmp_path / "hub"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the hub's client would wait between its tries; here it does not."""
    asked: list[float] = []
    monkeypatch.setattr(huggingface_hub.utils._http, "time", SimpleNamespace(**vars(time) | {"sleep": asked.append}))
    return asked


@pytest.fixture
def no_weights_wanted(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    """Weights are asked for, but whoever looks for them fails the test."""

    def looked(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("the encoder's file was looked for")

    monkeypatch.setenv(WEIGHTS_VARIABLE, "imagenet")
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", looked)
    monkeypatch.setattr(nnunet_gdla_pretrained, "find_encoder_weights", looked)
    monkeypatch.setattr(nnunet_gdla_pretrained, "load_encoder_weights", looked)


@pytest.fixture
def start(project: Project) -> Callable[..., Any]:
    """Make a trainer and start its training; nothing is trained yet."""

    def start_training(name: str = NAME, **arguments: Any) -> Any:  # noqa: ANN401
        trainer = make_trainer(resolve(name), project, **arguments)
        trainer.on_train_start()
        return trainer

    return start_training


def assert_encoder_equals(trainer: Any, tensors: dict[str, Tensor]) -> None:  # noqa: ANN401
    """The dataset has one channel: the first convolution's three filters are summed, the rest is equal."""
    expected = {encoder_key(name): value for name, value in tensors.items() if not name.startswith("head.")}
    first = "patch_embed.proj.weight"
    expected[first] = expected[first].sum(1, keepdim=True)
    state = trainer.network.encoder.state_dict()
    assert state.keys() == expected.keys()
    torch.testing.assert_close(state[first], expected.pop(first), rtol=0, atol=1e-6)
    assert all(torch.equal(state[name], value) for name, value in expected.items())


@pytest.mark.parametrize("value", [None, "", "imagenet", "ImageNet"])
def test_imagenet_weights_come_from_the_hubs_cache(
    value: str | None,
    start: Callable[..., Any],
    empty_cache: Path,
    tensors: dict[str, Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if value is None:
        monkeypatch.delenv(WEIGHTS_VARIABLE)  # imagenet is the default
    else:
        monkeypatch.setenv(WEIGHTS_VARIABLE, value)
    file = hub_cache_with(empty_cache, "pvt_v2_b0", tensors)
    trainer = start()
    assert_encoder_equals(trainer, tensors)
    log = Path(trainer.log_file).read_text()
    assert str(file) in log
    assert "first convolution fitted from 3 to 1 input channels" in log


def test_the_file_is_that_of_the_planned_encoder(
    project: Project,
    start: Callable[..., Any],
    empty_cache: Path,
    tensors: dict[str, Tensor],
    waits: list[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(WEIGHTS_VARIABLE, "imagenet")
    hub_cache_with(empty_cache, "pvt_v2_b0", tensors)
    plans = small_plans(project, architecture=as_ours(encoder="pvt_v2_b0"))
    assert_encoder_equals(start("nnUNetTrainerGDLA", plans=plans), tensors)
    with pytest.raises(UserError, match="pvt_v2_b2"):
        start("nnUNetTrainerGDLA")


@pytest.mark.parametrize("naming", ["timm", "original"])
def test_weights_from_a_path(
    naming: str, start: Callable[..., Any], tensors: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "my encoder.pth"
    content = tensors
    if naming == "original":
        content = {}
        for name, value in tensors.items():
            renamed = name.replace("patch_embed.", "patch_embed1.")
            for stage in (3, 2, 1, 0):
                number = str(stage + 1)
                renamed = renamed.replace(f"stages.{stage}.downsample.", f"patch_embed{number}.")
                renamed = renamed.replace(f"stages.{stage}.blocks.", f"block{number}.")
                renamed = renamed.replace(f"stages.{stage}.norm.", f"norm{number}.")
            content[renamed.replace(".dwconv.", ".dwconv.dwconv.")] = value
        assert "block2.0.mlp.dwconv.dwconv.weight" in content
    torch.save(content, file)
    monkeypatch.setenv(WEIGHTS_VARIABLE, str(file))
    assert_encoder_equals(start(), tensors)


@pytest.mark.parametrize("value", ["none", "None", " none "])
def test_none_starts_from_scratch(
    value: str, start: Callable[..., Any], empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WEIGHTS_VARIABLE, value)
    trainer = start()
    assert "random weights" in Path(trainer.log_file).read_text()
    assert not empty_cache.exists()


def test_without_cache_and_network_it_stops_with_one_sentence(
    project: Project, empty_cache: Path, waits: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WEIGHTS_VARIABLE, "imagenet")
    trainer = make_trainer(resolve(NAME), project)
    with pytest.raises(UserError) as caught:
        trainer.on_train_start()
    message = str(caught.value)
    for part in ("model.safetensors", "huggingface.co/timm/pvt_v2_b0", str(empty_cache), f"{WEIGHTS_VARIABLE}=none"):
        assert part in message
    assert "\n" not in message
    assert not trainer.was_initialized  # found out before the network was built
    assert sum(waits) < 10  # and at once


def test_a_missing_file_is_named(start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    missing = tmp_path / "nowhere" / "pvt.pth"
    monkeypatch.setenv(WEIGHTS_VARIABLE, str(missing))
    with pytest.raises(UserError, match="there is no such file") as caught:
        start()
    assert f"{WEIGHTS_VARIABLE}={missing}" in str(caught.value)
    assert "'none' to train from scratch" in str(caught.value)
    missing.mkdir(parents=True)
    with pytest.raises(UserError, match="that is a folder"):
        start()


def damaged(tensors: dict[str, Tensor], how: str) -> dict[str, Tensor]:
    if how == "another size":
        return published_tensors("pvt_v2_b1")
    names = list(tensors)
    if how == "missing":
        return {name: value for name, value in tensors.items() if name not in names[3:7]}
    if how == "unknown":
        return tensors | {"stages.9.weight": torch.ones(1)}
    return tensors | {name: tensors[name] * torch.nan for name in names[10:14]}


@pytest.mark.parametrize(
    ("how", "count"),
    [("another size", "of another shape"), ("missing", "4 missing"), ("unknown", "1 unknown"), ("NaN", "4 not")],
)
def test_a_file_that_does_not_fit_is_refused(
    how: str,
    count: str,
    start: Callable[..., Any],
    tensors: dict[str, Tensor],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    file = tmp_path / "encoder.pth"
    content = damaged(tensors, how)
    torch.save(content, file)
    monkeypatch.setenv(WEIGHTS_VARIABLE, str(file))
    with pytest.raises(UserError) as caught:
        start()
    message = str(caught.value)
    assert count in message
    assert str(file) in message
    assert "nothing was loaded" in message
    named = [name for name in (*content, *tensors) if encoder_key(name) in message]
    assert len(set(named)) == (1 if how == "unknown" else 3)


def test_nothing_is_looked_for_before_training_starts(project: Project, no_weights_wanted: None) -> None:
    make_trainer(resolve(NAME), project).initialize()


@pytest.fixture
def earlier(project: Project, tmp_path: Path) -> dict[str, Tensor]:
    """Weights of an earlier training; its results folder holds all that a finished training has."""
    trainer = make_trainer(resolve(NAME), project)
    trainer.on_train_start()
    trainer.save_checkpoint(str(tmp_path / "checkpoint.pth"))
    trainer.save_checkpoint(str(Path(trainer.output_folder) / "checkpoint_final.pth"))
    return {name: value.clone() for name, value in trainer.network.state_dict().items()}


def assert_network_equals(network: torch.nn.Module, expected: dict[str, Tensor]) -> None:
    torch.testing.assert_close(dict(network.state_dict()), expected, rtol=0, atol=0)


@pytest.mark.parametrize("way", ["--c", "--val", "-pretrained_weights"])
def test_weights_of_an_earlier_training_stay(
    way: str, earlier: dict[str, Tensor], project: Project, no_weights_wanted: None, tmp_path: Path
) -> None:
    trainer = make_trainer(resolve(NAME), project, continue_training=way == "--c")
    weights = str(tmp_path / "checkpoint.pth") if way == "-pretrained_weights" else None
    maybe_load_checkpoint(trainer, way == "--c", way == "--val", weights)
    if way != "--val":
        trainer.on_train_start()
    # -pretrained_weights leaves the segmentation heads as they are
    expected = {name: value for name, value in earlier.items() if weights is None or ".seg_layers." not in name}
    found = trainer.network.state_dict()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_validation_and_prediction_look_for_nothing(
    earlier: dict[str, Tensor], project: Project, no_weights_wanted: None
) -> None:
    trainer = make_trainer(resolve(NAME), project)
    maybe_load_checkpoint(trainer, False, True)
    trainer.perform_actual_validation()
    folder = Path(trainer.output_folder)
    assert json.loads((folder / "validation" / "summary.json").read_text())["foreground_mean"]["Dice"] >= 0

    predictor = nnUNetPredictor(device=torch.device("cpu"), allow_tqdm=False, perform_everything_on_device=False)
    predictor.initialize_from_trained_model_folder(str(folder.parent), (0,), "checkpoint_final.pth")
    assert predictor.trainer_name == NAME
    predictor.network.load_state_dict(predictor.list_of_parameters[0])
    assert_network_equals(predictor.network, earlier)


def test_continuing_without_a_checkpoint_is_a_fresh_training(
    project: Project, empty_cache: Path, tensors: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WEIGHTS_VARIABLE, "imagenet")
    hub_cache_with(empty_cache, "pvt_v2_b0", tensors)
    trainer = make_trainer(resolve(NAME), project, continue_training=True)
    maybe_load_checkpoint(trainer, True, False)
    trainer.on_train_start()
    assert_encoder_equals(trainer, tensors)


@pytest.mark.parametrize("rank", [0, 1])
def test_under_ddp_one_process_fetches_and_the_others_wait(
    rank: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[str] = []

    def fetch(*_args: object, **_kwargs: object) -> Path:
        calls.append("fetch")
        return tmp_path

    monkeypatch.setenv(WEIGHTS_VARIABLE, "imagenet")
    monkeypatch.setattr(nnunet_gdla_pretrained, "find_encoder_weights", fetch)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: calls.append("wait"))
    nnunet_gdla_pretrained.require_encoder_weights("pvt_v2_b0", is_ddp=True, rank=rank)
    assert calls == (["fetch", "wait"] if rank == 0 else ["wait"])
