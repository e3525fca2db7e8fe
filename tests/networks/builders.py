"""Small networks for tests, and the sizes that the contract names."""

from typing import Any

from torch import Tensor

from nnunet_gdla.networks import PVTGDLA

__all__ = ["DECODERS", "VARIANTS", "as_list", "expected_sizes", "small_network"]

DECODERS = ("gdla", "linear", "self", "diff")
# Every switch away from its default at least once.
VARIANTS: dict[str, dict[str, Any]] = {
    "gdla": {},
    "gdla, sigmoid gate, separate mixing": {"gate": "sigmoid", "local_mixing": "separate", "local_kernel": 5},
    "gdla, bare": {
        "gate": None,
        "differential": False,
        "local_mixing": None,
        "pre_conv": False,
        "qkv_bias": False,
        "ffn": "mlp",
    },
    "gdla, swiglu, kernel 5, narrow": {"ffn": "swiglu", "upsample_kernel": 5, "mlp_ratio": 2.0, "num_heads": [4, 2, 1]},
    "linear": {"decoder": "linear"},
    "linear, rotated": {"decoder": "linear", "rope": True, "ffn": "mix"},
    "self": {"decoder": "self"},
    "self, not rotated": {"decoder": "self", "rope": False, "ffn": "swiglu"},
    "diff": {"decoder": "diff"},
    "diff, not rotated": {"decoder": "diff", "rope": False, "qkv_bias": False},
}


def small_network(input_channels: int = 2, num_classes: int = 3, **options: Any) -> PVTGDLA:  # noqa: ANN401
    """Build a network on the smallest encoder, without stochastic depth unless asked for."""
    return PVTGDLA(input_channels, num_classes, **{"encoder": "pvt_v2_b0", "drop_path_rate": 0.0, **options})


def as_list(outputs: Tensor | list[Tensor]) -> list[Tensor]:
    """Return the outputs of a network with deep supervision on."""
    assert isinstance(outputs, list)
    return outputs


def expected_sizes(height: int, width: int) -> list[tuple[int, int]]:
    """Return the sizes of nnU-Net's own targets at our strides, never below 1."""
    return [(max(1, round(height / stride)), max(1, round(width / stride))) for stride in (1, 8, 16, 32)]
