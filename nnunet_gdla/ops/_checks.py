"""What the attention operators share: size checks, masking and the switch to full precision."""

import torch
from torch import Tensor

__all__ = ["check_lambda", "check_qkv", "drop_masked", "without_autocast"]


def check_qkv(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> None:
    """Raise a ValueError that shows the shapes unless q (B,H,N,K), k (B,H,M,K), v (B,H,M,V), key_mask (B,M) fit."""
    sizes = f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)}"
    if not q.ndim == k.ndim == v.ndim == 4:
        raise ValueError(f"{sizes} must have four axes: batch, heads, tokens, width")
    if q.shape[:2] != k.shape[:2] or k.shape[:3] != v.shape[:3] or q.shape[-1] != k.shape[-1]:
        raise ValueError(f"{sizes} do not fit together: batch, heads, key tokens and key width must agree")
    if key_mask is not None and (key_mask.shape != (k.shape[0], k.shape[2]) or key_mask.dtype != torch.bool):
        raise ValueError(
            f"key_mask {tuple(key_mask.shape)} {key_mask.dtype} must be {(k.shape[0], k.shape[2])} torch.bool, "
            f"True for tokens that take part (k is {tuple(k.shape)})"
        )


def check_lambda(lam: Tensor, allowed: tuple[tuple[int, ...], ...]) -> None:
    """Raise a ValueError unless the shape of lambda is one of `allowed`."""
    if tuple(lam.shape) not in allowed:
        raise ValueError(f"lam {tuple(lam.shape)} must be {' or '.join(map(str, allowed))}")


def drop_masked(x_BHMD: Tensor, key_mask: Tensor | None) -> Tensor:
    """Set tokens that do not take part to zero; NaN and Inf there vanish from the value and from every gradient."""
    return x_BHMD if key_mask is None else x_BHMD.masked_fill(~key_mask[:, None, :, None], 0)


def without_autocast(x: Tensor) -> torch.autocast:
    """Context in which the dtype of a tensor is what the code says."""
    # Shapes alone have no autocast, and torch refuses to switch off what is not there.
    return torch.autocast("cpu" if x.device.type == "meta" else x.device.type, enabled=False)
