"""The networks of the efficiency table, ours and nnU-Net's, by name."""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from torch import nn

from nnunet_gdla.commands.arguments_efficiency import NETWORKS
from nnunet_gdla.errors import UserError
from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.networks.decoder import DecoderKind

__all__ = ["Candidate", "build_candidate"]

# What nnU-Net's planners write into their 2D plans; a test compares with the planners.
_SMALLEST_MAP, _FIRST_FEATURES, _MOST_FEATURES = 4, 32, 512
_RESIDUAL_BLOCKS = (1, 3, 4)
_RESIDUAL_BLOCKS_BELOW = 6
_ANY_NUMBER_OF_POOLINGS = 999999


class Candidate(NamedTuple):
    """A network and what it is to be given.

    Args:
        name: One of `NETWORKS`.
        network: (B, channels, H, W) -> (B, classes, H, W), in evaluation mode, random weights.
        input_size: Edge of its input: the image's, or for nnU-Net's networks the patch that holds the image.
    """

    name: str
    network: nn.Module
    input_size: int


def build_candidate(name: str, size: int, *, channels: int, classes: int) -> Candidate:
    """Make one of the networks as it would be used for square images of a size.

    Args:
        name: One of those that the command lists.
        size: Edge of the images in pixels.
        channels: Of the images.
        classes: Output channels, background included.

    Raises:
        UserError: If the name is unknown; the message lists the known ones.
    """
    if name not in NETWORKS:
        raise UserError(f"unknown network {name!r}: choose from {', '.join(NETWORKS)}.")
    if name.startswith("nnunet"):
        return _nnunet(name, size, channels, classes)
    decoder, encoder = name.split("-")
    network = PVTGDLA(channels, classes, encoder=f"pvt_v2_{encoder}", decoder=cast(DecoderKind, decoder))
    return Candidate(name, network.eval(), size)


def _nnunet(name: str, size: int, channels: int, classes: int) -> Candidate:
    """Build nnU-Net's network through its own function, from what its planner would write."""
    from nnunetv2.utilities.get_network_from_plans import get_network_from_plans

    architecture, patch = nnunet_architecture(size, residual=name == "nnunet-resenc")
    network: nn.Module = get_network_from_plans(
        architecture["network_class_name"],
        architecture["arch_kwargs"],
        architecture["_kw_requires_import"],
        channels,
        classes,
        deep_supervision=False,
    )
    return Candidate(name, network.eval(), patch)


def nnunet_architecture(size: int, *, residual: bool) -> tuple[Mapping[str, Any], int]:
    """Return the `architecture` of nnU-Net's 2D plans for square images of isotropic spacing, and the patch's edge."""
    from nnunetv2.experiment_planning.experiment_planners.network_topology import get_pool_and_conv_props

    _, strides, kernels, patch, _ = get_pool_and_conv_props(
        (1.0, 1.0), (size, size), _SMALLEST_MAP, _ANY_NUMBER_OF_POOLINGS
    )
    stages = len(strides)
    arguments = {
        "n_stages": stages,
        "features_per_stage": tuple(min(_MOST_FEATURES, _FIRST_FEATURES * 2**stage) for stage in range(stages)),
        "conv_op": "torch.nn.modules.conv.Conv2d",
        "kernel_sizes": kernels,
        "strides": strides,
        **_depths(stages, residual=residual),
        "conv_bias": True,
        "norm_op": "torch.nn.modules.instancenorm.InstanceNorm2d",
        "norm_op_kwargs": {"eps": 1e-5, "affine": True},
        "dropout_op": None,
        "dropout_op_kwargs": None,
        "nonlin": "torch.nn.LeakyReLU",
        "nonlin_kwargs": {"inplace": True},
    }
    name = "ResidualEncoderUNet" if residual else "PlainConvUNet"
    architecture = {
        "network_class_name": f"dynamic_network_architectures.architectures.unet.{name}",
        "arch_kwargs": arguments,
        "_kw_requires_import": ("conv_op", "norm_op", "dropout_op", "nonlin"),
    }
    return architecture, int(patch[0])


def _depths(stages: int, *, residual: bool) -> dict[str, tuple[int, ...]]:
    if not residual:
        return {"n_conv_per_stage": (2,) * stages, "n_conv_per_stage_decoder": (2,) * (stages - 1)}
    blocks = (*_RESIDUAL_BLOCKS, *(_RESIDUAL_BLOCKS_BELOW,) * stages)[:stages]
    return {"n_blocks_per_stage": blocks, "n_conv_per_stage_decoder": (1,) * (stages - 1)}
