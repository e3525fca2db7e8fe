"""The settings of a training: one YAML file, read by jsonargparse into typed dataclasses. Unknown keys are errors."""

import copy
import dataclasses
import difflib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib.resources import files
from pathlib import Path
from types import NoneType
from typing import Any, Final, cast, get_args, get_type_hints

import yaml
from jsonargparse import ArgumentError, ArgumentParser

from nnunet_gdla.damage import reason
from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.config_ranges import LARGEST_SEED, out_of_range
from nnunet_gdla.mil.config_schema import (
    Config,
    DataConfig,
    Found,
    ModelConfig,
    SplitConfig,
    TrainConfig,
    forget_unknown,
)
from nnunet_gdla.mil.config_types import wrong_type
from nnunet_gdla.mil.files import write_text
from nnunet_gdla.words import counted

__all__ = [
    "LARGEST_SEED",
    "Config",
    "DataConfig",
    "Found",
    "ModelConfig",
    "SplitConfig",
    "TrainConfig",
    "config_from_dict",
    "load_config",
    "preset_names",
    "preset_text",
    "save_config",
]

_NAME: Final = "model.name"

log = logging.getLogger(__name__)


class _TwiceError(Exception):
    """A key that stands twice in a section."""


class _Loader(yaml.SafeLoader):  # type: ignore[misc] # yaml comes without types
    """YAML whose second key of a name is an error: the standard loader would forget the first without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in lines:
                where = f"lines {lines[key.value]} and {line}"
                raise _TwiceError(f"{key.value} is written twice, in {where}: keep one of them")
            lines[key.value] = line
        found: dict[Any, Any] = super().construct_mapping(node, deep)
        return found


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a YAML file.

    Args:
        path: The file. Relative paths inside it start at its folder.
        overrides: Changes such as "train.epochs=3"; relative paths in them start at the current folder. One that names
            another model takes settings out of the file that this model does not know, and logs which.

    Raises:
        UserError: If the file cannot be read, a key is unknown, a required one is missing, or a value has a wrong type.
    """
    path = Path(path)
    try:
        tree = _yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        hint = f"; for one that comes with the package: init NAME ({', '.join(preset_names())})"
        why = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else reason(error, path)
        raise UserError(f"cannot read the settings {path}: {why}{hint}") from None
    except _TwiceError as error:
        raise UserError(f"{path}: {error}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path} is no valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path} holds no settings; it must have the sections data, split, model, train")
    # a section of which nothing but comments is left says nothing
    tree = {key: section for key, section in copy.deepcopy(tree).items() if section is not None}
    _absolute_paths(tree, path.resolve().parent)
    _change_model(tree, overrides, path)
    for override in overrides:
        _apply(tree, override)
    return config_from_dict(tree, where=str(path))


def config_from_dict(tree: Mapping[str, Any], *, where: str = "settings") -> Config:
    """Check nested settings and return them typed.

    Args:
        tree: Sections as in the YAML file.
        where: Name for error messages.

    Raises:
        UserError: As for `load_config`.
    """
    _refuse_unknown(tree, Config, where, "")
    _refuse_null(tree, Config, where, "")
    parser = ArgumentParser(exit_on_error=False, default_env=False)
    parser.add_class_arguments(Config)
    try:
        namespace = parser.parse_object(dict(tree))
        config = parser.instantiate(namespace)
    except (ArgumentError, TypeError, ValueError, KeyError) as error:
        raise UserError(f"{where}: {wrong_type(tree, Config) or _short(error)}") from None
    sections = {f.name: getattr(config, f.name) for f in fields(Config)}
    _check_ranges(Config(**sections), where)
    return Config(**sections)


def save_config(path: Path, config: Config) -> None:
    """Write settings so that `load_config` reads them back equal."""
    tree = dataclasses.asdict(config)
    if config.found is None:
        del tree["found"]
    text = "# Every setting of this run; `found` is what the data decided.\n" + yaml.safe_dump(tree, sort_keys=False)
    write_text(path, text)


def preset_names() -> list[str]:
    """Return the names of the settings that come with the package."""
    folder = files("nnunet_gdla.mil").joinpath("configs")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def preset_text(name: str) -> str:
    """Return the commented YAML of one of `preset_names`."""
    if name not in preset_names():
        raise UserError(f"no settings called {name!r}; choose one of {', '.join(preset_names())}")
    return files("nnunet_gdla.mil").joinpath("configs", f"{name}.yaml").read_text(encoding="utf-8")


def _names(cls: type) -> list[str]:
    return [f.name for f in fields(cls)]


def _section(cls: type, name: str) -> type | None:
    """The dataclass behind a key, or None for a plain value."""
    hint = get_type_hints(cls)[name]
    kinds = [kind for kind in (hint, *get_args(hint)) if is_dataclass(kind)]
    return cast(type, kinds[0]) if kinds else None


def _refuse_unknown(tree: Mapping[str, Any], cls: type, where: str, prefix: str) -> None:
    known = _names(cls)
    for key, value in tree.items():
        if key not in known:
            nearest = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {prefix}{nearest[0]}" if nearest else f"known here: {', '.join(known)}"
            raise UserError(f"{where}: unknown key {prefix}{key}; {hint}")
        section = _section(cls, key)
        if section is not None and isinstance(value, Mapping):
            _refuse_unknown(value, section, where, f"{prefix}{key}.")


def _refuse_null(tree: Mapping[str, Any], cls: type, where: str, prefix: str) -> None:
    hints = get_type_hints(cls)
    for key, value in tree.items():
        if value is None and NoneType not in get_args(hints[key]):
            raise UserError(f"{where}: {prefix}{key} has no value (null); give it one, or leave it out for its default")
        section = _section(cls, key)
        if section is not None and isinstance(value, Mapping):
            _refuse_null(value, section, where, f"{prefix}{key}.")


def _change_model(tree: dict[str, Any], overrides: Sequence[str], path: Path) -> None:
    """Before the overrides: they may set what the file must not have left behind."""
    names = [text for key, _, text in (override.partition("=") for override in overrides) if key == _NAME]
    model = tree.get("model")
    if not names or not isinstance(model, dict):
        return
    from nnunet_gdla.mil.models import MODELS, model_settings  # imports torch, which most uses do without

    if names[-1] not in MODELS:  # said by whoever builds it
        return
    before = model.get("name", ModelConfig.name)
    dropped = forget_unknown(model, model_settings(names[-1])) if before != names[-1] else []
    if dropped:
        log.warning(
            "WARN %s sets %s for %s; %s has no such setting: left out", path, ", ".join(dropped), before, names[-1]
        )


def _absolute_paths(tree: dict[str, Any], folder: Path) -> None:
    def absolute(value: object) -> object:
        if isinstance(value, list):
            return [absolute(each) for each in value]
        return str(folder / Path(value).expanduser()) if isinstance(value, str) else value

    for section, key in (("data", "table"), ("data", "features"), ("split", "file")):
        values = tree.get(section)
        if isinstance(values, dict) and key in values:
            values[key] = absolute(values[key])


def _apply(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.split(".")
    if not equals or not all(parts):
        raise UserError(f"--set {override}: write SECTION.KEY=VALUE, such as train.epochs=3")
    try:
        value = _yaml(text)
    except _TwiceError as error:
        raise UserError(f"--set {override}: {error}") from None
    except yaml.YAMLError:
        value = text
    node: Any = tree
    for part in parts[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise UserError(f"--set {override}: {part} is no section")
    if key in ("data.table", "data.features", "split.file") and isinstance(value, str):
        value = str(Path(value).expanduser().resolve())
    node[parts[-1]] = value


def _check_ranges(config: Config, where: str) -> None:
    split = config.split
    if complaint := out_of_range(config):
        raise UserError(f"{where}: {complaint}")
    if split.scheme in ("kfold", "site") and not split.fold < split.folds:
        raise UserError(
            f"{where}: split.fold {split.fold} of {counted(split.folds, 'fold')}; folds are numbered from 0"
        )
    if split.file is None and split.scheme == "file" and config.data.split is None:
        raise UserError(f"{where}: split.scheme is file: name split.file, or data.split, the column that holds it")


def _yaml(text: str) -> Any:  # noqa: ANN401
    return yaml.load(text, Loader=_Loader)


def _short(error: BaseException) -> str:
    """What jsonargparse found, in one line."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    return " ".join(lines).replace("Parser key ", "") or type(error).__name__
