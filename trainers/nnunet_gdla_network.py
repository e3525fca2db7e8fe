"""Which network a trainer builds from which plans, and what it refuses."""

from collections.abc import Callable
from typing import Any

import torch
from nnunetv2.utilities.get_network_from_plans import get_network_from_plans
from nnunetv2.utilities.plans_handling.plans_handler import ConfigurationManager, PlansManager
from torch import Tensor, nn

from nnunet_gdla.errors import UserError, install_excepthook
from nnunet_gdla.networks import PVTGDLA

__all__ = ["DEFAULT_ENCODER", "Float32PVTGDLA", "NetworkBuilder", "encoder_of", "network_builder", "refuse_plans"]

DEFAULT_ENCODER = "pvt_v2_b2"
NetworkBuilder = Callable[[PlansManager, ConfigurationManager, int, int, bool], nn.Module]


class Float32PVTGDLA(PVTGDLA):
    """PVTGDLA in float32 whatever autocast says: nnU-Net predicts under autocast to float16 on a GPU."""

    def forward(self, x: Tensor) -> Tensor | list[Tensor]:
        """As `PVTGDLA.forward`."""
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.float())


def refuse_plans(plans_manager: PlansManager, configuration: str, decoder: str, encoder: str | None) -> None:
    """Raise a UserError for what a trainer could not build, before it makes folders.

    Args:
        plans_manager: The plans.
        configuration: Name of the configuration.
        decoder: The decoder that the trainer's name stands for.
        encoder: The encoder that its name fixes, or None.

    Raises:
        UserError: For a 3D configuration or a cascade, and for plans of ours that name another decoder or encoder.
    """
    manager = plans_manager.get_configuration(configuration)
    refuse_unsupported(manager, configuration)
    if _is_ours(manager):
        _refuse_conflict(plans_manager, manager.network_arch_init_kwargs, decoder, encoder)


def refuse_unsupported(configuration_manager: ConfigurationManager, name: str) -> None:
    """Refuse what is not 2D.

    Raises:
        UserError: For 3D configurations and cascades.
    """
    patch_size = list(configuration_manager.patch_size)
    if len(patch_size) == 2 and configuration_manager.previous_stage_name is None:
        return
    what = "a cascade" if configuration_manager.previous_stage_name is not None else f"{len(patch_size)}D"
    raise UserError(
        f"{name} is {what} (patch size {patch_size}), which nnunet_gdla does not support; supported are 2D "
        f"configurations without a previous stage: train '2d' with this trainer, or use a stock trainer for {name}"
    )


def network_builder(decoder: str, encoder: str | None, *, float32: bool = False) -> NetworkBuilder:
    """Make a trainer's `build_network_architecture`, which raises a UserError where the plans name another encoder.

    Args:
        decoder: The decoder that the trainer's name stands for.
        encoder: The encoder that its name fixes; None: the plans' own, or `DEFAULT_ENCODER` on stock plans.
        float32: Whether the network computes in float32 under autocast too.
    """
    network = Float32PVTGDLA if float32 else PVTGDLA

    def build_network_architecture(
        plans_manager: PlansManager,
        configuration_manager: ConfigurationManager,
        num_input_channels: int,
        num_output_channels: int,
        enable_deep_supervision: bool = True,
    ) -> nn.Module:
        """Build the plans' network if it is one of ours, else PVTGDLA; random weights, nothing is read from disk."""
        install_excepthook()  # nnU-Net's predictor makes no trainer
        refuse_unsupported(configuration_manager, "this configuration")
        if not _is_ours(configuration_manager):
            return network(
                num_input_channels,
                num_output_channels,
                encoder=encoder or DEFAULT_ENCODER,
                decoder=decoder,  # type: ignore[arg-type]
                deep_supervision=enable_deep_supervision,
            )
        _refuse_conflict(plans_manager, configuration_manager.network_arch_init_kwargs, decoder, encoder)
        named = f"{network.__module__}.{network.__name__}" if float32 else configuration_manager.network_arch_class_name
        try:
            return get_network_from_plans(
                named,
                configuration_manager.network_arch_init_kwargs,
                configuration_manager.network_arch_init_kwargs_req_import,
                num_input_channels,
                num_output_channels,
                allow_init=True,
                deep_supervision=enable_deep_supervision,
            )
        except ValueError as error:  # a choice that the network does not know
            raise UserError(f"the plans {plans_manager.plans_name!r} cannot be built: {error}") from error

    return build_network_architecture


def encoder_of(configuration_manager: ConfigurationManager, encoder: str | None) -> str:
    """Name of the encoder that a trainer builds from a configuration."""
    if not _is_ours(configuration_manager):
        return encoder or DEFAULT_ENCODER
    return str(configuration_manager.network_arch_init_kwargs.get("encoder", DEFAULT_ENCODER))


def _is_ours(configuration_manager: ConfigurationManager) -> bool:
    return str(configuration_manager.network_arch_class_name).startswith("nnunet_gdla.")


def _refuse_conflict(plans: PlansManager, arguments: dict[str, Any], decoder: str, encoder: str | None) -> None:
    planned = (arguments.get("decoder", "gdla"), arguments.get("encoder", DEFAULT_ENCODER))
    for part, wanted, found in zip(("decoder", "encoder"), (decoder, encoder), planned, strict=True):
        if wanted is not None and wanted != found:
            raise UserError(
                f"the trainer's name stands for {part} {wanted!r}, the plans {plans.plans_name!r} name {part} "
                f"{found!r}; use the trainer that fits these plans, or stock plans (-p nnUNetPlans) with this trainer"
            )
