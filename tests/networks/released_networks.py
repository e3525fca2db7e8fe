"""Whole networks of the reference run: built from a golden file, filled through the converter of released names."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.networks.weights import convert_released_state_dict
from tests.golden_files import GoldenFile

__all__ = ["COMPARATORS", "build_network", "encoder_source", "full_size", "gradients_in_our_names"]

COMPARATORS = {"PVTDA": "diff", "PVTLA": "linear", "PVTSA": "self"}
STEM = "backbone.patch_embed1.proj.weight"


def encoder_source(golden: GoldenFile) -> GoldenFile:
    """Return the file that holds the encoder's weights and the input: the file itself, or the one it names."""
    name = golden.meta.get("encoder_from")
    return golden if name is None else GoldenFile(golden.path.with_name(f"{name}.npz"))


def build_network(golden: GoldenFile, *, gate: Any = "silu", deep_supervision: bool = True) -> PVTGDLA:  # noqa: ANN401
    """Build the file's network and load every tensor of it, strictly."""
    meta, source = golden.meta, encoder_source(golden)
    decoder = {"PVTGDLA": "gdla", **COMPARATORS}[meta["kind"]]
    network = PVTGDLA(
        meta["in_chs"],
        meta["n_classes"],
        encoder=source.meta["encoder"],
        decoder=decoder,  # type: ignore[arg-type]
        gate=gate,
        num_heads=meta["heads"],
        rope=meta.get("use_rope"),
        drop_path_rate=source.meta["drop_path"],
        deep_supervision=deep_supervision,
    )
    released = golden.group("param.")
    if source is not golden:
        released |= {name: t for name, t in source.group("param.").items() if name.startswith("backbone.")}
    network.load_state_dict(convert_released_state_dict(released), strict=True)
    return network


def full_size(outputs: list[Tensor]) -> dict[str, Tensor]:
    """Name our outputs as the reference run does, and enlarge the auxiliary ones as it does."""
    scales = (1, 8, 16, 32)
    return {
        f"head{i + 1}": F.interpolate(y, scale_factor=scale, mode="bilinear", align_corners=False) if i else y
        for i, (y, scale) in enumerate(zip(outputs, scales, strict=True))
    }


def gradients_in_our_names(gradients: Mapping[str, Tensor], input_channels: int) -> dict[str, Tensor]:
    """Rename gradients as the converter renames the parameters.

    The reference repeats a one-channel image three times: its stem has three equal gradients, each that of our sum.
    """
    gradients = dict(gradients)
    if STEM in gradients and input_channels == 1:
        one, *others = gradients[STEM].split(1, dim=1)
        assert all(torch.allclose(one, other, rtol=1e-4, atol=1e-6 * one.abs().max().item()) for other in others)
        gradients[STEM] = one
    return convert_released_state_dict(gradients)
