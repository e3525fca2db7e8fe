"""What the two datasets of dermoscopic photographs share: one photograph and one mask a name."""

from collections.abc import Callable, Mapping
from pathlib import Path

from nnunet_gdla.recipes.images import write_colour_case
from nnunet_gdla.recipes.layout import Case, Found, Skipped, sort_out, unknown_layout
from nnunet_gdla.words import counted

__all__ = ["pair_photographs"]


def pair_photographs(
    images: Mapping[str, Path],
    masks: Mapping[str, Path],
    *,
    groups: Mapping[str, str],
    mask_name: str,
    files: list[Path],
    tables: list[Path],
    skipped: list[Skipped],
    source: Path,
    expected: str,
    why: Callable[[str], str | None],
) -> Found:
    """Make a case of every name that has a photograph and a mask, and account for every other file.

    Args:
        images: Photographs by name.
        masks: Masks by name.
        groups: What must stay together in a split, by name; a name without an entry stands alone.
        mask_name: How the mask of a name is called, with {name} in it.
        files: All files of the download.
        tables: Those of them that were used beside the photographs and masks.
        skipped: Files that were left out already, with the reason.
        source: The download's folder.
        expected: The layout, for the user whose folder has another one.
        why: Reasons why other files are left out, by their paths below the source; None where none is known.

    Raises:
        UserError: If there are no photographs or no masks.
    """
    if not images or not masks:
        there = f"there are {counted(len(images), 'image')} and {counted(len(masks), 'mask')} of that form"
        raise unknown_layout(source, expected, there)
    both = sorted(images.keys() & masks.keys())
    cases = [Case(name, groups.get(name, name), (images[name], masks[name])) for name in both]
    alone = {
        images[name]: f"no mask: {mask_name.format(name=name)} is missing" for name in images.keys() - masks.keys()
    }
    alone |= {masks[name]: "mask without its image" for name in masks.keys() - images.keys()}
    reasons = {path.relative_to(source).as_posix(): reason for path, reason in alone.items()}
    told = {skip.name for skip in skipped}
    used = [path for case in cases for path in case.sources] + tables
    rest = sort_out(files, used, source, lambda name: reasons.get(name) or why(name))
    return Found(
        cases,
        write_colour_case,
        {"0": "R", "1": "G", "2": "B"},
        {"background": 0, "lesion": 1},
        ".png",
        len(files),
        skipped=skipped + [skip for skip in rest if skip.name not in told],
    )
