"""Single modules of the reference run, built from a golden file and filled through the converter of released names."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nnunet_gdla.layers import (
    AttentionBlock,
    DifferentialAttention,
    GatedDifferentialLinearAttention,
    GDLABlock,
    LinearAttention,
    MixFFN,
    Mlp,
    SoftmaxAttention,
    SwiGLU,
)
from nnunet_gdla.networks.decoder import Decoder
from nnunet_gdla.networks.stem import ResidualStem
from nnunet_gdla.networks.weights import convert_released_state_dict
from tests.golden_files import GoldenFile

__all__ = ["LAYER_KINDS", "build_layer", "in_our_names", "load"]

# In a released checkpoint a module stands under a prefix, which tells what its short names mean.
PREFIXES = {
    "GatedDiffLinearAttn": ("attn.", "attention."),
    "MultiHeadDiffAttn": ("attn.", "attention."),
    "MultiHeadLinearAttn": ("attn.", "attention."),
    "MultiHeadSelfAttn": ("attn.", "attention."),
    "GMLP": ("mlp.", "ffn."),
    "SwiGLU": ("mlp.", "ffn."),
    "MLP": ("mlp.", "ffn."),
    "GDLAM": ("de1.", "decoder.blocks.0."),
    "MHDA": ("de1.", "decoder.blocks.0."),
    "MHLA": ("de1.", "decoder.blocks.0."),
    "MHSA": ("de1.", "decoder.blocks.0."),
    "ResBlk": ("resblk.", "stem."),
    "Upsample": ("up1.", "decoder.upsamples.0."),
}
LAYER_KINDS = tuple(PREFIXES)


def in_our_names(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of one module (parameters, or gradients of them) as `convert_released_state_dict` does."""
    theirs, ours = PREFIXES[kind]
    converted = convert_released_state_dict({theirs + name: tensor for name, tensor in tensors.items()})
    assert all(name.startswith(ours) for name in converted), sorted(converted)
    return {name.removeprefix(ours): tensor for name, tensor in converted.items()}


def _attention_block(kind: type[nn.Module], meta: Mapping[str, Any], **options: Any) -> nn.Module:  # noqa: ANN401
    ffn: Literal["swiglu", "mlp"] = "swiglu" if meta["ffn"] == "SwiGLU" else "mlp"
    attention = kind(meta["dim"], meta["heads"], rope=meta["rope"], **options)
    return AttentionBlock(meta["dim"], attention, ffn=ffn)


def build_layer(golden: GoldenFile) -> nn.Module:
    """Build our module for a file: sizes and switches from `meta`, the rest from the shapes of its parameters."""
    meta, param = golden.meta, golden.group("param.")
    kind = meta["kind"]
    bias = {"qkv_bias": meta.get("qkv_bias", True)}
    if kind == "Upsample":
        channels = (1, 1, meta["out_chs"], meta["in_chs"])
        blocks = [nn.Identity(), nn.Identity(), nn.Identity()]
        return Decoder(channels, blocks, 1, upsample_kernel=meta["kernel"], deep_supervision=False).upsamples[0]
    builders: dict[str, Callable[[], nn.Module]] = {
        "GatedDiffLinearAttn": lambda: GatedDifferentialLinearAttention(
            meta["dim"], meta["heads"], gate=meta["gate"], local_kernel=param["dwc.weight"].shape[-1], **bias
        ),
        "MultiHeadDiffAttn": lambda: DifferentialAttention(
            meta["dim"], meta["heads"], depth=meta["depth"], rope=meta["rope"], **bias
        ),
        "MultiHeadLinearAttn": lambda: LinearAttention(meta["dim"], meta["heads"], rope=meta["rope"], **bias),
        "MultiHeadSelfAttn": lambda: SoftmaxAttention(meta["dim"], meta["heads"], rope=meta["rope"], **bias),
        "GMLP": lambda: MixFFN(meta["dim"], meta["hidden"]),
        "SwiGLU": lambda: SwiGLU(meta["dim"], meta["hidden"]),
        "MLP": lambda: Mlp(meta["dim"], meta["hidden"]),
        "GDLAM": lambda: GDLABlock(
            meta["dim"],
            meta["heads"],
            gate=meta["gate"],
            local_kernel=param["attn.dwc.weight"].shape[-1],
            mlp_ratio=meta["hidden_ratio"],
        ),
        "MHDA": lambda: _attention_block(DifferentialAttention, meta, depth=meta["depth"]),
        "MHLA": lambda: _attention_block(LinearAttention, meta),
        "MHSA": lambda: _attention_block(SoftmaxAttention, meta),
        "ResBlk": lambda: ResidualStem(meta["in_chs"], meta["out_chs"]),
    }
    return builders[kind]()


def load(module: nn.Module, golden: GoldenFile) -> nn.Module:
    """Fill the module with the file's parameters, every one of them, and set its mode."""
    module.load_state_dict(in_our_names(golden.meta["kind"], golden.group("param.")), strict=True)
    return module.train(golden.meta["train"]).to(torch.float32)
