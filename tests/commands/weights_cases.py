"""Released checkpoints made of golden networks and of our own, good and damaged, and the command on them."""

import argparse
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nnunet_gdla.commands import arguments_weights, weights
from nnunet_gdla.networks import PVTGDLA
from tests.golden_files import GoldenFile
from tests.networks.encoder_files import original_name
from tests.networks.released_networks import COMPARATORS, encoder_source

__all__ = ["BAD_CHECKPOINTS", "options_of", "released", "released_golden", "run_weights"]

# Our names to the released ones, as the key listings have them.
_NAMES = (
    ("decoder.upsamples.0.", "up1.up."),
    ("decoder.upsamples.1.", "up2.up."),
    ("decoder.upsamples.2.", "up3.up."),
    ("decoder.blocks.0.", "de1."),
    ("decoder.blocks.1.", "de2."),
    ("decoder.blocks.2.", "de3."),
    ("decoder.seg_layers.0.", "head1."),
    ("decoder.seg_layers.1.", "head2."),
    ("decoder.seg_layers.2.", "head3."),
    ("decoder.seg_layers.3.", "head4."),
    ("stem.", "resblk."),
    (".pre_conv.", ".dwc."),
    (".attention.", ".attn."),
    (".local_depthwise.", ".dwc."),
    (".local_pointwise.", ".pwc."),
    (".lambda_global", ".lambda_scale_main"),
    (".lambda_local", ".lambda_scale_aux"),
    (".ffn.expand.", ".mlp.pwc1."),
    (".ffn.depthwise.", ".mlp.dwc."),
    (".ffn.project.", ".mlp.pwc2."),
    (".ffn.", ".mlp."),
)


def run_weights(*argv: str | Path) -> int:
    """Run `nnunet-gdla weights` with these arguments."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    arguments_weights.weights(parser)
    return weights.run(parser.parse_args([str(word) for word in argv]))


def released_golden(golden: GoldenFile) -> dict[str, Any]:
    """Return a golden network as the authors' released files hold one."""
    tensors = golden.group("param.")
    source = encoder_source(golden)
    if source is not golden:
        tensors |= {name: t for name, t in source.group("param.").items() if name.startswith("backbone.")}
    return {"model_state_dict": tensors, "epoch": 149}


def options_of(golden: GoldenFile) -> list[str]:
    """Return the options that a golden network's tensors leave open."""
    kind = golden.meta["kind"]
    if kind == "PVTGDLA":
        return []
    options = ["--rope", "on" if golden.meta["use_rope"] else "off"]
    if COMPARATORS[kind] != "diff":
        options += ["--decoder", COMPARATORS[kind], "--num-heads", *map(str, golden.meta["heads"])]
    return options


@functools.cache
def _own(channels: int, classes: int, decoder: Any) -> Mapping[str, Tensor]:  # noqa: ANN401
    torch.manual_seed(3)
    return PVTGDLA(channels, classes, encoder="pvt_v2_b0", decoder=decoder).state_dict()


def released(channels: int = 1, classes: int = 3, decoder: str = "gdla") -> dict[str, Tensor]:
    """Return a small network with random weights under the released names, its encoder for RGB as theirs are."""
    tensors = {}
    for name, tensor in _own(channels, classes, decoder).items():
        if name.startswith("encoder."):
            timm_name = name.removeprefix("encoder.").replace("stages_", "stages.")
            new = "backbone." + original_name(timm_name)
        else:
            new = functools.reduce(lambda key, pair: key.replace(*pair), _NAMES, name)
            new = new.replace(".attn.norm.", ".attn.ln." if decoder == "gdla" else ".attn.subln.")
        if new.endswith((".pwc1.weight", ".pwc2.weight")):
            tensor = tensor[..., None, None]
        tensors[new] = tensor.clone()
    stem = tensors["backbone.patch_embed1.proj.weight"]
    if channels == 1:
        tensors["backbone.patch_embed1.proj.weight"] = stem.repeat(1, 3, 1, 1) / 3
    return tensors


class _Trap:
    """An object whose unpickling would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def _changed(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        tensors = released()
        change(tensors)
        torch.save({"model_state_dict": tensors}, path)

    return write


def _truncated(path: Path) -> None:
    torch.save({"model_state_dict": released()}, path)
    path.write_bytes(path.read_bytes()[:100_000])


def _old_format(path: Path) -> None:
    torch.save({"model_state_dict": released()}, path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes()[:100_000])


NORM = "backbone.norm2.weight"
# how the file is written, and what the sentence must say
BAD_CHECKPOINTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda path: None, "does not exist"),
    "a folder": (lambda path: path.mkdir(), "is a folder"),
    "empty": (lambda path: path.write_bytes(b""), "is empty"),
    "text": (lambda path: path.write_text("weights are here: see the wiki\n"), "is text"),
    "web page": (lambda path: path.write_text("<!doctype html><html>404</html>"), "web page"),
    "LFS pointer": (lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\n"), "git lfs pull"),
    "broken JSON": (lambda path: path.write_text("{"), "no JSON"),
    "noise": (lambda path: path.write_bytes(bytes(range(256)) * 40), "damaged"),
    "truncated": (_truncated, "damaged"),
    "truncated, old format": (_old_format, "damaged"),
    "truncated safetensors": (lambda path: path.write_bytes(b'\x10\0\0\0\0\0\0\0{"a":'), "damaged"),
    "code": (lambda path: torch.save({"model": _Trap(path.with_suffix(".trap"))}, path), "needs code"),
    "a pickled network": (lambda path: torch.save(torch.nn.Linear(2, 2), path), "needs code"),
    "a list": (lambda path: torch.save([torch.zeros(2)], path), "holds a list|neither weights"),
    "no tensors": (lambda path: torch.save({"epoch": 3}, path), "neither weights"),
    "another network": (lambda path: torch.save({"layer.weight": torch.zeros(2, 2)}, path), "unknown network"),
    "no stem": (_changed(lambda t: t.pop("resblk.conv1.weight")), r"stem\.conv1\.weight is missing"),
    "no heads": (
        _changed(lambda t: [t.pop(n) for n in list(t) if n.startswith("head")]),
        r"\.0\.weight is missing",
    ),
    "no attention": (_changed(lambda t: [t.pop(n) for n in list(t) if ".attn.qkvg" in n]), "attention"),
    "no encoder stage": (_changed(lambda t: [t.pop(n) for n in list(t) if n.startswith("backbone.norm4")]), "missing"),
    "a tensor missing": (_changed(lambda t: t.pop("backbone.block2.0.norm1.bias")), "1 missing"),
    "a tensor too many": (_changed(lambda t: t.update({"de1.extra": torch.zeros(2)})), r"1 unknown \(decoder\.blocks"),
    "another shape": (
        _changed(lambda t: t.update({"head2.bias": torch.zeros(7)})),
        r"1 of another shape \(dec",
    ),
    "flat stem": (_changed(lambda t: t.update({"resblk.conv1.weight": torch.zeros(9)})), "not 4 axes"),
    "flat encoder stem": (
        _changed(lambda t: t.update({"backbone.patch_embed1.proj.weight": torch.zeros(9)})),
        "of another shape",
    ),
    "NaN": (_changed(lambda t: t[NORM].fill_(torch.nan)), r"1 not finite \(encoder\.stages_1\.norm\.weight\)"),
    "one infinity": (_changed(lambda t: t["de3.attn.qkvg.bias"][:1].fill_(torch.inf)), "1 not finite"),
}
