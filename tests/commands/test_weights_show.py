"""What a file is said to be, for each kind of file; damaged ones get one sentence."""

import argparse
import gzip
import json
import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from nnunet_gdla.commands import arguments_weights
from nnunet_gdla.commands.weights_kind import classify
from nnunet_gdla.commands.weights_show import describe
from nnunet_gdla.errors import UserError
from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.networks.weights import load_encoder_weights
from tests.commands.weights_cases import BAD_CHECKPOINTS, released, run_weights
from tests.golden_files import golden_json
from tests.networks.encoder_files import GOOD_FILES, encoder_state, features_name

NAMES = {
    "original": "its authors' names",
    "features only": "timm's feature extractor",
    "released network": "released names",
}


UNREADABLE = [
    case
    for case, (_, message) in BAD_CHECKPOINTS.items()
    if re.search("damaged|JSON|needs code|is empty|is text|does not exist|folder|page|git", message)
]


def shown(path: Path) -> dict[str, str]:
    return dict(describe(path))


def saved(path: Path, content: Any) -> Path:  # noqa: ANN401
    torch.save(content, path)
    return path


@pytest.mark.parametrize("kind", GOOD_FILES)
def test_encoders_are_told_by_their_names(kind: str, tmp_path: Path) -> None:
    lines = shown(saved(tmp_path / "file.pth", GOOD_FILES[kind](encoder_state())))
    assert NAMES.get(kind, "timm's names") in lines["kind"]
    if kind != "released network":
        assert lines["encoder"] == "pvt_v2_b0, complete"
        assert lines["input channels"] == "3"
        assert lines["use"].startswith("export NNUNET_GDLA_ENCODER_WEIGHTS=/")
    assert lines["not finite"] == "none"


def test_several_encoders_are_not_taken_for_one(tmp_path: Path) -> None:
    both = {f"{who}.{name}": tensor for who in ("student", "teacher") for name, tensor in encoder_state().items()}
    path = saved(tmp_path / "both.pth", both)
    assert shown(path)["kind"] == "tensors of an unknown network"
    with pytest.raises(ValueError, match=r"several encoders, under 'student\.', 'teacher\.'"):
        load_encoder_weights(PVTGDLA(3, 2, encoder="pvt_v2_b0"), path)


def test_show_says_of_a_prefix_what_is_left_out(tmp_path: Path) -> None:
    path = saved(tmp_path / "lightning.ckpt", GOOD_FILES["Lightning"](encoder_state()))
    kind = "PVTv2 encoder in timm's names, under 'state_dict', names begin with 'backbone.', 1 other tensor left out"
    assert shown(path)["kind"] == kind


def test_safetensors_and_other_types(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    state = {features_name(n): t.half() for n, t in encoder_state("pvt_v2_b1").items() if not n.startswith("head")}
    state["stages_0.norm.bias"][1] = torch.inf
    safetensors.torch.save_file(state, path)
    lines = shown(path)
    assert lines["encoder"] == "pvt_v2_b1, complete"
    assert lines["dtype"] == f"float16 ({len(state)})"
    assert lines["not finite"] == "1 tensor (stages_0.norm.bias)"
    del state["stages_0.norm.weight"], state["stages_1.blocks.0.norm1.bias"]
    safetensors.torch.save_file(state, path)
    assert "stages_0.norm.weight is missing" in shown(path)["encoder"]


@pytest.mark.parametrize(("decoder", "named"), [("gdla", "gdla"), ("diff", "diff"), ("self", "self or linear")])
def test_released_networks(decoder: str, named: str, tmp_path: Path) -> None:
    lines = shown(saved(tmp_path / "best.pth", {"model_state_dict": released(1, 3, decoder), "epoch": 149}))
    assert lines["kind"] == "PVT-GDLA network in the released names, under 'model_state_dict'"
    assert (lines["encoder"], lines["input channels"], lines["classes"]) == ("pvt_v2_b0", "1", "3")
    assert lines["decoder"].startswith(named)
    assert lines["epoch"] == "149"
    assert ("silu or sigmoid" in lines.get("gate", "")) == (decoder == "gdla")
    if decoder != "self":
        assert lines["heads"] == "1, 2, 5 at strides 4, 8, 16"
    assert "weights convert" in lines["use"]
    assert "does not fit" not in lines


@pytest.mark.parametrize("fault", ["missing", "shape", "not finite"])
def test_what_does_not_fit_gets_no_advice(fault: str, tmp_path: Path) -> None:
    for state, key in ((released(1, 3), "de1.norm1.weight"), (dict(encoder_state()), "norm1.weight")):
        key = next(name for name in state if name.endswith(key))
        assert "use" in shown(saved(tmp_path / "whole.pth", state))
        if fault == "missing":
            del state[key]
        else:
            state[key] = torch.zeros(3, 3) if fault == "shape" else torch.full_like(state[key], torch.nan)
        assert "use" not in shown(saved(tmp_path / "faulty.pth", state))


def test_the_advice_names_the_decoder_that_has_to_be_chosen(tmp_path: Path) -> None:
    for decoder, options in (("gdla", ""), ("diff", ""), ("linear", " --decoder self (or linear)")):
        path = saved(tmp_path / f"my {decoder}.pth", released(1, 3, decoder))
        assert shown(path)["use"] == f"nnunet-gdla weights convert '{path}' --out FOLDER{options}"


def test_one_file_that_cannot_be_read_does_not_end_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = saved(tmp_path / "good.pth", released(1, 3))
    assert run_weights("show", good, good) == 0
    assert "\n\nfile:" in capsys.readouterr().out
    assert run_weights("show", good, tmp_path / "missing.pth", good) == 1
    out, error = capsys.readouterr()
    assert out.count("PVT-GDLA network") == 2
    assert error == f"nnunet-gdla weights: {tmp_path / 'missing.pth'} does not exist\n"


@pytest.mark.parametrize("kind", ["npz", "npy", "zip", "pickle", "gzip"])
def test_whole_files_of_other_programs_are_not_called_damaged(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    with path.open("wb") as file:
        if kind == "npz":
            np.savez(file, a=np.zeros(3))
        elif kind == "npy":
            np.save(file, np.zeros(3))
        elif kind == "pickle":
            pickle.dump(np.zeros(3), file, protocol=2)
        elif kind == "gzip":
            file.write(gzip.compress(b"weights"))
        else:
            with zipfile.ZipFile(file, "w") as archive:
                archive.writestr("weights.txt", "none")
    for read in (lambda: shown(path), lambda: load_encoder_weights(PVTGDLA(1, 2, encoder="pvt_v2_b0"), path)):
        with pytest.raises(ValueError, match=r"file\.bin is an? ") as caught:
            read()
        assert "damaged" not in str(caught.value)


@pytest.mark.parametrize("old", [True, False])
def test_a_cut_file_of_pytorch_is_still_called_damaged(old: bool, tmp_path: Path) -> None:
    path = tmp_path / "file.pth"
    torch.save(released(1, 3), path, _use_new_zipfile_serialization=not old)
    path.write_bytes(path.read_bytes()[:100_000])
    with pytest.raises(UserError, match="damaged"):
        shown(path)


def test_the_parameters_are_counted_as_the_specification_counts_them(tmp_path: Path) -> None:
    for listing in golden_json("keys_pvtgdla_b2_synapse_in1_c9.json"):
        entries = json.loads(listing.read_text()).items()
        # One zero that all elements share: the file stays small.
        state = {
            name: torch.zeros((), dtype=getattr(torch, entry["dtype"])).expand(entry["shape"])
            for name, entry in entries
        }
        lines = shown(saved(tmp_path / "synapse.pth", {"model_state_dict": state}))
        assert lines["tensors"] == "427, 32,134,607 parameters"
        assert (lines["encoder"], lines["input channels"], lines["classes"]) == ("pvt_v2_b2", "1", "9")
        assert lines["dtype"] == "float32 (424), int64 (3)"


def nnunet_checkpoint(state: Mapping[str, torch.Tensor], architecture: dict[str, Any] | None) -> dict[str, Any]:
    configuration: dict[str, Any] = {"patch_size": [64, 64], "batch_size": 2}
    if architecture is not None:
        configuration["architecture"] = architecture
    plans = {"plans_name": "nnUNetPlans", "dataset_name": "Dataset850_Tiny", "configurations": {"2d": configuration}}
    return {
        "network_weights": dict(state),
        "trainer_name": "nnUNetTrainerGDLA_B0",
        "current_epoch": 7,
        "_best_ema": np.float32(0.5),
        "logging": {"mean_fg_dice": [np.float32(0.5), np.float64(0.25)], "counts": np.arange(3)},
        "init_args": {
            "plans": plans,
            "configuration": "2d",
            "fold": 0,
            "dataset_json": {},
            "device": torch.device("cuda", 0),
        },
    }


def ours(**arguments: Any) -> dict[str, Any]:  # noqa: ANN401
    arguments = {"encoder": "pvt_v2_b0", **arguments}
    return {"network_class_name": "nnunet_gdla.networks.PVTGDLA", "arch_kwargs": arguments, "_kw_requires_import": []}


def test_nnunet_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = PVTGDLA(2, 4, encoder="pvt_v2_b0").state_dict()
    path = saved(tmp_path / "checkpoint_best.pth", nnunet_checkpoint(state, ours(gate="sigmoid")))
    lines = shown(path)
    assert lines["kind"] == "nnU-Net checkpoint of a PVT-GDLA network"
    assert (lines["trainer"], lines["epochs"]) == ("nnUNetTrainerGDLA_B0", "7")
    assert lines["plans"] == "nnUNetPlans of Dataset850_Tiny"
    assert lines["gate"] == "sigmoid (recorded in the file)"
    assert (lines["input channels"], lines["classes"]) == ("2", "4")
    stock = shown(saved(path, nnunet_checkpoint(state, {"network_class_name": "a.PlainConvUNet", "arch_kwargs": {}})))
    assert stock["gate"] == "silu (its plans do not say)"
    other = shown(saved(path, nnunet_checkpoint({"encoder.stages.0.weight": torch.zeros(2)}, None)))
    assert other["kind"] == "nnU-Net checkpoint of another network"
    assert run_weights("show", path, path) == 0
    assert capsys.readouterr().out.count("kind:") == 2


def test_a_gate_that_the_plans_beside_contradict_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = nnunet_checkpoint(PVTGDLA(1, 2, encoder="pvt_v2_b0").state_dict(), ours(gate="sigmoid"))
    (tmp_path / "fold_0").mkdir()
    path = saved(tmp_path / "fold_0" / "checkpoint_final.pth", checkpoint)
    plans = checkpoint["init_args"]["plans"]
    (tmp_path / "plans.json").write_text(json.dumps(plans))
    assert run_weights("show", path) == 0
    assert "WARN" not in capsys.readouterr().out
    (tmp_path / "plans.json").write_text(json.dumps(plans).replace("sigmoid", "silu"))
    assert run_weights("show", path) == 0
    out = capsys.readouterr().out
    assert "WARN  gate and plans: the weights were made with gate sigmoid" in out
    assert 'fix: write "gate": "sigmoid" into arch_kwargs there' in out


def test_json_files(tmp_path: Path) -> None:
    plans = nnunet_checkpoint({}, ours(gate="silu"))["init_args"]["plans"]
    (tmp_path / "a.json").write_text(json.dumps(plans))
    assert shown(tmp_path / "a.json")["2d"] == "PVTGDLA, encoder pvt_v2_b0, gate silu, patch [64, 64], batch 2"
    (tmp_path / "b.json").write_text(json.dumps({"channel_names": {"0": "US"}, "labels": {"background": 0, "x": 1}}))
    assert shown(tmp_path / "b.json")["labels"] == "background 0, x 1"
    (tmp_path / "c.json").write_text("[1]")
    assert shown(tmp_path / "c.json")["kind"] == "neither weights nor plans, it holds a list"


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_cannot_be_read_is_one_sentence(case: str, tmp_path: Path) -> None:
    write, message = BAD_CHECKPOINTS[case]
    path = tmp_path / "file.pth"
    write(path)
    with pytest.raises(UserError, match=message) as caught:
        shown(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert not path.with_suffix(".trap").exists()


def test_faults_of_a_released_network_are_shown(tmp_path: Path) -> None:
    tensors = released()
    tensors["de2.mlp.pwc1.bias"][3] = torch.nan
    del tensors["resblk.norm1.bias"]
    lines = shown(saved(tmp_path / "file.pth", tensors))
    assert lines["not finite"] == "1 tensor (de2.mlp.pwc1.bias)"
    assert lines["does not fit"].startswith("1 missing (stem.norm1.bias); 1 not finite (decoder.blocks.1.ffn")
    del tensors["head1.weight"]
    assert "is missing" in shown(saved(tmp_path / "file.pth", tensors))["network"]


def parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [parser, *(sub for action in actions for sub in action.choices.values())]


def test_every_example_in_the_help_can_be_parsed() -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    arguments_weights.weights(parser)
    texts = [arguments_weights.DETAILS, *(sub.description or "" for sub in parsers(parser))]
    shown_lines = [line for text in texts for line in text.splitlines() if line.startswith("  nnunet-gdla weights")]
    lines = [line.split()[2:] for line in shown_lines]
    assert len(lines) >= 12
    for line in lines:
        args = parser.parse_args(line)
        named = args.files if args.action == "show" else [args.file] if args.action == "convert" else []
        assert all(name.endswith((".pth", ".safetensors")) for name in named), line


@pytest.mark.parametrize(
    ("content", "way"),
    [
        ({"a": {"b": [{"state_dict": {"w": torch.ones(2)}}]}}, "'a' / 'b' / '0' / 'state_dict'"),
        ({"models": [{"w": torch.ones(2)}]}, "'models' / '0'"),
        ([torch.ones(2)], "a list"),
        ({"x": {"y": {"z": {"w": torch.ones(2)}}}, "n": {"m": {}}}, "'x' / 'y' / 'z'"),
    ],
)
def test_tensors_that_are_nested_are_told(content: object, way: str) -> None:
    assert f"its tensors are nested, the first in {way};" in classify(content).note
    assert classify({"a": [{"b": 1}]}).note == "it holds no tensors"
