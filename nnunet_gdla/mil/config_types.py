"""Settings of a wrong type, in words: the key, the value, and what was expected."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import yaml

__all__ = ["wrong_type"]

WORDS: Final = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text (numbers in quotes)",
    NoneType: "null",
}
SHOWN: Final = 80


def wrong_type(tree: Mapping[str, Any], cls: type, prefix: str = "") -> str | None:
    """Return one sentence about the first setting that is not of its field's type; None where all are.

    Args:
        tree: Settings as they were written.
        cls: The dataclass they are for.
        prefix: What the names begin with, such as "train.".
    """
    hints = get_type_hints(cls)
    for field in fields(cls):
        if field.name not in tree:
            continue
        name, value, hint = f"{prefix}{field.name}", tree[field.name], hints[field.name]
        section = next((kind for kind in (hint, *get_args(hint)) if is_dataclass(kind)), None)
        if isinstance(section, type) and isinstance(value, Mapping):
            found = wrong_type(value, section, f"{name}.")
            if found is not None:
                return found
        elif not _fits(value, hint):
            text = repr(value)
            text = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
            return f"{name} is {text}; it must be {_words(hint)}"
    return None


def _fits(value: object, hint: Any) -> bool:  # noqa: ANN401 - types have no type
    """Whether a value of a YAML file can stand for a type; numbers and truth values in quotes can."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (UnionType, Union):
        return any(_fits(value, each) for each in inner)
    if origin is Literal:
        return value in inner
    if origin is list:
        return isinstance(value, list) and all(_fits(each, inner[0]) for each in value)
    if origin is dict or hint is dict:
        # names are taken whatever they look like
        return isinstance(value, dict) and all(_fits(each, inner[1]) for each in value.values())
    if is_dataclass(hint):
        return isinstance(value, Mapping)
    if hint is float and isinstance(value, str):  # YAML reads 1e-4 as text
        return _is_number(value)
    if hint in (int, bool) and isinstance(value, str):
        value = _as_yaml(value)
    if hint in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, int | float if hint is float else hint)


def _words(hint: Any) -> str:  # noqa: ANN401
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (UnionType, Union):
        return ", or ".join(_words(each) for each in inner)
    if origin is Literal:
        return str(inner[0]) if len(inner) == 1 else f"one of {', '.join(map(str, inner))}"
    if origin is list:
        return f"a list [...], each entry {_words(inner[0])}"
    if origin is dict or hint is dict:
        return f"a map {{NAME: VALUE, ...}}, each value {_words(inner[1])}" if inner[1] is not Any else "a map"
    if is_dataclass(hint):
        return "a section of lines KEY: VALUE"
    return WORDS.get(hint, str(hint))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _as_yaml(text: str) -> object:
    try:
        value: object = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return value
