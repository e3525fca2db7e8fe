"""Names of the gate's weights in the golden files, and ours."""

__all__ = ["GATE_NAMES"]

GATE_NAMES = {
    "tok1_w": "token_in.weight",
    "tok1_b": "token_in.bias",
    "tok2_w": "token_out.weight",
    "tok2_b": "token_out.bias",
    "head_w": "head_weight",
    "head_b": "head_bias",
    "layer_b": "layer_bias",
}
