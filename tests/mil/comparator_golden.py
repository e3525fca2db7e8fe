"""The comparators with the sizes and weights of a golden file."""

from typing import Any

import torch
from torch import Tensor, nn

from nnunet_gdla.mil.models import ABMIL, DSMIL, GridViT, TransMIL, ViT4
from nnunet_gdla.mil.models.slide_attention import SlideAttention
from tests.mil.slide_golden import BLOCK, GATE, MODEL, attention_names, load_golden
from tests.srp_golden import SrpFile

__all__ = ["abmil", "dense_attention", "dsmil", "grid_vit", "transmil", "vit4"]


def _linear_layers(**names: str) -> dict[str, str]:
    pairs = [(ours.replace("__", "."), theirs) for ours, theirs in names.items()]
    return {f"{ours}.{kind}": f"{theirs}_{kind[0]}" for ours, theirs in pairs for kind in ("weight", "bias")}


def _sizes(golden: SrpFile, embed: str, head: str) -> tuple[int, int, dict[str, Any]]:
    """Return feature width, outputs and, as an option, the width of the model."""
    width, in_dim = golden.tensors[f"w.{embed}"].shape
    return in_dim, golden.tensors[f"w.{head}"].shape[0], {"width": width}


def abmil(golden: SrpFile) -> ABMIL:
    """Build the model of a file."""
    in_dim, outputs, options = _sizes(golden, "fe_w", "cls_w")
    model = ABMIL(in_dim, outputs, attention_width=len(golden.tensors["w.att_tanh_b"]), **options)
    pooling = {f"attention_{name}": f"att_{short}" for name, short in zip(PARTS, ("tanh", "sig", "score"), strict=True)}
    load_golden(model, _linear_layers(embed="fe", head="cls", **pooling), golden)
    return model.eval()


PARTS = ("tanh", "sigmoid", "score")


def dsmil(golden: SrpFile) -> DSMIL:
    """Build the model of a file."""
    in_dim, outputs, options = _sizes(golden, "fe_w", "inst_w")
    model = DSMIL(in_dim, outputs, query_width=len(golden.tensors["w.query1_b"]), **options)
    names = _linear_layers(embed="fe", instance_head="inst", query__0="query1", query__2="query2", bag_head="bagconv")
    load_golden(model, names, golden)
    return model.eval()


def transmil(golden: SrpFile) -> TransMIL:
    """Build the model of a file."""
    in_dim, outputs, options = _sizes(golden, "embed_w", "head_w")
    model = TransMIL(in_dim, outputs, num_heads=len(golden.tensors["w.blk0.attn.resconv_w"]), **options)
    names = {name: theirs for name, theirs in MODEL.items() if name in dict(model.named_parameters())}
    for block in (0, 1):
        norm, layer, attention = f"norm{block + 1}", f"attention{block + 1}", f"blk{block}.attn"
        names |= {f"{norm}.weight": f"blk{block}.ln_w", f"{norm}.bias": f"blk{block}.ln_b"}
        names |= {f"{layer}.qkv.weight": f"{attention}.qkv_w"}
        names |= {f"{layer}.value_convolution.weight": f"{attention}.resconv_w"}
        names |= {f"{layer}.out_proj.{kind}": f"{attention}.out_{kind[0]}" for kind in ("weight", "bias")}
    load_golden(model, names, golden)
    return model.eval()


def _dense_options(golden: SrpFile) -> dict[str, Any]:
    weights = golden.group("w.")
    gate = weights.get("blk0.attn.gate.tok1_w")
    width = weights["head_w"].shape[1]
    return {
        "width": width,
        "depth": sum(name.endswith(".ln1_w") for name in weights),
        "num_heads": golden.tensors["heads"].item(),
        "correction": "none" if gate is None else "srp",
        "delta": golden.tensors["delta"].item(),
        "gate_hidden": 1 if gate is None else len(gate),
        "mlp_ratio": len(weights["blk0.mlp1_b"]) / width,
    }


def _dense_names(model: nn.Module) -> dict[str, str]:
    others = MODEL | {"position": "pos", "patch_embed.weight": "patch_w", "patch_embed.bias": "patch_b"}
    names = {}
    for name, _ in model.named_parameters():
        _, _, in_block = name.removeprefix("blocks.").partition(".")
        block = name.removeprefix("blocks.").split(".")[0]
        names[name] = f"blk{block}.{BLOCK[in_block]}" if name.startswith("blocks.") else others[name]
    return names


def vit4(golden: SrpFile) -> ViT4:
    """Build the model of a file."""
    in_dim, outputs, _ = _sizes(golden, "embed_w", "head_w")
    model = ViT4(in_dim, outputs, **_dense_options(golden))
    load_golden(model, _dense_names(model), golden)
    return model.eval()


def grid_vit(golden: SrpFile) -> GridViT:
    """Build the model of a file."""
    channels, size = golden.tensors["image"].shape[1:3]
    outputs, patch = len(golden.tensors["w.head_b"]), golden.tensors["patch"].item()
    model = GridViT(channels, outputs, image_size=size, patch_size=patch, **_dense_options(golden))
    load_golden(model, _dense_names(model), golden)
    return model.eval()


def dense_attention(golden: SrpFile) -> SlideAttention:
    """Build the exact attention layer of a file; what it does is in the file's name."""
    kind, weights = golden.kind.rsplit("_", 1)[1], golden.group("w.")
    gate: dict[str, Any] = {}
    if f"gate.{GATE['token_in.weight']}" in weights:
        hidden, features = weights["gate.tok1_w"].shape
        gate = {"hidden": hidden, "mean_norm": features == 4, "delta": golden.tensors["delta"].item()}
    named: dict[str, str] = {"plain": "none", "signed": "srp", "srp": "srp", "xsa": "xsa"}
    correction = f"fixed:{_scalar(weights['beta_scalar'])}" if kind.startswith("fixed") else named[kind]
    dim, heads = golden.tensors["x"].shape[-1], golden.tensors["heads"].item()
    layer = SlideAttention(dim, heads, attention="softmax", correction=correction, gate_options=gate)
    load_golden(layer, attention_names(layer), golden)
    return layer


def _scalar(value: Tensor) -> float:
    assert value.numel() == 1
    return torch.as_tensor(value).item()
