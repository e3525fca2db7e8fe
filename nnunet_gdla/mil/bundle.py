"""What a finished run gives away: one folder, the weights as safetensors and all that is needed to use them as JSON."""

import dataclasses
import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from nnunet_gdla import __version__
from nnunet_gdla.damage import reason
from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.bundle_info import FORMAT, BundleInfo, answer, info_from_dict
from nnunet_gdla.mil.data import model_inputs
from nnunet_gdla.mil.device import pick_device
from nnunet_gdla.mil.files import replaced, write_json
from nnunet_gdla.mil.models import MODELS, build_model, model_settings
from nnunet_gdla.mil.neighbours import NeighbourOptions, Neighbours
from nnunet_gdla.mil.slides import Slide
from nnunet_gdla.mil.slides.encoders import common_encoder, same_encoder

__all__ = [
    "FORMAT",
    "Bundle",
    "BundleInfo",
    "load_bundle",
    "load_bundles",
    "load_info",
    "resolved_arguments",
    "save_bundle",
]

_WEIGHTS, _INFO = "model.safetensors", "bundle.json"
_CLASSES = "classes"  # entry of the weights' metadata
_AGAIN = "copy the bundle again from where it was made"


@dataclass(frozen=True)
class Bundle:
    """A trained model (or several: the mean of their answers) with its description."""

    info: BundleInfo
    models: tuple[nn.Module, ...]
    device: torch.device
    folders: tuple[str, ...] = ()

    @property
    def model(self) -> nn.Module:
        """The model of a bundle that holds one; the first of several."""
        return self.models[0]

    @torch.inference_mode()
    def predict(
        self, slide: Slide, neighbours: Mapping[NeighbourOptions, Neighbours] | None = None
    ) -> dict[str, float]:
        """Return `prob_<class>` for each class, or `risk` and `hazard_<bin>`; `neighbours` as for `model_inputs`.

        Raises:
            UserError: If the slide's features do not fit, or the answer is not finite.
        """
        self.info.refuse(slide)
        inputs = (model_inputs(model, slide, self.device, neighbours) for model in self.models)
        outputs = torch.stack([model(**each)[0] for model, each in zip(self.models, inputs, strict=True)])
        outputs = outputs.double().cpu()
        if not bool(outputs.isfinite().all()):
            raise UserError(
                f"slide {slide.slide_id}: the model's answer is not finite; look for NaN or huge values in its features"
            )
        return answer(outputs, self.info)


def resolved_arguments(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a model with its defaults written out, so that a later default changes nothing.

    Raises:
        UserError: If the model has no such argument.
    """
    if name not in MODELS:
        raise UserError(f"no model called {name!r}; choose one of {', '.join(sorted(MODELS))}")
    parameters = model_settings(name)
    unknown = sorted(set(arguments) - set(parameters))
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    if unknown and not takes_any:
        raise UserError(
            f"model {name} has no setting {', '.join(unknown)}; it has {', '.join(parameters) or 'none'}: remove from "
            "the section model what is written for another model, or set it to null"
        )
    defaults = {key: p.default for key, p in parameters.items() if p.default is not inspect.Parameter.empty}
    return defaults | arguments


def save_bundle(folder: Path, model: nn.Module, info: BundleInfo) -> None:
    """Write a bundle; the description comes last, so that a half-written folder is none."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    classes = {_CLASSES: json.dumps(list(info.classes))}
    replaced(folder / _WEIGHTS, lambda path: save_file(tensors, path, metadata=classes))
    write_json(folder / _INFO, dataclasses.asdict(info))


def load_bundle(folder: str | Path, device: str | torch.device = "cpu") -> Bundle:
    """Read a bundle (or the bundle inside a run folder).

    Raises:
        UserError: If there is none, it is damaged, or a newer version of this package wrote it.
    """
    folder = _bundle_folder(Path(folder))
    info = _read_info(folder / _INFO)
    try:
        model = build_model(info.model, info.in_dim, info.num_outputs, **info.model_kwargs)
        model.load_state_dict(load_file(folder / _WEIGHTS))
        named = _classes_of(folder / _WEIGHTS)
    except (OSError, SafetensorError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"the bundle {folder} cannot be loaded: {' '.join(str(error).split())[:300]}") from None
    if named is not None and named != list(info.classes):
        raise UserError(
            f"{folder / _INFO} calls the outputs {', '.join(info.classes) or 'nothing'}, the weights were saved with "
            f"{', '.join(map(str, named)) or 'no class'}: put the names back (--label-map renames those of a table)"
        )
    device = pick_device(device) if isinstance(device, str) else device
    return Bundle(info, (model.to(device).eval(),), device, (str(folder),))


def _classes_of(weights: Path) -> list[str] | None:
    """The class names that the weights were saved with; None in bundles of versions that did not write them."""
    with safe_open(weights, framework="pt") as file:
        text = (file.metadata() or {}).get(_CLASSES)
    if text is None:
        return None
    names = json.loads(text)
    if not isinstance(names, list):
        raise ValueError(f"the class names of {weights.name} are no list")
    return names


def load_info(folder: str | Path) -> BundleInfo:
    """Read the description of a bundle (or of the bundle inside a run folder) alone."""
    return _read_info(_bundle_folder(Path(folder)) / _INFO)


def load_bundles(folders: Sequence[str | Path], device: str | torch.device = "cpu") -> Bundle:
    """Read one bundle, or several as an ensemble.

    Thresholds and median risks are averaged. Time bins of folds come from different patients: where edges differ, the
    risks are still averaged, but no edges are given. Event columns that differ in name or meaning are left out.

    Raises:
        UserError: As for `load_bundle`, or if the bundles do not answer the same question on the same features.
    """
    bundles = [load_bundle(folder, device) for folder in folders]
    first = bundles[0].info
    for folder, other in zip(folders, bundles, strict=True):
        for name in (
            "task",
            "classes",
            "num_outputs",
            "in_dim",
            "encoder",
            "feature_key",
            "stride",
            "unit",
            "c_index_ties",
        ):
            ours, theirs = getattr(first, name), getattr(other.info, name)
            if ours != theirs and not (name == "encoder" and same_encoder(ours, theirs)):
                raise UserError(f"{folders[0]} and {folder} are no ensemble: {name} is {ours!r} and {theirs!r}")
    infos = [bundle.info for bundle in bundles]
    info = dataclasses.replace(
        first,
        encoder=common_encoder(each.encoder for each in infos),
        needs_coords=any(each.needs_coords for each in infos),
        bin_edges=first.bin_edges if len({each.bin_edges for each in infos}) == 1 else (),
        threshold=_mean([each.threshold for each in infos]),
        median_risk=_mean([each.median_risk for each in infos]),
    )
    if any(_events_of(each) != _events_of(first) for each in infos):
        info = dataclasses.replace(info, event_column=None, event_is_censoring=None, event_map=None)
    names = tuple(name for bundle in bundles for name in bundle.folders)
    return Bundle(info, tuple(bundle.model for bundle in bundles), bundles[0].device, names)


def _events_of(info: BundleInfo) -> tuple[str | None, bool, dict[str, int] | None]:
    return info.event_column, bool(info.event_is_censoring), info.event_map


def _bundle_folder(folder: Path) -> Path:
    for place in (folder, folder / "bundle"):
        if (place / _INFO).is_file():
            return place
    finished = "; the run has not finished: fit --resume" if (folder / "config.yaml").is_file() else ""
    raise UserError(f"{folder} is no bundle: there is no {_INFO} in it{finished}")


def _read_info(path: Path) -> BundleInfo:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is damaged: it is no JSON from line {error.lineno} on: {_AGAIN}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {reason(error, path)}") from None
    try:
        if not isinstance(tree, dict):
            raise ValueError("it holds no names with values")
        _refuse_newer(tree, path.parent)
        return info_from_dict(tree)
    except ValueError as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} is damaged: {error}: {_AGAIN}") from None


def _refuse_newer(tree: dict[str, Any], folder: Path) -> None:
    number, version = tree.get("format"), tree.get("version")
    if type(number) is int and number > FORMAT:
        raise UserError(
            f"{folder} has version {number} of the bundle format, nnunet-gdla {__version__} reads up to {FORMAT}: "
            "update the package"
        )
    if isinstance(version, str) and _release(version) > _release(__version__):
        raise UserError(f"{folder} was written by nnunet-gdla {version}, this is {__version__}: update the package")


def _release(version: str) -> tuple[int, ...]:
    """Leading numbers of a version, for comparison: development builds count as the release that they precede."""
    numbers = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
