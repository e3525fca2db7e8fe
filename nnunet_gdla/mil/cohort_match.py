"""Which file belongs to which row of a table."""

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.slides.names import FEATURE_SUFFIXES, comparable_name, slide_id_of
from nnunet_gdla.mil.table_file import listed, nearest

__all__ = ["FeatureFiles", "find_files"]


def find_files(features: str | Path | Sequence[str | Path]) -> "FeatureFiles":
    """Search one or several folders, with all their subfolders, for `.h5`, `.hdf5` and `.pt` files.

    Hidden files and folders are left out. A file in place of a folder stands for itself.

    Raises:
        UserError: If no folder is named, one is not there, or holds no such file.
    """
    folders = [Path(features)] if isinstance(features, str | Path) else [Path(each) for each in features]
    if not folders:
        raise UserError("no folder of features is named; name the one of the feature files (data.features, --features)")
    found: dict[Path, None] = {}
    for folder in folders:
        if folder.is_file() and folder.suffix.lower() in FEATURE_SUFFIXES:
            found[folder] = None
            continue
        if not folder.is_dir():
            raise UserError(f"no folder of features {folder}")
        inside = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in FEATURE_SUFFIXES]
        visible = [path for path in inside if not _hidden(path.relative_to(folder))]
        if not visible:
            raise UserError(f"{folder} holds no {', '.join(FEATURE_SUFFIXES)} file, nor do its subfolders")
        found |= dict.fromkeys(visible)
    return FeatureFiles(found)


class FeatureFiles:
    """Feature files by the names of their slides.

    A row's name fits a file if it is the file's name without `.h5`, `.hdf5` or `.pt`. Otherwise folders, feature and
    image extensions are taken off both (`/data/a.svs` fits `a.h5` and `a.svs.h5`). Letters' case counts.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self.paths = list(paths)
        self._exact: dict[str, list[Path]] = defaultdict(list)
        self._loose: dict[str, list[Path]] = defaultdict(list)
        for path in self.paths:
            self._exact[slide_id_of(path)].append(path)
            self._loose[comparable_name(path.name)].append(path)

    def of(self, name: str) -> Path | None:
        """Return the file of a slide, None where there is none.

        Raises:
            UserError: If several files fit; names them.
        """
        name = unicodedata.normalize("NFC", name)
        fitting = self._exact.get(name) or self._loose.get(comparable_name(name)) or []
        if len(fitting) > 1:
            raise UserError(
                f"several files fit slide {name}: {listed([str(path) for path in fitting])}; give the folder of one "
                "kind only (CLAM: h5_files), or remove the others"
            )
        return fitting[0] if fitting else None

    def hint(self, name: str) -> str:
        """Return the nearest name that has a file, in words, or nothing."""
        near = nearest(comparable_name(name), self._loose)
        return f" (nearest file: {self._loose[near][0].name})" if near else ""

    def unique(self) -> dict[str, Path]:
        """Return all files by slide name.

        Raises:
            UserError: If two files have the same name.
        """
        for name in self._exact:
            self.of(name)
        return {name: paths[0] for name, paths in self._exact.items()}

    def folders(self) -> str:
        """Return where the files are, for messages."""
        return listed(sorted({str(path.parent) for path in self.paths}))


def _hidden(relative: Path) -> bool:
    return any(part.startswith(".") for part in relative.parts)
