"""Nystrom attention: softmax attention through a few landmarks, in time linear in the tokens.

Shape legend (this file): B batch, H heads, N query tokens, M key tokens, D width of q and k, V value width,
R landmarks.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from nnunet_gdla.ops._checks import check_qkv, drop_masked, without_autocast

__all__ = [
    "PINV_INITS",
    "PinvInit",
    "check_nystrom_options",
    "landmark_inverse",
    "nystrom_attention",
    "nystrom_attention_row",
    "segment_means",
]

PinvInit = Literal["per_matrix", "global"]
PINV_INITS = ("per_matrix", "global")


def nystrom_attention(
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M V"],
    *,
    num_landmarks: int = 64,
    pinv_iterations: int = 6,
    pinv_init: PinvInit = "per_matrix",
    key_mask: Bool[Tensor, "B M"] | None = None,
    query_landmarks: Float[Tensor, "B H R D"] | None = None,
) -> Float[Tensor, "B H N V"]:
    r"""Approximate softmax attention by three small softmaxes around a pseudo-inverse.

    $$y = F A^+ (B v),\quad F = \mathrm{softmax}(s\,q \tilde k^\top),\;
      A = \mathrm{softmax}(s\,\tilde q \tilde k^\top),\; B = \mathrm{softmax}(s\,\tilde q k^\top),\; s = D^{-1/2}.$$

    The landmarks $\tilde q, \tilde k$ are means over runs of ceil(tokens / landmarks) consecutive rows: the result
    depends on the order of the rows. $A^+$ is iterated, $V \leftarrow \frac14 V(13I - AV(15I - AV(7I - AV)))$ from
    $A^\top / (\max \mathrm{row\ sum} \cdot \max \mathrm{column\ sum})$.

    Args:
        q: Queries.
        k: Keys.
        v: Values, any unit.
        num_landmarks: How many runs; with fewer tokens the landmarks that are left over are zero vectors.
        pinv_iterations: Steps of the iteration; gradients run through all of them and through the start.
        pinv_init: "per_matrix": the two maxima are those of each head of each batch element. "global": over all of
            them together, as published, so that heads and batch elements change each other's result.
        key_mask: True for rows that take part. The others are as if they had been cut out of q, k and v (with
            `query_landmarks`: of k and v); what they hold, NaN included, never shows, and their own result is zero.
            None: all take part.
        query_landmarks: The means of the queries where `q` holds only some of them, such as the class token alone.

    Returns:
        (B, H, N, V) in the dtype of `v`.

    Raises:
        ValueError: If sizes do not fit, an option is unknown, or a mask meets queries that are not the keys' rows.

    Numerics: landmarks, A and its inverse in float32 (float64 for float64 input), the two products with softmax in the
    dtype of q, k and v; nothing depends on autocast.
    Cost: O(B H (N + M) R (D + V)) time. Both products are calls of scaled_dot_product_attention: with D = V none of the
    factors with N or M rows is kept for backward, and q, k, v are neither padded nor scaled in a copy.
    Reference: Xiong et al. 2021 (arXiv:2102.03902); `nystrom_attention_naive` in tests/reference.
    """
    check_qkv(q, k, v, key_mask)
    check_nystrom_options(num_landmarks, pinv_iterations, pinv_init)
    _check_queries(q, k, key_mask, query_landmarks, num_landmarks)
    with without_autocast(q):
        work = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
        query_mask = key_mask if query_landmarks is None else None
        q_BHND, k_BHMD = drop_masked(q.to(work), query_mask), drop_masked(k.to(work), key_mask)
        v_BHMV = drop_masked(v.to(work), key_mask)
        q_BHRD, k_BHRD = _landmarks(q_BHND, k_BHMD, num_landmarks, key_mask, query_landmarks)
        inverse_BHRR = landmark_inverse(q_BHRD, k_BHRD, pinv_iterations, pinv_init)
        scale = q.shape[-1] ** -0.5
        summary_BHRV = F.scaled_dot_product_attention(
            q_BHRD.to(work), k_BHMD, v_BHMV, attn_mask=_attention_mask(key_mask), scale=scale
        )
        mixed_BHRV = (inverse_BHRR @ summary_BHRV.to(inverse_BHRR.dtype)).to(work)
        out_BHNV = F.scaled_dot_product_attention(q_BHND, k_BHRD.to(work), mixed_BHRV, scale=scale)
    return drop_masked(out_BHNV, query_mask).to(v.dtype)


def nystrom_attention_row(
    q: Float[Tensor, "B H M D"],
    k: Float[Tensor, "B H M D"],
    *,
    row: int = 0,
    num_landmarks: int = 64,
    pinv_iterations: int = 6,
    pinv_init: PinvInit = "per_matrix",
    key_mask: Bool[Tensor, "B M"] | None = None,
) -> Float[Tensor, "B H M"]:
    r"""Return one row of the attention matrix that `nystrom_attention` never builds, $F_{row} A^+ B$.

    Args:
        q: Queries of all rows.
        k: Keys of all rows.
        row: Whose attention; 0 is the class token of a slide model.
        num_landmarks: See `nystrom_attention`, as all that follow.
        pinv_iterations: Steps of the pseudo-inverse.
        pinv_init: Its start.
        key_mask: Rows that take part; the others get weight zero.

    Returns:
        The weight of every row, its own included; they sum to about one and small negative values occur.

    Raises:
        ValueError: See `nystrom_attention`.

    Numerics: float32 (float64 for float64 input).
    Cost: O(B H M R) memory.
    """
    check_qkv(q, k, k, key_mask)
    check_nystrom_options(num_landmarks, pinv_iterations, pinv_init)
    _check_queries(q, k, key_mask, None, num_landmarks)
    with without_autocast(q):
        acc = torch.promote_types(q.dtype, torch.float32)
        q_BHMD, k_BHMD = drop_masked(q.to(acc), key_mask), drop_masked(k.to(acc), key_mask)
        q_BHRD, k_BHRD = _landmarks(q_BHMD, k_BHMD, num_landmarks, key_mask, None)
        inverse_BHRR = landmark_inverse(q_BHRD, k_BHRD, pinv_iterations, pinv_init)
        scale = q.shape[-1] ** -0.5
        first_BH1R = (scale * q_BHMD[:, :, row, None] @ k_BHRD.transpose(-1, -2)).softmax(-1)
        scores_BHRM = scale * q_BHRD @ k_BHMD.transpose(-1, -2)
        mask = _attention_mask(key_mask)
        if mask is not None:
            scores_BHRM = scores_BHRM.masked_fill(~mask, -torch.inf)
        row_BHM = (first_BH1R @ inverse_BHRR @ scores_BHRM.softmax(-1)).squeeze(-2)
        return row_BHM if key_mask is None else row_BHM.masked_fill(~key_mask[:, None], 0)


def segment_means(
    x: Float[Tensor, "*batch M D"], num_segments: int, *, mask: Bool[Tensor, "B M"] | None = None
) -> Float[Tensor, "*batch R D"]:
    """Average runs of ceil(M / num_segments) consecutive rows; a run without rows gives zeros.

    Args:
        x: Rows, the first axis is the batch.
        num_segments: Number of runs R.
        mask: True for rows that take part: the runs are those of the rows that are left when the others are cut out.

    Returns:
        The means in float32 (float64 for float64 input).
    """
    acc = torch.promote_types(x.dtype, torch.float32)
    rows = x.shape[-2]
    if mask is None and torch.compiler.is_compiling():
        # Cutting into runs would write the number of rows into an exported program.
        mask = torch.ones(x.shape[0], rows, dtype=torch.bool, device=x.device)
    if mask is None:
        length = -(-rows // num_segments)
        full = rows // length
        whole = x[..., : full * length, :].unflatten(-2, (full, length)).mean(-2, dtype=acc)
        rest = x[..., full * length :, :].sum(-2, keepdim=True, dtype=acc) / max(rows - full * length, 1)
        return F.pad(torch.cat([whole, rest], dim=-2), (0, 0, 0, num_segments))[..., :num_segments, :]
    count_B = mask.sum(-1)
    length_B1 = ((count_B + num_segments - 1) // num_segments).clamp(min=1).unsqueeze(-1)
    run_BM = torch.where(mask, (mask.cumsum(-1) - 1) // length_B1, num_segments)
    weight_BMR = F.one_hot(run_BM, num_segments + 1)[..., :num_segments].to(acc)
    sizes_BR = weight_BMR.sum(-2).clamp(min=1)
    extra = (1,) * (x.ndim - 3)
    weight = (weight_BMR / sizes_BR.unsqueeze(-2)).transpose(-1, -2)
    return weight.reshape(weight.shape[0], *extra, *weight.shape[1:]) @ x.to(acc)


def _landmarks(
    q: Tensor, k: Tensor, num_landmarks: int, key_mask: Tensor | None, query_landmarks: Tensor | None
) -> tuple[Tensor, Tensor]:
    k_BHRD = segment_means(k, num_landmarks, mask=key_mask)
    if query_landmarks is None:
        return segment_means(q, num_landmarks, mask=key_mask), k_BHRD
    return query_landmarks.to(k_BHRD.dtype), k_BHRD


def landmark_inverse(
    q_BHRD: Float[Tensor, "B H R D"], k_BHRD: Float[Tensor, "B H R D"], iterations: int, init: PinvInit
) -> Float[Tensor, "B H R R"]:
    """Return the iterated pseudo-inverse of the landmarks' attention to each other, in their dtype."""
    kernel = (q_BHRD.shape[-1] ** -0.5 * q_BHRD @ k_BHRD.transpose(-1, -2)).softmax(-1)
    row_sum, column_sum = kernel.sum(-1), kernel.sum(-2)
    axes = (-1,) if init == "per_matrix" else (-3, -2, -1)
    largest = row_sum.amax(axes, keepdim=True) * column_sum.amax(axes, keepdim=True)
    inverse = kernel.transpose(-1, -2) / largest.unsqueeze(-1)
    eye = torch.eye(kernel.shape[-1], dtype=kernel.dtype, device=kernel.device)
    for _ in range(iterations):
        product = kernel @ inverse
        inverse = 0.25 * inverse @ (13 * eye - product @ (15 * eye - product @ (7 * eye - product)))
    return inverse


def _attention_mask(key_mask: Tensor | None) -> Tensor | None:
    """Without any key the softmax would be undefined; all values are zero there, so any weights give zeros."""
    return None if key_mask is None else (key_mask | ~key_mask.any(-1, keepdim=True))[:, None, None, :]


def check_nystrom_options(num_landmarks: int, pinv_iterations: int, pinv_init: str) -> None:
    """Raise a ValueError unless these are options of `nystrom_attention`."""
    if num_landmarks < 1:
        raise ValueError(f"num_landmarks must be at least 1, got {num_landmarks}")
    if pinv_iterations < 0:
        raise ValueError(f"pinv_iterations must not be negative, got {pinv_iterations}")
    if pinv_init not in PINV_INITS:
        raise ValueError(f"unknown pinv_init {pinv_init!r}; choose one of {', '.join(map(repr, PINV_INITS))}")


def _check_queries(
    q: Tensor, k: Tensor, key_mask: Tensor | None, query_landmarks: Tensor | None, num_landmarks: int
) -> None:
    if k.shape[2] == 0 or q.shape[2] == 0:
        raise ValueError(f"q {tuple(q.shape)} and k {tuple(k.shape)} must have at least one token")
    if query_landmarks is not None:
        expected = (*q.shape[:2], num_landmarks, q.shape[-1])
        if tuple(query_landmarks.shape) != expected:
            raise ValueError(
                f"query_landmarks {tuple(query_landmarks.shape)} must be {expected} as q is {tuple(q.shape)}"
            )
    elif key_mask is not None and q.shape[2] != k.shape[2]:
        raise ValueError(
            f"key_mask {tuple(key_mask.shape)} cuts rows out of queries and keys alike, but q {tuple(q.shape)} and "
            f"k {tuple(k.shape)} differ in length; pass query_landmarks"
        )
