"""Naive twins of `nnunet_gdla.ops.feature_map` and `nnunet_gdla.ops.linear`: the formulas, written out.

Shape legend (this file): B batch, H heads, N query tokens, M key tokens, K key width, V value width.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

__all__ = ["elu_plus_one_naive", "linear_attention_by_chunks", "linear_attention_naive"]


def elu_plus_one_naive(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    r"""Return $\phi(x) = \mathrm{ELU}(x) + 1$: $x + 1$ above zero, $e^x$ at and below it.

    The exponent is clamped so that the branch that is not taken cannot overflow and put NaN into the gradient.

    Args:
        x: Any real tensor.

    Returns:
        The feature map, element by element; always positive, derivative 1 at zero.
    """
    return torch.where(x > 0, x + 1, torch.exp(x.clamp(max=0)))


def linear_attention_naive(
    q: Float[Tensor, "B H N K"],
    k: Float[Tensor, "B H M K"],
    v: Float[Tensor, "B H M V"],
    *,
    feature_map: str | None = "elu1",
    key_mask: Bool[Tensor, "B M"] | None = None,
    eps: float = 1e-6,
) -> Float[Tensor, "B H N V"]:
    r"""Average the values with explicit weights: $o_n = \sum_m w_{nm} v_m / (\sum_m w_{nm} + \varepsilon)$.

    $w_{nm} = \phi(q_n)^\top \phi(k_m)$; a masked key is cut out of its batch element: that is what a mask means.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        feature_map: "elu1" applies phi to q and k, None takes them as they are.
        key_mask: True for keys that take part.
        eps: Added to every sum of weights.

    Returns:
        The weighted means, computed in the dtype of the inputs.
    """
    outputs = []
    for b in range(q.shape[0]):
        k_HMK, v_HMV = (k[b], v[b]) if key_mask is None else (k[b][:, key_mask[b]], v[b][:, key_mask[b]])
        phi_q, phi_k = (q[b], k_HMK) if feature_map is None else (elu_plus_one_naive(q[b]), elu_plus_one_naive(k_HMK))
        weights_HNM = torch.einsum("hnk,hmk->hnm", phi_q, phi_k)
        sums_HN1 = weights_HNM.sum(-1, keepdim=True)
        outputs.append(torch.einsum("hnm,hmv->hnv", weights_HNM, v_HMV) / (sums_HN1 + eps))
    return torch.stack(outputs)


def linear_attention_by_chunks(
    q: Float[Tensor, "B H N K"], k: Float[Tensor, "B H M K"], v: Float[Tensor, "B H M V"], *, chunk: int = 8192
) -> Float[Tensor, "B H N V"]:
    r"""Return the same as `linear_attention_naive` for token counts whose N x M weights fit into no memory.

    Keys are summed up chunk by chunk, so that also the order of the additions differs from the operator's.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        chunk: How many keys are summed up at a time.

    Returns:
        The weighted means, computed in the dtype of the inputs.
    """
    pieces = zip(k.split(chunk, 2), v.split(chunk, 2), strict=True)
    sums = [
        (torch.einsum("bhmk,bhmv->bhkv", elu_plus_one_naive(k_part), v_part), elu_plus_one_naive(k_part).sum(2))
        for k_part, v_part in pieces
    ]
    state_BHKV, total_BHK = sum(state for state, _ in sums), sum(total for _, total in sums)
    phi_q = elu_plus_one_naive(q)
    numerator = torch.einsum("bhnk,bhkv->bhnv", phi_q, state_BHKV)
    return numerator / (torch.einsum("bhnk,bhk->bhn", phi_q, total_BHK)[..., None] + 1e-6)
