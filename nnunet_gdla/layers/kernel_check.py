"""Kernels that are named are compared with the plain forms before a training, by one forward pass of the network."""

from typing import Any

import torch
from torch import nn

from nnunet_gdla.ops._dispatch import is_named
from nnunet_gdla.ops._self_check import as_it_was

__all__ = ["compare_kernels"]


def compare_kernels(network: nn.Module, *inputs: Any) -> None:  # noqa: ANN401 - as the network's
    """Run a network once, eagerly, so that its operators compare the kernels that `NNUNET_GDLA_FORMS` names.

    To be called before the network is compiled, since only a kernel that has passed may stand in a graph, and under the
    autocast of the training. Nothing is run where no kernel is named. The pass is one of evaluation without gradients:
    statistics, modes, random state and peak memory stay as they were.

    Args:
        network: Not compiled.
        *inputs: A small example.

    Raises:
        UserError: If the variable cannot be read.
    """
    if not is_named("triton"):
        return
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        with torch.no_grad(), as_it_was(next(network.parameters()).device):
            network(*inputs)
    finally:
        for module, mode in modes:
            module.training = mode
