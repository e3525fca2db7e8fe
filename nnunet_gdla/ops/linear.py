"""Non-causal linear attention: one state per head, no token-by-token matrix.

Shape legend (this file): B batch, H heads, N query tokens, M key tokens, K key width, V value width.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from nnunet_gdla.ops._checks import check_qkv, drop_masked, without_autocast
from nnunet_gdla.ops.feature_map import elu_plus_one

__all__ = ["linear_attention"]


def linear_attention(
    q: Float[Tensor, "B H N K"],
    k: Float[Tensor, "B H M K"],
    v: Float[Tensor, "B H M V"],
    *,
    feature_map: Literal["elu1"] | None = "elu1",
    key_mask: Bool[Tensor, "B M"] | None = None,
    eps: float = 1e-6,
) -> Float[Tensor, "B H N V"]:
    r"""Average the values of all tokens with weights $\varphi(q_n)^\top \varphi(k_m)$, in time linear in N and M.

    $$o_n = \frac{\varphi(q_n)^\top S}{\varphi(q_n)^\top z + \varepsilon},\qquad
      S = \sum_m \varphi(k_m) v_m^\top,\quad z = \sum_m \varphi(k_m).$$

    Args:
        q: Queries, dimensionless.
        k: Keys, dimensionless.
        v: Values, any unit; the output has the same unit.
        feature_map: "elu1" applies `elu_plus_one` to q and k; None takes them as already mapped (non-negative).
        key_mask: True for tokens that take part; what the others hold, NaN included, never shows. None: all take part.
        eps: Added to the normaliser, in units of $q^\top z$.

    Returns:
        Weighted mean of `v` per query, in the dtype of `v`. A query whose weights are all zero gets zeros.

    Raises:
        ValueError: If the sizes of `q`, `k`, `v` and `key_mask` do not fit, or `feature_map` is unknown.

    Numerics: feature map, S, z and the division run in float32 (float64 for float64 input), also under autocast.
    Cost: O(B H (N + M) K V) time, O(B H K V) extra memory beside the mapped q and k.
    Reference: Katharopoulos et al. 2020, eq. 4-5 (arXiv:2006.16236); `linear_attention_naive` in tests/reference.
    """
    check_qkv(q, k, v, key_mask)
    if feature_map not in ("elu1", None):
        raise ValueError(f"unknown feature_map {feature_map!r}; choose 'elu1' or None")
    with without_autocast(q):
        acc = torch.promote_types(q.dtype, torch.float32)
        q_BHNK, k_BHMK, v_BHMV = q.to(acc), drop_masked(k.to(acc), key_mask), drop_masked(v.to(acc), key_mask)
        if feature_map == "elu1":
            # phi(0) is 1, so that masked keys have to be dropped once more behind the map.
            q_BHNK, k_BHMK = elu_plus_one(q_BHNK), drop_masked(elu_plus_one(k_BHMK), key_mask)
        state_BHKV = k_BHMK.transpose(-1, -2) @ v_BHMV
        norm_BHN1 = q_BHNK @ k_BHMK.sum(-2).unsqueeze(-1)
        out_BHNV = (q_BHNK @ state_BHKV) / (norm_BHN1 + eps)
    return out_BHNV.to(v.dtype)
