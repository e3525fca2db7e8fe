"""Settings: one YAML, typed; what is unknown or does not fit is named."""

import logging
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import yaml

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.config import Config, Found, load_config, preset_names, preset_text, save_config
from nnunet_gdla.mil.config_ranges import RANGES
from nnunet_gdla.mil.prepare import resolved

DATA = "data:\n  table: cohort.csv\n  features: h5\n  task: classification\n"
PUBLISHED = {  # delta and hidden width of the gate, by dataset
    "kirc": (1.5, 128),
    "kirp": (2.0, 32),
    "luad": (1.0, 128),
    "stad": (0.5, 128),
    "ucec": (1.5, 32),
    "cam16": (1.0, 16),
    "cam17": (2.0, 64),
    "kgh": (1.0, 64),
    "panda": (0.5, 16),
    "bracs": (0.5, 128),
}


def written(folder: Path, text: str) -> Path:
    path = folder / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads_and_names_a_model_that_can_be_built(name: str, tmp_path: Path) -> None:
    config = load_config(written(tmp_path, preset_text(name)))
    assert resolved(config).model.width == 384
    assert preset_text(name).startswith("# ")


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items())
def test_presets_hold_the_published_numbers(name: str, published: tuple[float, int], tmp_path: Path) -> None:
    config = load_config(written(tmp_path, preset_text(name)))
    train = config.train
    assert (config.model.delta, config.model.gate_hidden) == published
    assert train.decay_norms_and_biases
    assert config.split.scheme == "paper"
    if config.data.task == "survival":
        assert (train.epochs, train.accumulate, train.lr, train.weight_decay) == (20, 1, 1e-4, 1e-5)
        assert config.data.max_patches == 49152
    else:
        assert (train.accumulate, train.lr, train.weight_decay) == (16, 2e-4, 0.05)
        assert train.epochs == (20 if name == "panda" else 15)
        assert config.data.max_patches is None


@pytest.mark.parametrize("name", ["own_classification", "own_survival"])
def test_own_data_leaves_norms_and_biases_undecayed(name: str, tmp_path: Path) -> None:
    assert load_config(written(tmp_path, preset_text(name))).train.decay_norms_and_biases is False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DATA + "train:\n  epoch: 3\n", r"unknown key train\.epoch; did you mean train\.epochs"),
        (DATA + "trian:\n  epochs: 3\n", "unknown key trian; did you mean train"),
        (DATA + "train:\n  zzz: 3\n", r"unknown key train\.zzz; known here: seed, epochs"),
        (DATA + "train:\n  epochs: many\n", r"train\.epochs.*many"),
        (DATA + "train:\n  epochs: 0\n", r"train\.epochs is 0; it must be greater than 0"),
        (DATA + "train:\n  workers: -1\n", r"train\.workers is -1; it must be 0 or more"),
        (DATA + "train:\n  seed: -1\n", r"train\.seed is -1; it must lie between 0 and 4294967295"),
        (DATA + "split:\n  seed: 4294967296\n", r"split\.seed is 4294967296; it must lie between 0 and"),
        (DATA + "train:\n  epochs:\n", r"train\.epochs has no value \(null\); give it one"),
        (DATA + "model: {extra: null}\n", r"model\.extra has no value"),
        (DATA + "train: {lr: 1}\ntrain: {lr: 2}\n", "train is written twice, in lines 5 and 6: keep one"),
        (DATA + "train:\n  lr: 1\n  epochs: 2\n  lr: 1\n", "lr is written twice, in lines 6 and 8"),
        (DATA + "split:\n  scheme: random\n", r"split\.scheme is 'random'; it must be one of paper, holdout, kfold"),
        (DATA + "train: 3\n", r"train is 3; it must be a section of lines KEY: VALUE$"),
        (DATA + "train: {epochs: true}\n", r"train\.epochs is True; it must be a whole number$"),
        (DATA + "train: {tensorboard: 1}\n", r"train\.tensorboard is 1; it must be true or false$"),
        (DATA + "train: {class_weights: [a]}\n", r"train\.class_weights is \['a'\]; it must be balanced, or a list"),
        (DATA + "train: {lr: .inf}\n", r"train\.lr is inf; it must be greater than 0 and 10 at most, a finite number$"),
        (
            DATA + "split: {val_share: .nan}\n",
            r"split\.val_share is nan; it must be greater than 0 and less than 1, a finite number$",
        ),
        (DATA + "split: {centre: 3}\n", r"split\.centre is 3; it must be text \(numbers in quotes\), or null$"),
        (DATA + "model: {width: 3.2}\n", r"model\.width is 3\.2; it must be a whole number, or null$"),
        (DATA + "model: {extra: 3}\n", r"model\.extra is 3; it must be a map$"),
        (DATA + "found: {in_dim: x}\n", r"found\.in_dim is 'x'; it must be a whole number$"),
        (
            DATA + "  event_map: {dead: yes}\n",
            r"data\.event_map is {'dead': True}; it must be a map .*, each value a whole",
        ),
        (DATA + "  unit: mm\n", r"data\.unit is 'mm'; it must be one of px, um, cell, or null$"),
        (DATA + "  sample_types: 01\n", r"data\.sample_types is 1; it must be a list"),
        (DATA.replace("h5", "[1]"), r"data\.features is \[1\]; it must be text \(numbers in quotes\), or a list"),
        (DATA + "split:\n  scheme: kfold\n  fold: 5\n", "fold 5 of 5 folds; folds are numbered from 0"),
        (DATA + "split:\n  scheme: file\n", r"name split\.file, or data\.split"),
        ("data:\n  table: a.csv\n", r"required: data\.features, data\.task"),
        ("train: {epochs: 3}\n", "required: data"),
        ("- 1\n", "holds no settings; it must have the sections data, split, model, train"),
        ("a: b: c\n", "is no valid YAML"),
    ],
)
def test_mistakes_are_named(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load_config(written(tmp_path, text))
    assert str(caught.value).startswith(str(tmp_path / "settings.yaml"))
    assert "\n" not in str(caught.value)


def test_a_wrong_type_in_an_override_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, DATA)
    with pytest.raises(UserError, match=r"train\.epochs is 'x+\.\.\.; it must be a whole number$") as caught:
        load_config(path, [f"train.epochs={'x' * 500}"])
    assert len(str(caught.value)) < 200 + len(str(tmp_path))
    config = load_config(path, ["train.lr=1e-4", "train.epochs='3'", "train.tensorboard='yes'"])  # text that is meant
    assert (config.train.lr, config.train.epochs, config.train.tensorboard) == (1e-4, 3, True)


def test_a_missing_file_lists_the_presets(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read the settings.*init NAME \(.*own_survival"):
        load_config(tmp_path / "none.yaml")


def test_settings_in_another_encoding_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(DATA, encoding="utf-16")
    with pytest.raises(UserError, match=r"cannot read the settings .*mine\.yaml: it is not UTF-8 text; for one"):
        load_config(tmp_path / "mine.yaml")


def test_paths_start_at_the_file_and_in_overrides_at_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, DATA)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_config(path).data.table == str(tmp_path / "cohort.csv")
    assert load_config(path, ["data.table=mine.csv"]).data.table == str(tmp_path / "elsewhere" / "mine.csv")


def test_overrides_are_read_as_yaml(tmp_path: Path) -> None:
    changes = [
        "train.lr=1e-3",
        "train.class_weights=[1, 2]",
        "model.extra.gate_options={init: xavier}",
        "train.patience=4",
    ]
    config = load_config(written(tmp_path, DATA), changes)
    assert (config.train.lr, config.train.class_weights, config.train.patience) == (1e-3, [1.0, 2.0], 4)
    assert config.model.arguments() == {"gate_options": {"init": "xavier"}}
    with pytest.raises(UserError, match=r"write SECTION\.KEY=VALUE"):
        load_config(written(tmp_path, DATA), ["train.epochs"])
    with pytest.raises(UserError, match=r"unknown key train\.epoch;"):
        load_config(written(tmp_path, DATA), ["train.epoch=3"])


def test_saved_settings_read_back_equal(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, DATA), ["data.event_map={dead: 1, alive: 0}", "train.lr=1e-5"])
    config.found = Found(1536, ["no", "yes"], [1.5, 2.5])
    save_config(tmp_path / "saved.yaml", config)
    assert load_config(tmp_path / "saved.yaml") == config


def test_null_and_repeated_keys_are_refused_in_overrides(tmp_path: Path) -> None:
    path = written(tmp_path, DATA + "train:\n  # epochs: 3\n")  # an empty section is none
    assert load_config(path).train.epochs == 20
    assert load_config(path, ["train.clip_norm=", "train.epochs=2"]).train.clip_norm is None
    for key in ("train.epochs", "train.seed", "split.scheme", "model.name", "data.table"):
        with pytest.raises(UserError, match=rf"{key} has no value \(null\)"):
            load_config(path, [f"{key}="])
    with pytest.raises(UserError, match=r"--set model\.extra=.*: a is written twice"):
        load_config(path, ["model.extra={a: 1, a: 2}"])


@pytest.mark.parametrize("name", ["vit4", "abmil", "dsmil", "transmil"])
def test_another_model_leaves_out_what_was_written_for_the_first(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, preset_text("own_classification"))
    with caplog.at_level(logging.WARNING):
        config = load_config(path, [f"model.name={name}"])
    assert resolved(config).model.name == name
    assert config.model.width == 384
    (message,) = caplog.messages
    assert "attention" in message
    assert f"{name} has no such setting" in message
    with pytest.raises(UserError, match=rf"model {name} has no setting attention"):  # asked for, not left behind
        resolved(load_config(path, [f"model.name={name}", "model.attention=softmax"]))


def test_a_file_with_settings_of_another_model_is_refused_with_the_way_out(tmp_path: Path) -> None:
    tree = yaml.safe_load(preset_text("own_classification"))
    tree["model"]["name"] = "abmil"
    path = written(tmp_path, yaml.safe_dump(tree))
    for overrides in ([], ["model.name=abmil"]):
        with pytest.raises(UserError, match=r"abmil has no setting .*: remove from the section model .* null"):
            resolved(load_config(path, overrides))


OUTSIDE = {
    "data.stride": ([0, -512, ".nan", ".inf"], "be greater than 0"),
    "data.max_patches": ([0, -1], "be 1 or more"),
    "split.seed": ([-1, 2**32], "lie between 0 and 4294967295"),
    "split.folds": ([1, 0], "be 2 or more"),
    "split.fold": ([-1], "be 0 or more"),
    "split.val_share": ([0, 1, -1, 5, ".nan"], "be greater than 0 and less than 1"),
    "split.test_share": ([-0.1, 1, ".inf"], "be 0 or more and less than 1"),
    "model.delta": ([0, -1, ".nan", ".inf"], "be greater than 0"),
    "model.gate_hidden": ([0], "be 1 or more"),
    "model.width": ([0, -8], "be 1 or more"),
    "model.depth": ([0], "be 1 or more"),
    "model.num_heads": ([0], "be 1 or more"),
    "model.num_landmarks": ([0], "be 1 or more"),
    "model.window": ([1, -3], "be 3 or more"),
    "model.drop_path_rate": ([-0.1, 1, ".nan"], "be 0 or more and less than 1"),
    "train.seed": ([-1], "lie between 0 and 4294967295"),
    "train.epochs": ([0], "be greater than 0"),
    "train.accumulate": ([0], "be greater than 0"),
    "train.lr": ([0, ".inf", ".nan"], "be greater than 0"),
    "train.gate_lr_scale": ([0, ".nan"], "be greater than 0"),
    "train.weight_decay": ([-1e-3, ".inf"], "be 0 or more"),
    "train.warmup_fraction": ([-0.1, 1.5], "lie between 0 and 1"),
    "train.clip_norm": ([0, ".inf"], "be greater than 0"),
    "train.class_weights": (["[1, .nan]", "[.inf, 1]"], "be a number, a finite number"),
    "train.num_bins": ([0], "be greater than 0"),
    "train.patience": ([0], "be greater than 0"),
    "train.devices": ([0], "be greater than 0"),
    "train.workers": ([-1], "be 0 or more"),
    "train.bootstrap": ([1], "be 2 or more"),
    "model.extra.pinv_iterations": ([10**20, -(10**20)], "be 1000000 at most in size"),
    "model.extra": (["{sigma: .nan}"], ".sigma is nan; it must be a finite number"),
}


@pytest.mark.parametrize(("key", "case"), OUTSIDE.items(), ids=list(OUTSIDE))
def test_m8_a_number_that_cannot_be_is_refused_with_its_key_and_range(
    key: str, case: tuple[list[object], str], tmp_path: Path
) -> None:
    values, words = case
    path = written(tmp_path, DATA)
    for value in values:
        with pytest.raises(UserError) as refused:
            load_config(path, [f"{key}={value}"])
        assert f"{key}" in str(refused.value)
        assert words in str(refused.value)
        assert "\n" not in str(refused.value)


HUGE = [key for key, allowed in RANGES.items() if key in OUTSIDE and key != "train.class_weights"]


@pytest.mark.parametrize("key", HUGE)
def test_a_number_beyond_all_sense_is_refused_with_its_key_and_range(key: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"{key}\b.* must (be|lie)") as refused:
        load_config(written(tmp_path, DATA), [f"{key}=99999999999999999999"])
    assert "\n" not in str(refused.value)


def test_m8_every_number_has_a_range() -> None:
    hints = get_type_hints(Config)
    numeric = {
        f"{section}.{field.name}"
        for section in ("data", "split", "model", "train")
        for field in fields(hints[section])
        if {int, float} & {hint := get_type_hints(hints[section])[field.name], *get_args(hint)}
    }
    assert numeric <= set(RANGES)
    assert set(RANGES) <= set(OUTSIDE) | {"found.in_dim", "found.bin_edges"}
