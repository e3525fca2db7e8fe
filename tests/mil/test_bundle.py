"""Bundles: what comes back is what went in; what does not fit is refused by name."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.bundle import Bundle, load_bundle, load_bundles, save_bundle
from nnunet_gdla.mil.bundle_info import BundleInfo
from nnunet_gdla.mil.models import build_model
from nnunet_gdla.mil.slides import Slide, read_slide
from tests.mil.small_cohorts import write_slide
from tests.unchecked import unchecked

KWARGS = {"width": 24, "depth": 2, "num_heads": 2, "num_landmarks": 8}


def made(folder: Path, *, seed: int = 0, **changes: object) -> Bundle:
    torch.manual_seed(seed)
    info = BundleInfo(
        task="classification",
        model="slide_transformer",
        model_kwargs=KWARGS,
        in_dim=16,
        num_outputs=2,
        classes=("a", "b"),
        encoder="uni_v2",
        threshold=0.4,
    )
    info = dataclasses.replace(info, **changes)
    model = build_model(info.model, info.in_dim, info.num_outputs, **info.model_kwargs)
    save_bundle(folder, model, info)
    return Bundle(info, (model.eval(),), torch.device("cpu"))


def slide(folder: Path, width: int = 16) -> Slide:
    path = folder / "slide.h5"
    write_slide(path, np.random.default_rng(0).standard_normal((30, width)).astype(np.float32))
    return read_slide(path)


def edited(folder: Path, **changes: object) -> None:
    path = folder / "bundle.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def test_a_loaded_bundle_is_the_saved_one(tmp_path: Path) -> None:
    before = made(tmp_path / "bundle")
    after = load_bundle(tmp_path / "bundle")
    assert after.info == before.info
    assert not after.model.training
    assert after.predict(slide(tmp_path)) == before.predict(slide(tmp_path))
    assert {path.name for path in (tmp_path / "bundle").iterdir()} == {"bundle.json", "model.safetensors"}


def test_a_run_folder_stands_for_its_bundle(tmp_path: Path) -> None:
    made(tmp_path / "run" / "bundle")
    assert load_bundle(tmp_path / "run").info.classes == ("a", "b")


def test_another_width_is_refused(tmp_path: Path) -> None:
    made(tmp_path / "bundle")
    with pytest.raises(UserError, match="slide slide: features are 8 wide, the model takes 16"):
        load_bundle(tmp_path / "bundle").predict(slide(tmp_path, width=8))


def test_another_encoder_of_the_same_width_is_refused(tmp_path: Path) -> None:
    made(tmp_path / "bundle")
    other = dataclasses.replace(slide(tmp_path), encoder="virchow2")
    with pytest.raises(UserError, match="features come from virchow2, the model was trained on uni_v2"):
        load_bundle(tmp_path / "bundle").predict(other)


def test_a_slide_without_coordinates_is_refused_where_they_are_needed(tmp_path: Path) -> None:
    made(tmp_path / "bundle")
    bare = dataclasses.replace(slide(tmp_path), coords=None)
    with pytest.raises(UserError, match="it has no coordinates"):
        load_bundle(tmp_path / "bundle").predict(bare)


def test_an_answer_that_is_not_finite_is_an_error(tmp_path: Path) -> None:
    made(tmp_path / "bundle")
    huge = dataclasses.replace(slide(tmp_path), features=torch.full((30, 16), 3e38))
    with pytest.raises(UserError, match="the model's answer is not finite"):
        load_bundle(tmp_path / "bundle").predict(huge)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "999.0"}, r"was written by nnunet-gdla 999\.0, this is .*: update the package"),
        ({"format": 99}, r"has version 99 of the bundle format, nnunet-gdla .* reads up to 1: update the package"),
    ],
)
def test_a_newer_version_is_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    made(tmp_path / "bundle")
    edited(tmp_path / "bundle", **changes)
    with pytest.raises(UserError, match=message):
        load_bundle(tmp_path / "bundle")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": ["a", "b", "c"]}, r"3 classes \(a, b, c\) do not name 2 outputs"),
        ({"classes": "ab"}, "classes cannot be 'ab'"),
        ({"threshold": "x"}, "threshold cannot be 'x'"),
        ({"threshold": 1.5}, "threshold 1.5 is no probability"),
        ({"task": "regression"}, "task cannot be 'regression'"),
        ({"task": "survival", "classes": []}, "0 bin_edges do not cut time for the 2 outputs"),
        ({"task": "survival", "classes": [], "num_outputs": 3, "bin_edges": [2, 1]}, "bin_edges do not ascend"),
        ({"train_time": [1.0]}, "train_time and train_event"),
        ({"in_dim": True}, "in_dim cannot be True"),
        ({"num_outputs": 0}, "in_dim 16 and num_outputs 0 must be 1 or more"),
        ({"stride": -1}, "stride -1.0 is not greater than 0"),
        ({"format": "x"}, "format cannot be 'x'"),
        ({"colour": 1}, "entries are not known: colour"),
    ],
)
def test_an_edited_description_is_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    made(tmp_path / "bundle")
    edited(tmp_path / "bundle", **changes)
    with pytest.raises(UserError, match=rf"bundle\.json is damaged: {message}") as caught:
        load_bundle(tmp_path / "bundle")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("classes", [["b", "a"], ["a", "B"]], ids=["swapped", "renamed"])
def test_other_class_names_than_those_of_the_weights_are_refused(classes: list[str], tmp_path: Path) -> None:
    made(tmp_path / "bundle")
    edited(tmp_path / "bundle", classes=classes)
    message = (
        rf"bundle\.json calls the outputs {', '.join(classes)}, the weights were saved with a, b: put the names back"
    )
    with pytest.raises(UserError, match=message):
        load_bundle(tmp_path / "bundle")


def test_weights_without_class_names_are_taken_as_described(tmp_path: Path) -> None:
    made(tmp_path / "bundle")
    weights = tmp_path / "bundle" / "model.safetensors"
    save_file(load_file(weights), weights)  # as earlier versions wrote them
    assert load_bundle(tmp_path / "bundle").info.classes == ("a", "b")
    save_file(load_file(weights), weights, metadata={"classes": "3"})
    with pytest.raises(UserError, match=r"cannot be loaded: the class names of model\.safetensors are no list"):
        load_bundle(tmp_path / "bundle")


def test_something_else_than_a_slide_is_refused(tmp_path: Path) -> None:
    bundle = made(tmp_path / "bundle")
    with unchecked(), pytest.raises(UserError, match=r"a ndarray is no slide; nnunet_gdla\.mil\.slides\.read_slide"):
        bundle.predict(np.zeros((3, 16), np.float32))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "it is no JSON from line 1 on"), ("[]", "it holds no names"), ("{}", "entries are missing: format, in_dim")],
)
def test_a_damaged_description_is_named_in_plain_words(text: str, message: str, tmp_path: Path) -> None:
    made(tmp_path / "bundle")
    (tmp_path / "bundle" / "bundle.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=f"is damaged: {message}.*copy the bundle again"):
        load_bundle(tmp_path / "bundle")


def test_damaged_bundles_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is no bundle: there is no bundle\.json"):
        load_bundle(tmp_path)
    made(tmp_path / "bundle")
    (tmp_path / "bundle" / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(UserError, match="cannot be loaded"):
        load_bundle(tmp_path / "bundle")
    (tmp_path / "bundle" / "bundle.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match="is damaged"):
        load_bundle(tmp_path / "bundle")


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    made(tmp_path / "bundle")
    made(tmp_path / "wide", model_kwargs=KWARGS | {"width": 48})
    shutil.copy(tmp_path / "wide" / "model.safetensors", tmp_path / "bundle" / "model.safetensors")
    with pytest.raises(UserError, match="cannot be loaded"):
        load_bundle(tmp_path / "bundle")


def test_an_ensemble_is_the_mean_of_its_members(tmp_path: Path) -> None:
    members = [made(tmp_path / f"fold{seed}", seed=seed, threshold=0.4 + 0.1 * seed) for seed in range(3)]
    bag = slide(tmp_path)
    together = load_bundles([tmp_path / f"fold{seed}" for seed in range(3)])
    answers = [member.predict(bag) for member in members]
    for name, value in together.predict(bag).items():
        assert value == pytest.approx(sum(answer[name] for answer in answers) / 3)
    assert together.info.threshold == pytest.approx(0.5)


def test_an_ensemble_of_survival_folds_averages_curves(tmp_path: Path) -> None:
    same = {"task": "survival", "classes": (), "num_outputs": 4, "threshold": None, "median_risk": -2.0}
    members = [made(tmp_path / f"fold{s}", seed=s, bin_edges=(1.0, 2.0 + s, 4.0), **same) for s in range(2)]
    together = load_bundles([tmp_path / "fold0", tmp_path / "fold1"])
    answer, bag = together.predict(slide(tmp_path)), slide(tmp_path)
    assert answer["risk"] == pytest.approx(sum(member.predict(bag)["risk"] for member in members) / 2)
    hazards = np.array([answer[f"hazard_{k}"] for k in range(4)])
    assert answer["risk"] == pytest.approx(-(1 - hazards).cumprod().sum())
    assert together.info.bin_edges == ()  # the folds cut time differently
    assert together.info.median_risk == -2.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": ("a", "c")}, r"classes is \('a', 'b'\) and \('a', 'c'\)"),
        ({"encoder": "virchow2"}, "encoder is 'uni_v2' and 'virchow2'"),
        ({"in_dim": 8}, "in_dim is 16 and 8"),
        ({"task": "survival", "classes": (), "bin_edges": (1.0,)}, "task is 'classification' and 'survival'"),
    ],
)
def test_bundles_that_answer_other_questions_are_no_ensemble(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    made(tmp_path / "one")
    made(tmp_path / "two", **changes)
    with pytest.raises(UserError, match=f"are no ensemble: {message}"):
        load_bundles([tmp_path / "one", tmp_path / "two"])


def test_an_ensemble_does_not_take_the_meaning_of_events_from_its_first_member(tmp_path: Path) -> None:
    same = {"task": "survival", "classes": (), "num_outputs": 2, "threshold": None, "bin_edges": (1.0,)}
    made(tmp_path / "one", event_column="event", event_map={"0": 1, "1": 0}, **same)
    made(tmp_path / "two", event_column="event", **same)
    alike = load_bundles([tmp_path / "one"] * 2).info
    assert (alike.event_column, alike.event_map) == ("event", {"0": 1, "1": 0})
    different = load_bundles([tmp_path / "one", tmp_path / "two"]).info
    assert (different.event_column, different.event_map) == (None, None)
