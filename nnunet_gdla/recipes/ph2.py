"""PH2: dermoscopic photographs, one folder a lesion."""

import re
from pathlib import Path

from nnunet_gdla.recipes.images import copies
from nnunet_gdla.recipes.layout import Found, Options, Skipped, list_files
from nnunet_gdla.recipes.photographs import pair_photographs
from nnunet_gdla.words import counted

__all__ = ["find"]

_IMAGE = re.compile(r"(?:.*/)?(IMD\d+)/\1_Dermoscopic_Image/\1\.bmp", re.IGNORECASE)
_MASK = re.compile(r"(?:.*/)?(IMD\d+)/\1_lesion/\1_lesion\.bmp", re.IGNORECASE)
_EXPECTED = "IMD002/IMD002_Dermoscopic_Image/IMD002.bmp with IMD002/IMD002_lesion/IMD002_lesion.bmp"


def find(source: Path, options: Options) -> Found:
    """Find the photographs and the masks of their lesions.

    Raises:
        UserError: If the folder has another layout.
    """
    del options
    files = list_files(source)
    skipped: list[Skipped] = []
    images = _by_name(files, source, _IMAGE, skipped)
    masks = _by_name(files, source, _MASK, skipped)
    twin = copies(list(images.values()))
    found = pair_photographs(
        images,
        masks,
        groups={name: twin.get(image, image).stem for name, image in images.items()},
        mask_name="{name}_lesion.bmp",
        files=files,
        tables=[],
        skipped=skipped,
        source=source,
        expected=_EXPECTED,
        why=_why,
    )
    twins = [case.name for case in found.cases if case.group != case.name]
    if twins:
        found.notes.append(f"{counted(len(twins), 'image')} byte-equal to another, kept with it: {', '.join(twins)}")
    return found


def _by_name(files: list[Path], source: Path, pattern: re.Pattern[str], skipped: list[Skipped]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in files:
        match = pattern.fullmatch(path.relative_to(source.parent).as_posix())
        if match is None:
            continue
        name = match[1].upper()
        if name in found:
            skipped.append(Skipped(path.relative_to(source).as_posix(), f"second file of that name, see {found[name]}"))
        else:
            found[name] = path
    return found


def _why(name: str) -> str | None:
    return "not needed: colour regions of a lesion" if "_roi" in name.lower() else None
