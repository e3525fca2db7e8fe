"""What autograd really keeps for the backward pass of a network."""

from collections.abc import Sequence

import torch

from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.plans.nnunet_gdla_sizes import NetworkSize

__all__ = ["build", "count_saved_bytes"]


def build(size: NetworkSize) -> PVTGDLA:
    """The network of that size, training, with deep supervision."""
    return PVTGDLA(
        size.input_channels,
        size.num_classes,
        encoder=size.encoder,
        decoder=size.decoder,  # type: ignore[arg-type]
        deep_supervision=True,
    ).train()


def count_saved_bytes(network: PVTGDLA, patch_size: Sequence[int], batch_size: int) -> int:
    """Bytes of all storages that a forward pass saves, each once, parameters left out."""
    kept: dict[int, int] = {}
    parameters = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # an output that its own node keeps would never be freed

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        outputs = network(torch.randn(batch_size, network.input_channels, *patch_size))
    assert len(outputs) == 4  # and, until here, the graph lives: no address is used twice
    return sum(kept.values())
