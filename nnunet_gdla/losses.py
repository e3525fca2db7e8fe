"""Boundary difference-over-union loss in nnU-Net's calling convention.

Shape legend (this file): B batch, K classes or regions, C target channels, R label channels (1 for classes, K for
regions), H and W pixels.
"""

from typing import Any, Literal, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, distributed, nn

from nnunet_gdla.ops._checks import without_autocast
from nnunet_gdla.ops._fusion import first_derivatives_only
from nnunet_gdla.words import counted

__all__ = ["BoundaryDoULoss"]

Activation = Literal["softmax", "sigmoid", "none"]
_ACTIVATIONS = ("softmax", "sigmoid", "none")


class BoundaryDoULoss(nn.Module):
    r"""Share of wrongly predicted area; compact classes also get less credit for the area that is right.

    $$L = \frac{1}{K} \sum_k \frac{P_k + S_k - 2 I_k + \varepsilon}{P_k + S_k - (1 + \alpha_k) I_k + \varepsilon},\quad
      \alpha_k = \min\Bigl(1 - 2\,\frac{C_k + \varepsilon}{S_k + \varepsilon},\ \alpha_{cap}\Bigr)$$

    with $I_k = \sum p_k T_k$, $P_k = \sum p_k^2$ and $S_k = \sum T_k$ over all pixels of the whole batch that count,
    and $C_k$ the number of pixels of class k with a 4-neighbour of another class or at the edge of the image. T is
    one-hot; the background of a label map is a class like the others. A region is a binary mask of its own, without
    background.

    Args:
        activation: Turns the network's output into p: "softmax" over the channels, "sigmoid", or "none" if the output
            already is p. None: "sigmoid" for regions, "softmax" otherwise.
        ignore_label: Label of pixels that do not count; None: all count. Such pixels enter no sum, make no boundary of
            their neighbours, and what the network says there, NaN included, changes neither loss nor gradient.
        regions: The target holds one binary channel per output. With `ignore_label` (its value does not matter then)
            one more channel follows, which marks the ignored pixels.
        ddp: Sum over the batches of all processes, see `_AllReduceSum`. Every process must call the loss equally often.
        alpha_cap: Upper limit of alpha.
        eps: Added to all counts, in pixels.

    Raises:
        ValueError: If an option is unknown, out of range or does not fit the others.

    Numerics: float32 throughout (float64 for float64 input), also under autocast; so is the loss. A class without
    pixels has alpha = -1, contributes exactly 1 and sends no gradient of its own; a batch in which no pixel counts
    gives 1. Differentiable once.
    Cost: keeps p and one byte per output value for backward. Never waits for an accelerator; a wrong label there
    therefore turns the loss into NaN (on every process), while on a CPU it is an error that names the label.
    Differs from the paper: alpha goes down to -1 for thin classes (there to 0) and is capped, as in GDLA's training.
    Reference: `boundary_dou_naive` in tests/reference; Sun, Luo and Li 2023 (arXiv:2308.00220).
    """

    def __init__(
        self,
        *,
        activation: Activation | None = None,
        ignore_label: int | None = None,
        regions: bool = False,
        ddp: bool = False,
        alpha_cap: float = 0.8,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        if activation is None:
            activation = "sigmoid" if regions else "softmax"
        if activation not in _ACTIVATIONS:
            raise ValueError(f"unknown activation {activation!r}; choose one of {', '.join(_ACTIVATIONS)}")
        if regions and activation == "softmax":
            raise ValueError("regions may overlap, so activation must be 'sigmoid' or 'none', not 'softmax'")
        if not (-1 <= alpha_cap < 1 and eps > 0):
            raise ValueError(f"alpha_cap must lie in [-1, 1) and eps above 0; got {alpha_cap} and {eps}")
        self.activation: Activation = activation
        self.ignore_label = ignore_label
        self.regions = regions
        self.ddp = ddp
        self.alpha_cap = alpha_cap
        self.eps = eps

    def forward(self, net_output: Float[Tensor, "B K H W"], target: Shaped[Tensor, "B C H W"]) -> Float[Tensor, ""]:
        """Compare the network's output with the target.

        Args:
            net_output: Logits (or p itself with activation "none"), any floating dtype.
            target: (B, 1, H, W) label values of any dtype, or with `regions` (B, K, H, W) masks, bool or 0 and 1, and
                (B, K + 1, H, W) with `ignore_label`.

        Returns:
            The loss, between 0 and 1.

        Raises:
            ValueError: If the shapes do not fit, or (on a CPU) if a pixel that counts holds a label without an output
                or a region mask something else than 0 and 1.
        """
        num_outputs = net_output.shape[1]
        self._check_shapes(net_output, target)
        with without_autocast(net_output):
            read = _read_regions if self.regions else _read_labels
            truth = read(target, num_outputs, self.ignore_label)
            if target.device.type == "cpu" and not truth.readable:
                raise ValueError(self._explain_unreadable(truth, target, num_outputs))
            overlap_2K = _overlap_sums(net_output, truth, self.activation)
            sums_4K = torch.cat([overlap_2K, truth.counts.to(overlap_2K.dtype)])
            sums_4K = sums_4K.masked_fill(~truth.readable, torch.nan)
            if self.ddp:
                sums_4K = cast("Tensor", _AllReduceSum.apply(sums_4K))
            return _mean_dou(sums_4K, self.alpha_cap, self.eps)

    def _check_shapes(self, net_output: Tensor, target: Tensor) -> None:
        shapes = f"network output {tuple(net_output.shape)} and target {tuple(target.shape)}"
        if net_output.ndim != 4 or target.ndim != 4:
            raise ValueError(f"{shapes} must have four axes: batch, channels, height, width")
        if net_output.shape[0] != target.shape[0] or net_output.shape[2:] != target.shape[2:]:
            raise ValueError(f"{shapes} do not fit together: batch, height and width must agree")
        ignored = int(self.ignore_label is not None)
        channels = net_output.shape[1] + ignored if self.regions else 1
        if target.shape[1] != channels:
            what = (
                f"a mask per output{' and one of ignored pixels' * ignored}" if self.regions else "one of label values"
            )
            raise ValueError(
                f"{shapes} do not fit together: the target must have {counted(channels, 'channel')}, {what}"
            )

    def _explain_unreadable(self, truth: "_Truth", target: Tensor, num_outputs: int) -> str:
        values = (target[:, :num_outputs] if self.regions else target).double()
        wrong = (values != 0) & (values != 1) if self.regions else ~truth.member.any(1, keepdim=True)
        if truth.valid is not None:
            wrong &= truth.valid
        found = ", ".join(f"{value:g}" for value in sorted(set(values[wrong].tolist()))[:3])
        if self.regions:
            return f"the target's region masks hold {found}; they may hold only 0 and 1"
        return (
            f"the target holds label {found}, but {num_outputs} outputs of the network mean labels 0 to "
            f"{num_outputs - 1} and ignore_label is {self.ignore_label}; correct the labels or the number of classes"
        )

    def extra_repr(self) -> str:
        """Show the options in the module's representation."""
        names = ("activation", "ignore_label", "regions", "ddp", "alpha_cap", "eps")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)


class _Truth(NamedTuple):
    """What the target says, for the pixels that count."""

    member: Bool[Tensor, "B K H W"]  # pixel belongs to class k and counts
    valid: Bool[Tensor, "B 1 H W"] | None  # pixel counts; None: all do
    counts: Shaped[Tensor, "2 K"]  # S and C
    readable: Bool[Tensor, ""]  # no pixel that counts holds a value without a meaning


def _read_labels(target: Shaped[Tensor, "B 1 H W"], num_outputs: int, ignore_label: int | None) -> _Truth:
    # int64, because small and unsigned integers wrap a label such as -1 in comparisons.
    labels_B1HW = target if target.is_floating_point() else target.long()
    valid_B1HW = None if ignore_label is None else labels_B1HW != ignore_label
    member_BKHW = labels_B1HW == torch.arange(num_outputs, device=target.device).view(1, -1, 1, 1)
    if valid_B1HW is not None:
        member_BKHW &= valid_B1HW
    counts_2K = _count(member_BKHW, _boundary(labels_B1HW, valid_B1HW))
    expected = labels_B1HW.numel() if valid_B1HW is None else valid_B1HW.sum()
    return _Truth(member_BKHW, valid_B1HW, counts_2K, counts_2K[0].sum() == expected)


def _read_regions(target: Shaped[Tensor, "B C H W"], num_outputs: int, ignore_label: int | None) -> _Truth:
    masks_BKHW = target[:, :num_outputs]
    valid_B1HW = None if ignore_label is None else target[:, num_outputs:] == 0
    member_BKHW = masks_BKHW != 0
    readable_BKHW = masks_BKHW == member_BKHW
    if valid_B1HW is not None:
        readable_BKHW |= ~valid_B1HW
        member_BKHW &= valid_B1HW
    counts_2K = _count(member_BKHW, _boundary(member_BKHW, valid_B1HW))
    return _Truth(member_BKHW, valid_B1HW, counts_2K, readable_BKHW.all())


def _boundary(values: Shaped[Tensor, "B R H W"], valid: Bool[Tensor, "B 1 H W"] | None) -> Bool[Tensor, "B R H W"]:
    """Mark the pixels at the edge of the image and those that differ from a 4-neighbour that counts."""
    boundary_BRHW = torch.zeros(values.shape, dtype=torch.bool, device=values.device)
    valid_columns = None if valid is None else valid.mT
    for value, ok, boundary in ((values, valid, boundary_BRHW), (values.mT, valid_columns, boundary_BRHW.mT)):
        differ = value[:, :, 1:] != value[:, :, :-1]
        if ok is not None:
            differ &= ok[:, :, 1:] & ok[:, :, :-1]
        boundary[:, :, 1:] |= differ
        boundary[:, :, :-1] |= differ
        boundary[:, :, :1] = True
        boundary[:, :, -1:] = True
    return boundary_BRHW


def _count(member: Bool[Tensor, "B K H W"], boundary: Bool[Tensor, "B R H W"]) -> Shaped[Tensor, "2 K"]:
    # On a CPU a sum first widens every pixel to the sum's dtype; 16 bits hold the sum of a row.
    row = torch.int16 if member.shape[3] < 2**15 else torch.int64
    size_K, boundary_K = (mask.sum(3, dtype=row).sum((0, 2)) for mask in (member, member & boundary))
    return torch.stack([size_K, boundary_K])


def _mean_dou(sums: Float[Tensor, "4 K"], alpha_cap: float, eps: float) -> Float[Tensor, ""]:
    """Average the loss over the classes, given I, P, S and C.

    Written as one minus a multiple of I: the same fraction, but exactly 1 and without gradient where I is 0.
    """
    overlap_K, square_K, size_K, boundary_K = sums.unbind()
    alpha_K = (1 - 2 * (boundary_K + eps) / (size_K + eps)).clamp(max=alpha_cap)
    union_K = square_K + size_K - (1 + alpha_K) * overlap_K + eps
    return (1 - (1 - alpha_K) * overlap_K / union_K).mean()


def _overlap_sums(net_output: Float[Tensor, "B K H W"], truth: _Truth, activation: Activation) -> Float[Tensor, "2 K"]:
    return cast("Tensor", _OverlapSums.apply(net_output, truth.member, truth.valid, activation))


class _OverlapSums(torch.autograd.Function):
    """I and P of the activated output; backward in closed form, so that only p and the truth are kept."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  (PyTorch does not declare the attributes it lets one set)
        net_output: Tensor,
        member: Tensor,
        valid: Tensor | None,
        activation: Activation,
    ) -> Tensor:
        acc = torch.promote_types(net_output.dtype, torch.float32)
        if activation == "softmax":
            p_BKHW = net_output.softmax(1, dtype=acc)
        else:
            p_BKHW = net_output.to(acc)
            p_BKHW = p_BKHW.sigmoid() if activation == "sigmoid" else p_BKHW
        if valid is not None:
            # A product would let NaN through. From here on p = 0 stands for an ignored pixel, in backward too.
            p_BKHW = p_BKHW.masked_fill(~valid, 0)
        ctx.save_for_backward(p_BKHW, member)
        ctx.activation, ctx.dtype = activation, net_output.dtype
        product_BKHW = member.to(acc).mul_(p_BKHW)
        overlap_K = product_BKHW.sum((0, 2, 3))
        square_K = torch.mul(p_BKHW, p_BKHW, out=product_BKHW).sum((0, 2, 3))
        return torch.stack([overlap_K, square_K])

    @staticmethod
    @first_derivatives_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: ANN401
        p_BKHW, member_BKHW = ctx.saved_tensors
        grad_overlap_K, grad_square_K = grad[:, None, :, None, None]
        grad_BKHW = member_BKHW.to(p_BKHW.dtype).mul_(grad_overlap_K).addcmul_(p_BKHW, 2 * grad_square_K)
        if ctx.activation == "softmax":
            inner_B1HW = (p_BKHW * grad_BKHW).sum(1, keepdim=True)
            grad_BKHW.sub_(inner_B1HW).mul_(p_BKHW)
        elif ctx.activation == "sigmoid":
            grad_BKHW.mul_(p_BKHW).mul_(1 - p_BKHW)
        return grad_BKHW.to(ctx.dtype), None, None, None


class _AllReduceSum(torch.autograd.Function):
    """Sum over all processes, for a loss that every process then computes alike.

    DistributedDataParallel averages the gradients of the W processes, while the gradient of the joint batch is their
    sum, so each sends W times its own. The gradient of the summed value is the same everywhere: nothing to exchange.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:  # noqa: ANN401
        ctx.world_size = distributed.get_world_size()
        total = values.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # noqa: ANN401
        return grad * int(ctx.world_size)
