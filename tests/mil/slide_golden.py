"""Our slide models and layers with the options and weights of a golden file."""

from typing import Any

import torch
from torch import Tensor, nn

from nnunet_gdla.mil.models.slide_attention import SlideAttention
from nnunet_gdla.mil.models.slide_diff import DifferentialNystromAttention
from nnunet_gdla.mil.models.slide_transformer import SlideTransformer
from nnunet_gdla.mil.models.tokens import SlideContext
from nnunet_gdla.ops.neighbours import NeighbourGraph
from tests.srp_golden import SrpFile

__all__ = [
    "attention_layer",
    "attention_names",
    "golden_graph",
    "layer_context",
    "load_golden",
    "model_names",
    "slide_transformer",
]

LIVE_DELTA = 1.5  # the README gives it; the file does not

GATE = {
    "token_in.weight": "tok1_w",
    "token_in.bias": "tok1_b",
    "token_out.weight": "tok2_w",
    "token_out.bias": "tok2_b",
    "head_weight": "head_w",
    "head_bias": "head_b",
    "layer_bias": "layer_b",
}
ATTENTION = {
    "qkv.weight": "qkv_w",
    "qkv.bias": "qkv_b",
    "out_proj.weight": "out_w",
    "out_proj.bias": "out_b",
    "norm.weight": "headnorm_w",
    "correction.beta": "beta_h",
    **{f"lambda_{name}": f"lam_{name}" for name in ("q1", "k1", "q2", "k2")},
    **{f"correction.gate.{ours}": f"gate.{theirs}" for ours, theirs in GATE.items()},
}
BLOCK = {
    **{f"norm{n}.{ours}": f"ln{n}_{theirs}" for n in (1, 2) for ours, theirs in (("weight", "w"), ("bias", "b"))},
    **{f"mlp.fc{n}.{ours}": f"mlp{n}_{theirs}" for n in (1, 2) for ours, theirs in (("weight", "w"), ("bias", "b"))},
    **{f"attention.{ours}": f"attn.{theirs}" for ours, theirs in ATTENTION.items()},
}
MODEL = {
    "class_token": "cls",
    **{
        f"{ours}.{kind}": f"{theirs}_{kind[0]}"
        for ours, theirs in (("embed", "embed"), ("norm", "lnf"), ("head", "head"))
        for kind in ("weight", "bias")
    },
    **{f"position.k{n}.{kind}": f"ppeg.k{n}_{kind[0]}" for n in (7, 5, 3) for kind in ("weight", "bias")},
}


def attention_names(layer: nn.Module) -> dict[str, str]:
    """Return the golden name of every parameter of an attention layer."""
    return {name: ATTENTION[name] for name, _ in layer.named_parameters()}


def model_names(model: SlideTransformer) -> dict[str, str]:
    """Return the golden name of every parameter of a slide transformer."""
    names = {}
    for name, _ in model.named_parameters():
        if name.startswith("blocks."):
            _, number, rest = name.split(".", 2)
            names[name] = f"blk{number}.{BLOCK[rest]}"
        else:
            names[name] = MODEL[name]
    return names


def stacked(weights: dict[str, Tensor], name: str) -> Tensor:
    """Return a golden tensor; q, k, v of the differential layer are kept one by one there."""
    if name.endswith("qkv_w") and name not in weights:
        return torch.cat([weights[name.replace("qkv_w", part)] for part in ("q_w", "k_w", "v_w")])
    return weights[name]


@torch.no_grad()
def load_golden(module: nn.Module, names: dict[str, str], golden: SrpFile) -> None:
    """Copy golden weights into all parameters of the module."""
    weights = golden.group("w.")
    for ours, parameter in module.named_parameters():
        value = stacked(weights, names[ours])
        assert parameter.shape == value.shape, ours
        parameter.copy_(value)


def golden_graph(golden: SrpFile) -> NeighbourGraph:
    """Return the graph of a file."""
    index, mask = golden.tensors["nbr_index"], golden.tensors["nbr_mask"]
    return NeighbourGraph(index, mask, mask.float())


def _gate_options(golden: SrpFile, prefix: str) -> dict[str, Any]:
    hidden, features = golden.tensors[f"w.{prefix}tok1_w"].shape
    delta = golden.tensors.get("delta")
    return {
        "hidden": hidden,
        "delta": LIVE_DELTA if delta is None else delta.item(),
        "num_slots": golden.tensors["nbr_index"].shape[-1],
        "mean_norm": features == 4,
    }


def attention_layer(golden: SrpFile) -> SlideAttention | DifferentialNystromAttention:
    """Build the attention layer of a file with its weights."""
    dim, kind = golden.tensors["x"].shape[-1], golden.kind.removeprefix("attn_")
    heads, landmarks = golden.tensors["heads"].item(), golden.tensors["landmarks"].item()
    nystrom: dict[str, Any] = {"num_landmarks": landmarks, "pinv_init": "global"}
    layer: SlideAttention | DifferentialNystromAttention
    if kind.startswith("diff"):
        block = golden.tensors["depth_index"].item()
        layer = DifferentialNystromAttention(dim, golden.tensors["base_heads"].item(), block=block, **nystrom)
    else:
        gated = "w.gate.tok1_w" in golden.tensors
        correction = "srp" if gated else "xsa" if kind.startswith("xsa") else "none"
        if "fixed" in kind:
            betas = golden.tensors["w.beta_h"]
            assert (betas == betas[0]).all()
            correction = f"fixed:{betas[0].item()}"
        layer = SlideAttention(
            dim,
            heads,
            attention="softmax" if kind.startswith("dense") else "nystrom",
            correction=correction,
            placement=next((f"pre_{s}" for s in "qkv" if f"pre_{s}" in kind), "post"),
            gate_options=_gate_options(golden, "gate.") | {"detach": "live" not in kind} if gated else None,
            xsa_rows="patches" if kind == "xsa_patch_only" else "all",
            **nystrom,
        )
    load_golden(layer, attention_names(layer), golden)
    return layer


def layer_context(golden: SrpFile) -> SlideContext:
    """Return the context of an attention file."""
    if "nbr_index" not in golden.tensors:
        return SlideContext(golden.tensors["x"].shape[1] - 1)
    return SlideContext(golden.tensors["n_real"].item(), golden_graph(golden), golden.tensors["h_local"])


def slide_transformer(golden: SrpFile) -> SlideTransformer:
    """Build the model of a file with its weights, in eval mode."""
    weights, kind = golden.group("w."), golden.kind.removeprefix("model_")
    gated = "blk0.attn.gate.tok1_w" in weights
    correction = "srp" if gated else "xsa" if kind == "xsa" else "none"
    if "fixed" in kind:
        correction = f"fixed:{weights['blk0.attn.beta_h'][0].item()}"
    gate = _gate_options(golden, "blk0.attn.gate.") if gated else {}
    width, in_dim = weights["embed_w"].shape
    model = SlideTransformer(
        in_dim,
        weights["head_w"].shape[0],
        width=width,
        depth=sum(name.endswith(".ln1_w") for name in weights),
        num_heads=golden.tensors["heads"].item(),
        attention="softmax" if kind.startswith("dense") else "diff" if kind == "diff" else "nystrom",
        correction=correction,
        placement="pre_v" if "pre_v" in kind else "post",
        num_landmarks=golden.tensors["landmarks"].item(),
        pinv_init="global",
        delta=gate.get("delta", 1.0),
        gate_hidden=gate.get("hidden", 1),
        position="ppeg" if "ppeg.k7_w" in weights else None,
        mlp_ratio=weights["blk0.mlp1_w"].shape[0] / width,
    )
    load_golden(model, model_names(model), golden)
    return model.eval()
