"""Where the tensors are in a file of weights: inside which dictionaries, and under which prefixes of their names.

One reading for whoever looks into such a file and for the trainers that start from it.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from nnunet_gdla.networks.released import strip_wrapping_prefix

__all__ = ["Unwrapped", "encoder_part", "nested_tensor", "unwrap"]

# What programs call the dictionary of a model's tensors; the first that is there is taken.
_CONTAINERS = (
    *("model_state_dict", "state_dict", "model_state", "network_weights", "model", "network", "net", "module"),
    *("encoder", "backbone", "weights", "params"),
)
_FIRST_TENSOR = re.compile(r"(?P<prefix>(?:.*\.)?)patch_embed1?\.proj\.weight")


class Unwrapped(NamedTuple):
    """The tensors of a file.

    Args:
        tensors: By name, without the prefixes that stand before all of them.
        extras: What stands beside them.
        container: The names of the dictionaries that they are in, outermost first.
    """

    tensors: dict[str, Tensor]
    extras: dict[str, Any]
    container: tuple[str, ...]


def unwrap(content: Mapping[str, Any]) -> Unwrapped:
    """Find the tensors in what a file holds, however many dictionaries they are in."""
    extras: dict[str, Any] = {}
    container: list[str] = []
    while (name := _container(content)) is not None:
        extras |= {key: value for key, value in content.items() if key != name}
        content = content[name]
        container.append(name)
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    return Unwrapped(strip_wrapping_prefix(tensors), extras, tuple(container))


def nested_tensor(content: object) -> tuple[str, ...] | None:
    """Return the way to the first tensor in dictionaries and lists, however deep it is; None if there is none."""
    waiting: list[tuple[object, tuple[str, ...]]] = [(content, ())]
    seen: set[int] = set()  # what holds itself would never end
    for value, way in waiting:
        if isinstance(value, Tensor):
            return way
        if id(value) not in seen and isinstance(value, Mapping | list | tuple):
            seen.add(id(value))
            inner = value.items() if isinstance(value, Mapping) else enumerate(value)
            waiting += [(each, (*way, str(name))) for name, each in inner]
    return None


def encoder_part(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """Return a PVTv2's tensors without their prefix, and the prefix: "encoder.", "model.backbone." or the like.

    What has another prefix, such as a classifier, is left out; without a prefix everything stays.

    Raises:
        ValueError: If there are several encoders, such as those of a teacher and a student.
    """
    found = [match["prefix"] for match in map(_FIRST_TENSOR.fullmatch, tensors) if match is not None]
    prefixes = list(dict.fromkeys(found))
    if len(prefixes) > 1:
        raise ValueError(
            f"it holds several encoders, under {', '.join(repr(prefix) for prefix in prefixes)}; save one of them alone"
        )
    # A file that lacks this tensor is to be told by the other ones.
    prefix = prefixes[0] if prefixes else next((each for each in ("backbone.", "encoder.") if _some(tensors, each)), "")
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}, prefix


def _some(tensors: Mapping[str, Tensor], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in tensors)


def _container(content: Mapping[str, Any]) -> str | None:
    for name in _CONTAINERS:
        if isinstance(content.get(name), Mapping):
            return name
    holding = [
        name
        for name, value in content.items()
        if isinstance(value, Mapping) and any(isinstance(each, Tensor) for each in value.values())
    ]
    plain = any(isinstance(value, Tensor) for value in content.values())
    return holding[0] if len(holding) == 1 and not plain else None
