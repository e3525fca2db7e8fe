"""What kind of thing a file of weights holds, told by the names in it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from torch import Tensor

from nnunet_gdla.networks.released import convert_released_state_dict, encoder_key
from nnunet_gdla.networks.wrapped_weights import encoder_part, nested_tensor, unwrap
from nnunet_gdla.words import counted

__all__ = ["Contents", "Kind", "classify"]


class Kind(StrEnum):
    """What a file is, in the words in which it is shown."""

    ENCODER_ORIGINAL = "PVTv2 encoder in its authors' names"
    ENCODER_TIMM = "PVTv2 encoder in timm's names"
    ENCODER_FEATURES = "PVTv2 encoder in the names of timm's feature extractor"
    RELEASED = "PVT-GDLA network in the released names"
    OURS = "PVT-GDLA network in the names of nnunet-gdla"
    NNUNET_OURS = "nnU-Net checkpoint of a PVT-GDLA network"
    NNUNET_OTHER = "nnU-Net checkpoint of another network"
    LIGHTNING = "Lightning checkpoint"
    TENSORS = "tensors of an unknown network"
    PLANS = "nnU-Net plans"
    DATASET = "dataset.json of nnU-Net"
    OTHER = "neither weights nor plans"


ENCODERS = (Kind.ENCODER_ORIGINAL, Kind.ENCODER_TIMM, Kind.ENCODER_FEATURES)
NETWORKS = (Kind.RELEASED, Kind.OURS, Kind.NNUNET_OURS)


@dataclass(frozen=True)
class Contents:
    """A file, sorted.

    Args:
        kind: What it is.
        tensors: The network's tensors as the file names them, without wrappers and their prefixes.
        extras: What stands beside them: epoch, trainer, plans and the like; for JSON files all of it.
        note: Where the tensors were wrapped in something, in what.
    """

    kind: Kind
    tensors: Mapping[str, Tensor]
    extras: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def is_encoder(self) -> bool:
        """Whether it is an encoder alone."""
        return self.kind in ENCODERS

    @property
    def is_network(self) -> bool:
        """Whether it is a whole network of ours, or a released one."""
        return self.kind in NETWORKS

    def in_our_names(self) -> dict[str, Tensor]:
        """The tensors as `PVTGDLA` names them, or an encoder's as its encoder does; no classifier."""
        if self.kind is Kind.RELEASED:
            return convert_released_state_dict(self.tensors)
        if self.is_encoder:
            return {encoder_key(name): value for name, value in self.tensors.items() if not name.startswith("head.")}
        return dict(self.tensors)


def classify(content: Any) -> Contents:  # noqa: ANN401 - anything may be in a file
    """Sort what `read_content` has read."""
    if not isinstance(content, Mapping):
        held = f"it holds a {type(content).__name__}"
        return Contents(Kind.OTHER, {}, {}, "; ".join(filter(None, (held, _where_else(content)))))
    if isinstance(content.get("network_weights"), Mapping):
        extras = {name: value for name, value in content.items() if name != "network_weights"}
        tensors = unwrap(content["network_weights"]).tensors
        kind = Kind.NNUNET_OURS if _kind_of(tensors) is Kind.OURS else Kind.NNUNET_OTHER
        return Contents(kind, tensors, extras)
    if not any(isinstance(value, Tensor | Mapping) for value in content.values()):
        return Contents(Kind.OTHER, {}, content, _where_else(content) or "it holds no tensors")
    if isinstance(content.get("configurations"), Mapping):
        return Contents(Kind.PLANS, {}, content)
    if isinstance(content.get("labels"), Mapping):
        return Contents(Kind.DATASET, {}, content)
    return _classify_wrapped(content)


def _where_else(content: object) -> str:
    """Say where there are tensors that are nested too deep to tell which of them are a model's."""
    way = nested_tensor(content)
    if way is None:
        return ""
    inside = " / ".join(map(repr, way[:-1])) or "a list"
    return f"its tensors are nested, the first in {inside}; save the dictionary of one model's tensors alone"


def _classify_wrapped(content: Mapping[str, Any]) -> Contents:
    tensors, extras, container = unwrap(content)
    note = f"under {' / '.join(map(repr, container))}" if container else ""
    if not tensors:
        return Contents(Kind.OTHER, {}, extras, _where_else(content) or "it holds no tensors")
    kind = _kind_of(tensors)
    if kind is Kind.TENSORS:
        inner, prefix = _encoder_inside(tensors)
        if prefix and _kind_of(inner) in ENCODERS:
            named = f"names begin with {prefix!r}"
            left = len(tensors) - len(inner)
            named += f", {counted(left, 'other tensor')} left out" if left else ""
            return Contents(_kind_of(inner), inner, extras, f"{note}, {named}" if note else named)
        if "pytorch-lightning_version" in extras:
            kind = Kind.LIGHTNING
    return Contents(kind, tensors, extras, note)


def _encoder_inside(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    try:
        return encoder_part(tensors)
    except ValueError:  # several: none of them is what the file holds
        return dict(tensors), ""


def _kind_of(tensors: Mapping[str, Tensor]) -> Kind:
    def some(*starts: str) -> bool:
        return any(name.startswith(starts) for name in tensors)

    if some("backbone.patch_embed1.") and some("de1.", "resblk.", "head1."):
        return Kind.RELEASED
    if some("encoder.stages_0.") and some("decoder.blocks.", "decoder.seg_layers."):
        return Kind.OURS
    if some("patch_embed1.") and some("block1."):
        return Kind.ENCODER_ORIGINAL
    if some("patch_embed.") and some("stages.0.downsample.", "stages.1.downsample."):
        return Kind.ENCODER_TIMM
    if some("patch_embed.") and some("stages_1.downsample."):
        return Kind.ENCODER_FEATURES
    return Kind.TENSORS
