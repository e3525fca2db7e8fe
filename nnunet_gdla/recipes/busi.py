"""BUSI: breast ultrasound images, benign, malignant and normal, with one or more masks each."""

import re
from collections import defaultdict
from pathlib import Path

from nnunet_gdla.recipes.images import copies, write_grey_case
from nnunet_gdla.recipes.layout import Case, Found, Options, Skipped, list_files, locate, sort_out, unknown_layout
from nnunet_gdla.words import counted

__all__ = ["find"]

_KINDS = ("benign", "malignant", "normal")
_NAME = re.compile(r"(?P<kind>benign|malignant|normal) \((?P<number>\d+)\)(?P<mask>_mask(_\d+)?)?\.png", re.IGNORECASE)
_EXPECTED = "benign/benign (1).png with benign/benign (1)_mask.png, likewise malignant and normal"


def find(source: Path, options: Options) -> Found:
    """Find the images and their masks; ultrasound is grey, so RGB(A) copies become grey (equal channels exactly).

    Masks of several lesions of an image are joined. Images of class normal have empty masks and stay in, as in the
    paper. The release does not say which images are of the same patient; byte-equal copies stay together in a split.

    Raises:
        UserError: If the folder has another layout.
    """
    del options
    files = list_files(source)
    root = _root(source)
    images: dict[tuple[str, int], Path] = {}
    masks: dict[tuple[str, int], list[Path]] = defaultdict(list)
    skipped: dict[Path, str] = {}
    for path in files:
        match = _NAME.fullmatch(path.name)
        if match is None or path.parent.parent != root or path.parent.name != match["kind"].lower():
            continue
        key = (match["kind"].lower(), int(match["number"]))
        if match["mask"]:
            masks[key].append(path)
        elif key in images:
            skipped[path] = f"the second image of that number, beside {images[key].name}"
        else:
            images[key] = path
    if not images:
        raise unknown_layout(source, _EXPECTED, "there is no image called like benign (1).png")
    cases, used = _pair(images, masks, skipped)
    found = Found(cases, write_grey_case, {"0": "US"}, {"background": 0, "tumor": 1}, ".png", len(files))
    found.skipped = sort_out(files, used + list(skipped), source, _why)
    found.skipped += [Skipped(path.relative_to(source).as_posix(), reason) for path, reason in skipped.items()]
    found.notes = _notes(cases)
    return found


def _root(source: Path) -> Path:
    roots = {folder.parent for kind in _KINDS for folder in locate(source, kind)}
    if not roots:
        raise unknown_layout(source, _EXPECTED, "there is no folder benign, malignant or normal")
    if len(roots) > 1:
        why = "several folders hold benign, malignant or normal, name one of them: " + ", ".join(
            map(str, sorted(roots))
        )
        raise unknown_layout(source, _EXPECTED, why)
    return roots.pop()


def _pair(
    images: dict[tuple[str, int], Path], masks: dict[tuple[str, int], list[Path]], skipped: dict[Path, str]
) -> tuple[list[Case], list[Path]]:
    twin = copies(list(images.values()))
    cases: list[Case] = []
    used: list[Path] = []
    for (kind, number), image in sorted(images.items()):
        own = masks.pop((kind, number), [])
        if not own:
            skipped[image] = f"no mask: {image.stem}_mask.png is missing"
            continue
        group = twin.get(image, image)
        sources = (image, *own)
        cases.append(Case(f"busi_{kind}_{number:03d}", group.stem, sources, (image.stem, f"{kind}_{number:03d}")))
        used += sources
    for left in masks.values():
        skipped.update(dict.fromkeys(left, "mask without its image"))
    return cases, used


def _notes(cases: list[Case]) -> list[str]:
    counts = ", ".join(f"{sum(case.name.startswith(f'busi_{kind}_') for case in cases)} {kind}" for kind in _KINDS)
    several = sum(len(case.sources) > 2 for case in cases)
    twins = [case.name for case in cases if case.group != case.sources[0].stem]
    notes = [
        f"{counts}; {counted(several, 'image')} with several masks",
        "written as grey png: ultrasound is grey, and all cases need the same channels",
        "the release does not say which images are of one patient: a split can tear a patient apart",
    ]
    if twins:
        notes.append(
            f"{counted(len(twins), 'image')} byte-equal to another, kept with it in a split: {', '.join(twins)}"
        )
    return notes


def _why(name: str) -> str | None:
    return "not called NAME (k).png or NAME (k)_mask.png in the folder of its class" if name.endswith(".png") else None
