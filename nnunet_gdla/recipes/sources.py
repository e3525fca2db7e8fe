"""Which function reads which download."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from nnunet_gdla.recipes import acdc, busi, ham10000, ph2, synapse
from nnunet_gdla.recipes.layout import Found, Options

__all__ = ["find"]


def find(name: str, source: Path, options: Options, processes: int) -> Found:
    """Read the layout of the download of one recipe.

    Raises:
        UserError: If the folder has another layout.
    """
    finders: dict[str, Callable[[Path, Options], Found]] = {
        "acdc": acdc.find,
        "busi": busi.find,
        "ham10000": ham10000.find,
        "ph2": ph2.find,
        "synapse": partial(synapse.find, processes=processes),
    }
    return finders[name](source, options)
