"""Which PVTGDLA a set of tensors belongs to: what their names and shapes tell, and what they cannot tell."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nnunet_gdla.networks.decoder import DEFAULT_ROPE
from nnunet_gdla.networks.misfits import state_misfits
from nnunet_gdla.networks.pvt_gdla import PVTGDLA

__all__ = ["Layout", "encoder_of_shapes", "misfits", "read_layout", "with_choices"]

# Channels and blocks of the four stages; the tensors' own widths are compared with the network's later.
ENCODER_SHAPES: dict[tuple[tuple[int, ...], tuple[int, ...]], str] = {
    ((32, 64, 160, 256), (2, 2, 2, 2)): "pvt_v2_b0",
    ((64, 128, 320, 512), (2, 2, 2, 2)): "pvt_v2_b1",
    ((64, 128, 320, 512), (3, 4, 6, 3)): "pvt_v2_b2",
    ((64, 128, 320, 512), (3, 4, 18, 3)): "pvt_v2_b3",
    ((64, 128, 320, 512), (3, 8, 27, 3)): "pvt_v2_b4",
    ((64, 128, 320, 512), (3, 6, 40, 3)): "pvt_v2_b5",
}
HEADS_AT_STRIDES = (2, 1, 0)  # blocks of the decoder from stride 4 to 16


@dataclass(frozen=True)
class Layout:
    """What tensors tell of their network.

    Args:
        input_channels: Image channels.
        num_classes: Output channels.
        arguments: Keyword arguments of `PVTGDLA` that the shapes fix.
        untold: Names of arguments that they leave open and that change the output.
    """

    input_channels: int
    num_classes: int
    arguments: dict[str, Any]
    untold: tuple[str, ...]


def read_layout(state: Mapping[str, Tensor]) -> Layout:
    """Read a network's arguments from its tensors.

    Args:
        state: Tensors under the names of `PVTGDLA`, see `convert_released_state_dict`.

    Returns:
        The layout. Softmax and linear attention have the same tensors: "decoder" is then among the untold ones.

    Raises:
        ValueError: If a tensor that decides is missing or has another number of axes; the message names it.
    """
    encoder = encoder_of_shapes(
        {name.removeprefix("encoder."): tensor for name, tensor in state.items() if name.startswith("encoder.")}
    )
    shape = _Shapes(state)
    channels, classes = shape("stem.conv1.weight", 4)[1], shape("decoder.seg_layers.0.weight", 4)[0]
    upsample = shape("decoder.upsamples.0.weight", 4)[2]
    attention = "decoder.blocks.0.attention."
    common = {"encoder": encoder, "upsample_kernel": upsample, **_feed_forward(shape)}
    if f"{attention}qkvg.weight" in state:
        arguments, untold = _gdla(shape)
    elif f"{attention}lambda_q1" in state:
        arguments, untold = {"decoder": "diff", "num_heads": _heads(shape, "norm.weight")}, ["rope"]
    elif f"{attention}qkv.weight" in state:
        arguments, untold = {}, ["decoder", "num_heads", "rope"]
    else:
        raise ValueError(f"no tensor of an attention ({attention}qkvg.weight or {attention}qkv.weight) is in it")
    bias = any(f"{attention}{name}.bias" in state for name in ("qkvg", "qkv"))
    return Layout(channels, classes, {**common, **arguments, "qkv_bias": bias}, tuple(untold))


def with_choices(layout: Layout, **choices: Any) -> dict[str, Any]:  # noqa: ANN401
    """Complete a layout's arguments by what the user knows.

    Args:
        layout: What the tensors tell.
        **choices: Arguments of `PVTGDLA`; None stands for "not said". What is not said is left out, so that the
            network's default holds. A `gate` is for decoder "gdla" only.

    Returns:
        Keyword arguments for `PVTGDLA`.

    Raises:
        ValueError: If a choice contradicts the tensors, or the decoder is open and not chosen.
    """
    arguments = dict(layout.arguments)
    for name, value in choices.items():
        if value is None:
            continue
        if name in arguments and arguments[name] != value:
            raise ValueError(f"its tensors say {name} {arguments[name]!r}, not {value!r}")
        arguments[name] = value
    decoder = arguments.get("decoder")
    if "decoder" in layout.untold and decoder not in ("self", "linear"):
        said = "say which one it is" if decoder is None else f"not {decoder!r}"
        raise ValueError(f"its tensors fit decoder 'self' and decoder 'linear' alike: {said}")
    if decoder != "gdla":
        if "gate" in arguments:
            raise ValueError(f"decoder {decoder!r} has no gate")
        arguments.setdefault("rope", DEFAULT_ROPE[str(decoder)])
    elif "rope" in arguments:
        raise ValueError("decoder 'gdla' has no rotary positions")
    return arguments


def misfits(state: Mapping[str, Tensor], layout: Layout, arguments: Mapping[str, Any]) -> list[str]:
    """Compare tensors with those of the network that the arguments make.

    Returns:
        What `state_misfits` returns.

    Raises:
        ValueError: If `PVTGDLA` refuses the arguments.
    """
    with torch.device("meta"):
        own = PVTGDLA(layout.input_channels, layout.num_classes, **arguments).state_dict()
    return state_misfits(state, own)


def encoder_of_shapes(state: Mapping[str, Tensor]) -> str:
    """Name of the PVTv2 that tensors in the feature extractor's names belong to.

    Raises:
        ValueError: If widths and numbers of blocks are those of none.
    """
    shape = _Shapes(state)
    widths = tuple(shape(f"stages_{stage}.norm.weight", 1)[0] for stage in range(4))
    blocks = tuple(
        len({match[1] for name in state if (match := re.match(rf"stages_{stage}\.blocks\.(\d+)\.", name))})
        for stage in range(4)
    )
    name = ENCODER_SHAPES.get((widths, blocks))
    if name is None:
        raise ValueError(f"an encoder with channels {list(widths)} and {list(blocks)} blocks is no PVTv2 of b0 to b5")
    return name


class _Shapes:
    """Looks up shapes, and says which tensor is not as it has to be."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self.state = state

    def __call__(self, name: str, axes: int) -> tuple[int, ...]:
        if name not in self.state:
            raise ValueError(f"the tensor {name} is missing")
        shape = tuple(self.state[name].shape)
        if len(shape) != axes or 0 in shape:
            raise ValueError(f"the tensor {name} has shape {list(shape)}, not {axes} axes")
        return shape


def _feed_forward(shape: _Shapes) -> dict[str, Any]:
    prefix = "decoder.blocks.0.ffn."
    if f"{prefix}project.weight" in shape.state:
        dim, hidden = shape(f"{prefix}project.weight", 2)
        return {"ffn": "mix", "mlp_ratio": hidden / dim}
    dim, hidden = shape(f"{prefix}fc2.weight", 2)
    doubled = shape(f"{prefix}fc1.weight", 2)[0] == 2 * hidden
    return {"ffn": "swiglu" if doubled else "mlp", "mlp_ratio": hidden / dim}


def _gdla(shape: _Shapes) -> tuple[dict[str, Any], list[str]]:
    prefix = "decoder.blocks.0.attention."
    width, dim = shape(f"{prefix}qkvg.weight", 2)
    gated = width != 3 * dim
    differential = f"{prefix}lambda_global" in shape.state
    arguments: dict[str, Any] = {
        "decoder": "gdla",
        "num_heads": _heads(shape, "norm.weight"),
        "differential": differential,
        "pre_conv": "decoder.blocks.0.pre_conv.weight" in shape.state,
        "local_mixing": None,
    }
    if f"{prefix}local_pointwise.weight" in shape.state:
        dense = shape(f"{prefix}local_pointwise.weight", 4)[1] == width
        arguments["local_mixing"] = "joint" if dense else "separate"
        arguments["local_kernel"] = shape(f"{prefix}local_depthwise.weight", 4)[2]
    if not gated:
        arguments["gate"] = None
    return arguments, ["gate"] if gated else []


def _heads(shape: _Shapes, norm: str) -> list[int]:
    """Heads at strides 4, 8, 16: the normalisation is as wide as one head."""
    heads = []
    for block in HEADS_AT_STRIDES:
        dim = shape(f"decoder.blocks.{block}.norm1.weight", 1)[0]
        heads.append(max(1, dim // shape(f"decoder.blocks.{block}.attention.{norm}", 1)[0]))
    return heads
