"""PH2: dermoscopic photographs, one folder a lesion."""

import re
from pathlib import Path

from nnunet_gdla.recipes.images import copies, write_colour_case
from nnunet_gdla.recipes.layout import Case, Found, Options, Skipped, list_files, sort_out, unknown_layout
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
    if not images or not masks:
        there = f"there are {counted(len(images), 'image')} and {counted(len(masks), 'mask')} of that form"
        raise unknown_layout(source, _EXPECTED, there)
    twin = copies(list(images.values()))
    cases = [
        Case(name, twin.get(image, image).stem, (image, masks[name]))
        for name, image in sorted(images.items())
        if name in masks
    ]
    found = Found(cases, write_colour_case, {"0": "R", "1": "G", "2": "B"}, {"background": 0, "lesion": 1}, ".png", 0)
    found.files = len(files)
    alone = {images[name]: f"no mask: {name}_lesion.bmp is missing" for name in images.keys() - masks.keys()}
    alone |= {masks[name]: "mask without its image" for name in masks.keys() - images.keys()}
    reasons = {path.relative_to(source).as_posix(): reason for path, reason in alone.items()}
    told = {skip.name for skip in skipped}
    rest = sort_out(files, (path for case in cases for path in case.sources), source, lambda name: _why(name, reasons))
    found.skipped = skipped + [skip for skip in rest if skip.name not in told]
    twins = [case.name for case in cases if case.group != case.name]
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


def _why(name: str, reasons: dict[str, str]) -> str | None:
    if name in reasons:
        return reasons[name]
    return "not needed: colour regions of a lesion" if "_roi" in name.lower() else None
