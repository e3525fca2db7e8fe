"""What to say when a loss is not finite: where in the data or the network it began."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

__all__ = ["first_non_finite"]


def first_non_finite(network: nn.Module, data: Tensor, cases: Sequence[str], *, gradients: bool = False) -> str:
    """Name the first tensor that holds NaN or Inf: image, parameter, output of a module or gradient.

    Args:
        network: The network as it stands; run once more on `data` without gradients.
        data: The batch (B, C, H, W).
        cases: Case ids of the batch.
        gradients: Look at gradients too. Where the loss itself is bad they all are, and say nothing.
    """
    for index, image in enumerate(data):
        for channel, values in enumerate(image):
            if not _is_finite(values):
                return f"image of case {cases[index] if index < len(cases) else index}, channel {channel}"
    for name, parameter in network.named_parameters():
        if not _is_finite(parameter):
            return f"parameter {name}"
    output = _first_bad_output(network, data)
    if output is not None:
        return output
    # The backward pass begins at the end of the network, and so does the search for where it went wrong.
    for name, parameter in reversed(list(network.named_parameters())) if gradients else ():
        if parameter.grad is not None and not _is_finite(parameter.grad):
            return f"gradient of {name}"
    return "the loss alone (image, parameters and network outputs are finite)"


def _first_bad_output(network: nn.Module, data: Tensor) -> str | None:
    found: list[str] = []

    def watch(name: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def hook(_module: nn.Module, _inputs: object, output: object) -> None:
            if not found and not all(_is_finite(tensor) for tensor in _tensors(output)):
                found.append(f"output of module {name or 'network'}")

        return module.register_forward_hook(hook)

    handles = [watch(name, module) for name, module in network.named_modules()]
    try:
        # In the precision of the training, or what overflowed there would look sound here.
        with torch.no_grad(), torch.autocast(data.device.type, enabled=data.is_cuda):
            network(data)
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def _tensors(output: object) -> Iterable[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, (list, tuple)):
        for part in output:
            yield from _tensors(part)


def _is_finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())
