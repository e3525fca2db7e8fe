"""Names of the authors' released checkpoints and of PVTv2 files, in ours."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from timm.models import adapt_input_conv
from torch import Tensor

__all__ = ["adapt_first_convolution", "convert_released_state_dict", "encoder_key", "strip_wrapping_prefix"]

_WRAPPERS = ("module", "_orig_mod", "model", "net", "network")
# Applied in this order to every name.
_DECODER_RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^up1\.up\.", "decoder.upsamples.0."),
        (r"^up2\.up\.", "decoder.upsamples.1."),
        (r"^up3\.up\.", "decoder.upsamples.2."),
        (r"^de1\.", "decoder.blocks.0."),
        (r"^de2\.", "decoder.blocks.1."),
        (r"^de3\.", "decoder.blocks.2."),
        (r"^resblk\.", "stem."),
        (r"^head([1-4])\.", lambda match: f"decoder.seg_layers.{int(match[1]) - 1}."),
        (r"(^|\.)attn\.", r"\1attention."),
        (r"(^|\.)attention\.ln\.", r"\1attention.norm."),
        (r"(^|\.)attention\.subln\.", r"\1attention.norm."),
        (r"(^|\.)attention\.dwc\.", r"\1attention.local_depthwise."),
        (r"(^|\.)attention\.pwc\.", r"\1attention.local_pointwise."),
        (r"(^|\.)attention\.lambda_scale_main$", r"\1attention.lambda_global"),
        (r"(^|\.)attention\.lambda_scale_aux$", r"\1attention.lambda_local"),
        (r"(^|\.)mlp\.", r"\1ffn."),
        (r"(^|\.)ffn\.pwc1\.", r"\1ffn.expand."),
        (r"(^|\.)ffn\.dwc\.", r"\1ffn.depthwise."),
        (r"(^|\.)ffn\.pwc2\.", r"\1ffn.project."),
        (r"(^|\.)dwc\.", r"\1pre_conv."),
    )
)


def encoder_key(name: str) -> str:
    """Name of a PVTv2 tensor (original, timm's or feature-extractor form) in the encoder of our network."""
    name = re.sub(r"^patch_embed1\.", "patch_embed.", name)
    name = re.sub(r"^patch_embed([2-4])\.", lambda match: f"stages_{int(match[1]) - 1}.downsample.", name)
    name = re.sub(r"^block([1-4])\.", lambda match: f"stages_{int(match[1]) - 1}.blocks.", name)
    name = re.sub(r"^norm([1-4])\.", lambda match: f"stages_{int(match[1]) - 1}.norm.", name)
    name = re.sub(r"^stages\.(\d)\.", r"stages_\1.", name)
    return name.replace(".dwconv.dwconv.", ".dwconv.")


def strip_wrapping_prefix(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Drop the prefixes that DataParallel, torch.compile and a model inside another one put before every name."""
    while state and (first := next(iter(state)).split(".")[0]) in _WRAPPERS:
        if not all(name.startswith(f"{first}.") for name in state):
            break
        state = {name.removeprefix(f"{first}."): tensor for name, tensor in state.items()}
    return dict(state)


def adapt_first_convolution(weight: Tensor, input_channels: int) -> Tensor:
    """Fit a first convolution (out, 3, kh, kw) to another number of input channels.

    One channel: the three filters summed, which equals repeating the image three times; other numbers: timm's rule
    (filters repeated, then scaled by 3 / channels). A convolution that fits already is returned as it is.
    """
    if weight.shape[1] == input_channels:
        return weight
    return adapt_input_conv(input_channels, weight)


def convert_released_state_dict(state_dict: Mapping[str, Any]) -> dict[str, Tensor]:
    """Map the authors' released checkpoint to the names and shapes of `PVTGDLA`.

    Args:
        state_dict: The released tensors by name, or a checkpoint that holds them under `model_state_dict`.

    Returns:
        Tensors for `PVTGDLA.load_state_dict`. A three-channel encoder stem of a model for one channel, which saw its
        image repeated, is summed over its input channels.
    """
    inner = state_dict.get("model_state_dict", state_dict)
    assert isinstance(inner, Mapping)  # a tensor cannot bear the name of the wrapper
    state = strip_wrapping_prefix(inner)
    stem = state.get("resblk.conv1.weight")
    input_channels = stem.shape[1] if stem is not None and stem.ndim == 4 else None
    converted = {}
    for name, tensor in state.items():
        if name.startswith("backbone."):
            new_name = "encoder." + encoder_key(name.removeprefix("backbone."))
            # What is neither of 3 channels nor fits stays as it is, for whoever loads it to refuse.
            takes_rgb = new_name == "encoder.patch_embed.proj.weight" and tensor.ndim == 4 and tensor.shape[1] == 3
            if takes_rgb and input_channels:
                tensor = adapt_first_convolution(tensor, input_channels)
        else:
            new_name = _decoder_key(name)
        converted[new_name] = _as_linear(new_name, tensor)
    return converted


def _decoder_key(name: str) -> str:
    for pattern, replacement in _DECODER_RULES:
        name = pattern.sub(replacement, name)
    return name


def _as_linear(name: str, tensor: Tensor) -> Tensor:
    """Mix-FFN's 1x1 convolutions are Linear layers here."""
    if re.search(r"(^|\.)ffn\.(expand|project)\.weight$", name) and tensor.ndim == 4:
        return torch.flatten(tensor, 1)
    return tensor
