"""Differential attention: the difference of two attention maps, linear (GDLA) and softmax.

Shape legend (this file): B batch, H heads, N query tokens, M key tokens, D width of one branch (q and k hold two),
V value width.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from nnunet_gdla.ops._checks import check_lambda, check_qkv, drop_masked, without_autocast
from nnunet_gdla.ops._fusion import is_eager_cpu
from nnunet_gdla.ops.feature_map import elu_plus_one

__all__ = ["differential_attention", "differential_linear_attention"]


def differential_linear_attention(
    q: Float[Tensor, "B H N two_D"],
    k: Float[Tensor, "B H M two_D"],
    v: Float[Tensor, "B H M V"],
    lam: Float[Tensor, "H V"],
    *,
    key_mask: Bool[Tensor, "B M"] | None = None,
    eps: float = 1e-6,
) -> Float[Tensor, "B H N V"]:
    r"""Subtract two linear attentions that share their values, $A_1 - \lambda \odot A_2$, in linear time.

    $$A_i = \frac{\varphi(Q_i)\,[\varphi(K_i)^\top V]}{\varphi(Q_i)\,[\varphi(K_i)^\top 1] + \varepsilon},\qquad
      \varphi(x) = \mathrm{ELU}(x) + 1.$$

    Args:
        q: Queries of both branches, the first half of the last axis is branch 1.
        k: Keys of both branches, likewise.
        v: Values, shared by the branches; any unit.
        lam: Weight of branch 2 per head and value channel.
        key_mask: True for tokens that take part; what the others hold, NaN included, never shows. None: all take part.
        eps: Added to both normalisers.

    Returns:
        (B, H, N, V) in the dtype of `v`.

    Raises:
        ValueError: If sizes do not fit or the width of q and k is odd.

    Numerics: everything runs in float32 (float64 for float64 input), also under autocast.
    Cost: O(B H (N + M) D V) time. Both branches are one product: the normalisers are divided into the queries and
    -lambda is multiplied into the second half of the state, so that [Q1/z1, Q2/z2] [S1; -lambda S2] is the result.
    Reference: GDLA paper, Eq. 13-17 (arXiv:2603.02727); `differential_linear_attention_naive` in tests/reference.
    """
    check_qkv(q, k, v, key_mask)
    width = q.shape[-1]
    if width % 2:
        raise ValueError(f"q {tuple(q.shape)} must have an even width: it holds two branches of equal size")
    check_lambda(lam, ((v.shape[1], v.shape[3]),))
    with without_autocast(q):
        acc = torch.promote_types(q.dtype, torch.float32)
        phi_q_BHNE = elu_plus_one(q.to(acc))
        # phi(0) is 1, so that masked keys have to be dropped once more behind the map.
        phi_k_BHME = drop_masked(elu_plus_one(drop_masked(k.to(acc), key_mask)), key_mask)
        state_BHEV = phi_k_BHME.transpose(-1, -2) @ drop_masked(v.to(acc), key_mask)
        norm_BHN2 = (phi_q_BHNE * phi_k_BHME.sum(-2, keepdim=True)).unflatten(-1, (2, width // 2)).sum(-1)
        scaled_BHNE = (phi_q_BHNE.unflatten(-1, (2, width // 2)) / (norm_BHN2 + eps).unsqueeze(-1)).flatten(-2)
        first_BHDV, second_BHDV = state_BHEV.chunk(2, dim=-2)
        signed_BHEV = torch.cat([first_BHDV, -lam.to(acc).unsqueeze(-2) * second_BHDV], dim=-2)
        out_BHNV = scaled_BHNE @ signed_BHEV
    return out_BHNV.to(v.dtype)


def differential_attention(
    q: Float[Tensor, "B H N two_D"],
    k: Float[Tensor, "B H M two_D"],
    v: Float[Tensor, "B H M V"],
    lam: Float[Tensor, ""] | Float[Tensor, " H"],
    *,
    scale: float | None = None,
    key_mask: Bool[Tensor, "B M"] | None = None,
) -> Float[Tensor, "B H N V"]:
    r"""Subtract two softmax attentions that share their values.

    $$\left(\mathrm{softmax}(s\,Q_1 K_1^\top) - \lambda\,\mathrm{softmax}(s\,Q_2 K_2^\top)\right) V.$$

    Args:
        q: Queries of both branches, the first half of the last axis is branch 1.
        k: Keys of both branches, likewise.
        v: Values, shared by the branches; any unit.
        lam: Weight of branch 2, one for all heads or one a head.
        scale: Factor s on the scores; None: (width of one branch)^-0.5.
        key_mask: True for tokens that take part; what the others hold, NaN included, never shows. None: all take part.

    Returns:
        (B, H, N, V) in the dtype of `v`; zeros where no key takes part.

    Raises:
        ValueError: If sizes do not fit or the width of q and k is odd.

    Numerics: scores and sums run in float32 (float64 for float64 input), also under autocast.
    Cost: O(B H N M (D + V)) time; both branches are one call of torch's scaled_dot_product_attention.
    Reference: Differential Transformer, eq. 1-3 (arXiv:2410.05258), GDLA paper Eq. 1-8, without the norm and the factor
    1 - lambda_init, which belong to the layer; `differential_attention_naive` in tests/reference.
    """
    check_qkv(q, k, v, key_mask)
    heads, width = q.shape[1], q.shape[-1]
    if width % 2:
        raise ValueError(f"q {tuple(q.shape)} must have an even width: it holds two branches of equal size")
    check_lambda(lam, ((), (heads,)))
    scale = (width // 2) ** -0.5 if scale is None else scale
    with without_autocast(q):
        acc = torch.promote_types(q.dtype, torch.float32)
        # Where q and k are narrower than v, torch's CPU takes a slow way that keeps N x M matrices; zeros add nothing.
        missing = (0, max(0, v.shape[-1] - width // 2) if is_eager_cpu(q) else 0)
        q_BGND = F.pad(torch.cat(q.to(acc).chunk(2, dim=-1), dim=1), missing)
        k_BGMD = F.pad(torch.cat(drop_masked(k.to(acc), key_mask).chunk(2, dim=-1), dim=1), missing)
        v_BHMV = drop_masked(v.to(acc), key_mask)
        mask_B11M = None
        if key_mask is not None:
            # Without any key the softmax would be undefined; all values are zero there, so any weights give zeros.
            mask_B11M = (key_mask | ~key_mask.any(-1, keepdim=True))[:, None, None, :]
        both_BGNV = F.scaled_dot_product_attention(
            q_BGND, k_BGMD, torch.cat([v_BHMV, v_BHMV], dim=1), attn_mask=mask_B11M, scale=scale
        )
        first_BHNV, second_BHNV = both_BGNV.chunk(2, dim=1)
        out_BHNV = first_BHNV - lam.to(acc).reshape(-1, 1, 1) * second_BHNV
    return out_BHNV.to(v.dtype)
