"""Naive twins of `nnunet_gdla.ops.differential`: two ordinary attentions and their difference.

Shape legend (this file): B batch, H heads, N query tokens, M key tokens, D width of one branch, V value width.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tests.reference.linear import linear_attention_naive

__all__ = ["differential_attention_naive", "differential_linear_attention_naive", "softmax_attention_naive"]


def differential_linear_attention_naive(
    q: Float[Tensor, "B H N D2"],
    k: Float[Tensor, "B H M D2"],
    v: Float[Tensor, "B H M V"],
    lam: Float[Tensor, "H V"],
    *,
    key_mask: Bool[Tensor, "B M"] | None = None,
    eps: float = 1e-6,
) -> Float[Tensor, "B H N V"]:
    r"""Return $A_1 - \lambda \odot A_2$ of two linear attentions (GDLA, Eq. 13-16).

    Args:
        q: Queries, first half of the last axis branch 1, second half branch 2.
        k: Keys, cut in the same way.
        v: Values, shared by both branches.
        lam: One factor per head and value channel.
        key_mask: True for keys that take part.
        eps: Added to each branch's sum of weights.

    Returns:
        The difference of the two weighted means.
    """
    half = q.shape[-1] // 2
    first = linear_attention_naive(q[..., :half], k[..., :half], v, key_mask=key_mask, eps=eps)
    second = linear_attention_naive(q[..., half:], k[..., half:], v, key_mask=key_mask, eps=eps)
    return first - lam[None, :, None, :] * second


def softmax_attention_naive(
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M V"],
    *,
    scale: float,
    key_mask: Bool[Tensor, "B M"] | None = None,
) -> Float[Tensor, "B H N V"]:
    r"""Return $\mathrm{softmax}(s\, Q K^\top) V$ with masked keys cut out.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        scale: Factor of the scores.
        key_mask: True for keys that take part; where none does, the empty sum gives zeros.

    Returns:
        The weighted means, computed in the dtype of the inputs.
    """
    outputs = []
    for b in range(q.shape[0]):
        k_HMD, v_HMV = (k[b], v[b]) if key_mask is None else (k[b][:, key_mask[b]], v[b][:, key_mask[b]])
        scores_HNM = torch.einsum("hnd,hmd->hnm", q[b], k_HMD) * scale
        outputs.append(torch.einsum("hnm,hmv->hnv", torch.softmax(scores_HNM, -1), v_HMV))
    return torch.stack(outputs)


def differential_attention_naive(
    q: Float[Tensor, "B H N D2"],
    k: Float[Tensor, "B H M D2"],
    v: Float[Tensor, "B H M V"],
    lam: Float[Tensor, ""] | Float[Tensor, " H"],
    *,
    scale: float | None = None,
    key_mask: Bool[Tensor, "B M"] | None = None,
) -> Float[Tensor, "B H N V"]:
    r"""Return $(S_1 - \lambda S_2) V$ with two softmax maps (GDLA, Eq. 1-5), without norm and $(1 - \lambda_{init})$.

    Args:
        q: Queries, first half of the last axis map 1, second half map 2.
        k: Keys, cut in the same way.
        v: Values, shared by both maps.
        lam: One factor, or one per head.
        scale: Factor of the scores; None: (half width)^-0.5.
        key_mask: True for keys that take part.

    Returns:
        The difference of the two weighted means.
    """
    half = q.shape[-1] // 2
    scale = half**-0.5 if scale is None else scale
    first = softmax_attention_naive(q[..., :half], k[..., :half], v, scale=scale, key_mask=key_mask)
    second = softmax_attention_naive(q[..., half:], k[..., half:], v, scale=scale, key_mask=key_mask)
    return first - lam.reshape(1, -1, 1, 1) * second
