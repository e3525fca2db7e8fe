"""What AdamW decays and what not, and one optimiser step over all processes."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from nnunet_gdla.layers.redundancy import FixedSRP, RedundancyGate
from nnunet_gdla.mil.data import process_rank

__all__ = ["parameter_groups", "sum_gradients"]


def parameter_groups(
    model: nn.Module, weight_decay: float, *, decay_norms_and_biases: bool, gate_lr_scale: float = 1.0
) -> list[dict[str, Any]]:
    """Sort parameters into those that decay and those that do not.

    Never decayed: what a layer names itself in `no_weight_decay` (biases of gates, learned coefficients).

    Args:
        model: The model.
        weight_decay: For the first group.
        decay_norms_and_biases: Decay everything else, norms and biases included, as published; otherwise norms and
            biases are left out too.
        gate_lr_scale: Factor on the learning rate of gates and learned coefficients.

    Returns:
        Two groups for AdamW, in the order of `model.parameters()`; with a factor other than 1 two more, those of the
        gates, whose entry `lr_scale` is that factor. (Checkpoints of trainings without one have two groups.)
    """
    kept: set[int] = set()
    for module in model.modules():
        named = getattr(module, "no_weight_decay", None)
        if named is not None:
            kept.update(id(module.get_parameter(name)) for name in named())
        if not decay_norms_and_biases:
            own = module.named_parameters(recurse=False)
            kept.update(id(p) for name, p in own if "Norm" in type(module).__name__ or name.endswith("bias"))
    gates = [module for module in model.modules() if isinstance(module, RedundancyGate | FixedSRP)]
    scaled = {id(p) for gate in gates for p in gate.parameters()} if gate_lr_scale != 1 else set()

    def groups(parameters: list[nn.Parameter], **entries: float) -> list[dict[str, Any]]:
        return [
            {"params": [p for p in parameters if id(p) not in kept], "weight_decay": weight_decay} | entries,
            {"params": [p for p in parameters if id(p) in kept], "weight_decay": 0.0} | entries,
        ]

    others = groups([p for p in model.parameters() if id(p) not in scaled])
    if not scaled:
        return others
    return others + groups([p for p in model.parameters() if id(p) in scaled], lr_scale=gate_lr_scale)


@torch.no_grad()
def sum_gradients(parameters: Iterable[Tensor]) -> None:
    """Replace every gradient by its sum over the processes.

    A parameter without a gradient anywhere keeps none: the optimiser must not touch it.
    """
    if process_rank()[1] == 1:
        return
    trained = [p for p in parameters if p.requires_grad]
    used = torch.tensor([p.grad is not None for p in trained], dtype=torch.int32, device=trained[0].device)
    torch.distributed.all_reduce(used, op=torch.distributed.ReduceOp.MAX)
    shared = [p for p, somewhere in zip(trained, used.tolist(), strict=True) if somewhere]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in shared]
    joined = torch.cat([gradient.flatten() for gradient in gradients])
    torch.distributed.all_reduce(joined)
    for p, summed in zip(shared, joined.split([p.numel() for p in shared]), strict=True):
        p.grad = summed.view_as(p).clone()
