"""Naive twins of `nnunet_gdla.ops.nystrom`, in the released order of operations, and of the position convolution.

Shape legend (this file): B batch, H heads, N tokens, D width of q and k, V value width, R landmarks, P padded tokens.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

__all__ = ["nystrom_attention_naive", "nystrom_matrix_naive", "ppeg_naive", "pseudo_inverse_naive"]


def pseudo_inverse_naive(
    kernel: Float[Tensor, "B H R R"], *, iterations: int = 6, init: str = "per_matrix"
) -> Float[Tensor, "B H R R"]:
    """Iterate V <- V (13 I - A V (15 I - A V (7 I - A V))) / 4 from the transpose over the largest sums."""
    rows, columns = kernel.abs().sum(-1), kernel.abs().sum(-2)
    if init == "global":
        start = kernel.transpose(-1, -2) / (rows.max() * columns.max())
    else:
        largest = rows.max(-1).values * columns.max(-1).values
        start = kernel.transpose(-1, -2) / largest[..., None, None]
    eye = torch.eye(kernel.shape[-1], dtype=kernel.dtype)
    inverse = start
    for _ in range(iterations):
        product = kernel @ inverse
        inverse = 0.25 * inverse @ (13 * eye - product @ (15 * eye - product @ (7 * eye - product)))
    return inverse


def _factors(
    q: Tensor, k: Tensor, num_landmarks: int, pinv_iterations: int, pinv_init: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the softmaxes F and B and the pseudo-inverse between them; B has a column for every padded row."""
    tokens = q.shape[2]
    q = q * q.shape[-1] ** -0.5
    group = math.ceil(tokens / num_landmarks)
    padding = num_landmarks * group - tokens
    q, k = (F.pad(part, (0, 0, 0, padding)) for part in (q, k))
    real = torch.cat([torch.ones(tokens), torch.zeros(padding)]).to(q.dtype)
    counts = real.reshape(num_landmarks, group).sum(-1).clamp(min=1e-6)
    q_marks, k_marks = (part.unflatten(2, (num_landmarks, group)).sum(3) / counts[:, None] for part in (q, k))
    scores = (q_marks @ k.transpose(-1, -2)).masked_fill(real == 0, -torch.inf)
    inner = (q_marks @ k_marks.transpose(-1, -2)).softmax(-1)
    inverse = pseudo_inverse_naive(inner, iterations=pinv_iterations, init=pinv_init)
    return (q @ k_marks.transpose(-1, -2)).softmax(-1), inverse, scores.softmax(-1)


def nystrom_attention_naive(
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H N D"],
    v: Float[Tensor, "B H N V"],
    *,
    num_landmarks: int = 64,
    pinv_iterations: int = 6,
    pinv_init: str = "per_matrix",
    key_mask: Bool[Tensor, "B N"] | None = None,
) -> Float[Tensor, "B H N V"]:
    """Scale, pad to a multiple of the landmarks, three products, three softmaxes, F (A+ (B v)), crop.

    A masked row is cut out of its batch element, whose result is zero there: that is what a mask means.
    """
    options = {"num_landmarks": num_landmarks, "pinv_iterations": pinv_iterations, "pinv_init": pinv_init}
    if key_mask is not None:
        outputs = []
        for b, keep in enumerate(key_mask):
            out = 0 * (v[b : b + 1] + q[b].sum() + k[b].sum())
            if keep.any():
                parts = (part[b : b + 1, :, keep] for part in (q, k, v))
                rows = keep.nonzero().squeeze(-1)
                out = out.index_copy(2, rows, nystrom_attention_naive(*parts, **options))
            outputs.append(out)
        return torch.cat(outputs)
    outer, inverse, inner = _factors(q, k, num_landmarks, pinv_iterations, pinv_init)
    padded = F.pad(v, (0, 0, 0, inner.shape[-1] - v.shape[2]))
    return (outer @ (inverse @ (inner @ padded)))[:, :, : v.shape[2]]


def nystrom_matrix_naive(
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H N D"],
    *,
    num_landmarks: int = 64,
    pinv_iterations: int = 6,
    pinv_init: str = "per_matrix",
) -> Float[Tensor, "B H N N"]:
    """Return the whole approximate attention matrix."""
    tokens = q.shape[2]
    outer, inverse, inner = _factors(q, k, num_landmarks, pinv_iterations, pinv_init)
    return (outer @ inverse @ inner)[:, :, :tokens, :tokens]


def ppeg_naive(
    x: Float[Tensor, "B L C"], grid: tuple[int, int], kernels: list[tuple[Tensor, Tensor]]
) -> Float[Tensor, "B L C"]:
    """Add each depthwise convolution of the patch rows, laid out as an image, to them; the class row stays."""
    image = x[:, 1:].transpose(1, 2).unflatten(2, grid)
    moved = image
    for weight, bias in kernels:
        moved = moved + F.conv2d(image, weight, bias, padding=weight.shape[-1] // 2, groups=weight.shape[0])
    return torch.cat([x[:, :1], moved.flatten(2).transpose(1, 2)], dim=1)
