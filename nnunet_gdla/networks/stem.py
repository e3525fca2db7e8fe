"""The full-resolution stem: features of the image itself, and what a 1x1 head makes of them."""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nnunet_gdla.layers.untouched import has_hooks, is_untouched
from nnunet_gdla.ops._fusion import may_fuse
from nnunet_gdla.ops.relu_projection import relu_projection, second_moments

__all__ = ["ResidualStem"]

# With more image channels the unfolded image, nine values a pixel and channel, outgrows the features that it saves.
MOST_CHANNELS = 4


class _StemNorm(nn.BatchNorm2d):
    """Batch normalisation that uses its running statistics where a batch has one value per channel."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.shape[0] * x.shape[2] * x.shape[3] == 1:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
        return super().forward(x)

    def update(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Do to the running statistics what a forward pass over `count` values with these moments does."""
        tracked, running_mean, running_var = (
            cast(Tensor, buffer) for buffer in (self.num_batches_tracked, self.running_mean, self.running_var)
        )
        tracked.add_(1)
        weight = 1 / float(tracked) if self.momentum is None else self.momentum
        running_mean.lerp_(mean, weight)
        running_var.lerp_(variance * (count / (count - 1)), weight)


class ResidualStem(nn.Module):
    r"""Two 3x3 convolutions with batch normalisation and a 1x1 shortcut.

    $$\mathrm{ReLU}(\mathrm{BN}(\mathrm{conv}_3(\mathrm{ReLU}(\mathrm{BN}(\mathrm{conv}_3 x)))) +
      \mathrm{BN}(\mathrm{conv}_1 x)).$$

    Full-resolution features of the image itself: (B, in, H, W) -> (B, out, H, W), any H and W.

    Parameters: `conv1` (in -> in), `conv2` (in -> out), `conv3` (1x1, in -> out), `norm1`, `norm2`, `norm3`; no biases
    in the convolutions. In the released code; not in the paper's text.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, in_channels, 3, padding=1, bias=False)
        self.norm1 = _StemNorm(in_channels)
        self.conv2 = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = _StemNorm(out_channels)
        self.conv3 = nn.Conv2d(in_channels, out_channels, 1, bias=False)
        self.norm3 = _StemNorm(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, in, H, W) -> (B, out, H, W)."""
        hidden = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(hidden + self.norm3(self.conv3(x)))

    def project(self, x: Tensor, head: nn.Conv2d) -> Tensor:
        r"""`head(forward(x))` for a 1x1 head, on a CPU without ever holding the features of the whole image.

        Convolution, normalisation and shortcut are one linear map of a pixel's 3x3 neighbourhood p. The statistics of
        its outputs W p follow from those of p, $\mathrm{var}(w^\top p) = w^\top \mathrm{cov}(p)\, w$, so that a pixel
        can be taken to the end before the next one is looked at.
        """
        tensors = (*self.parameters(), *self.buffers(), *head.parameters())
        if (
            x.shape[1] > MOST_CHANNELS
            or x.shape[0] * x.shape[2] * x.shape[3] == 1
            or head.bias is None
            or has_hooks(self)
            or not is_untouched(self.conv1, self.conv2, self.conv3, head)
            or not all(
                type(norm) is _StemNorm
                and not has_hooks(norm)
                and norm.training == self.training
                and norm.track_running_stats
                and norm.running_var is not None
                for norm in (self.norm1, self.norm2, self.norm3)
            )
            or not may_fuse(x, *(tensor for tensor in tensors if tensor.is_floating_point()))
        ):
            return cast(Tensor, head(self(x)))
        hidden = torch.matmul(self.conv1.weight.flatten(1), F.unfold(x, 3, padding=1)).view_as(x)
        hidden = F.relu(self.norm1(hidden))
        pixels_BIN = torch.cat([F.unfold(hidden, 3, padding=1), x.flatten(2)], dim=1)
        mean_I, covariance_II = None, None
        if self.training:
            mean_I = pixels_BIN.mean((0, 2))
            pixels_BIN = pixels_BIN - mean_I.unsqueeze(-1)
            covariance_II = second_moments(pixels_BIN)
        count, cut = x.numel() // x.shape[1], 9 * x.shape[1]
        parts = ((self.conv2, self.norm2, slice(cut)), (self.conv3, self.norm3, slice(cut, None)))
        folded = [_fold(conv, norm, rows, mean_I, covariance_II, count) for conv, norm, rows in parts]
        inner = torch.cat([weight for weight, _ in folded], dim=1)
        inner_bias = folded[0][1] + folded[1][1]
        logits = relu_projection(pixels_BIN, inner, inner_bias, head.weight.flatten(1), head.bias)
        return logits.unflatten(-1, x.shape[2:])


def _fold(
    conv: nn.Conv2d, norm: _StemNorm, rows: slice, mean_I: Tensor | None, covariance_II: Tensor | None, count: int
) -> tuple[Tensor, Tensor]:
    """Weight and bias of convolution and normalisation together, for centred pixels where `mean_I` is given."""
    weight_MI = conv.weight.flatten(1)
    if mean_I is None or covariance_II is None:
        scale_M = norm.weight * torch.rsqrt(cast(Tensor, norm.running_var) + norm.eps)
        return weight_MI * scale_M.unsqueeze(1), norm.bias - cast(Tensor, norm.running_mean) * scale_M
    variance_M = ((weight_MI @ covariance_II[rows, rows]) * weight_MI).sum(1)
    norm.update((weight_MI @ mean_I[rows]).detach(), variance_M.detach(), count)
    return weight_MI * (norm.weight * torch.rsqrt(variance_M + norm.eps)).unsqueeze(1), norm.bias
