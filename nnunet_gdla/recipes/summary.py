"""What a conversion found and wrote, as lines of text."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from nnunet_gdla.recipes.catalogue import Recipe
from nnunet_gdla.recipes.conversion import Result
from nnunet_gdla.recipes.layout import Found, Record, Skipped
from nnunet_gdla.words import counted

__all__ = ["found_lines", "result_lines", "skipped_lines"]

_NAMED = 20


def found_lines(found: Found, recipe: Recipe) -> Iterator[str]:
    """Say what there is."""
    pairs = sum(not case.pool for case in found.cases)
    yield f"{counted(found.files, 'file')}, {counted(len(found.cases), 'image')} with labels"
    if pairs != recipe.cases:
        yield f"NOTE: the whole release of {recipe.title} has {recipe.cases}, this copy {pairs}"
    yield from found.notes


def result_lines(result: Result, found: Found) -> Iterator[str]:
    """Say what was written: parts, sizes, spacing, voxels of each label, remarks on files."""
    if result.kept:
        yield f"{counted(result.kept, 'case')} of an earlier run kept"
    yield from _split_lines(result)
    records = list(result.records.values())
    yield _sizes(records)
    spacings = [record.spacing_mm for record in records if record.spacing_mm]
    if spacings:
        yield "spacing in mm: " + " x ".join(_range(axis) for axis in zip(*spacings, strict=True))
    voxels: Counter[int] = Counter()
    cases: Counter[int] = Counter()
    for record in records:
        voxels.update(record.voxels)
        cases.update(label for label, count in record.voxels.items() if count)
    for name, label in found.labels.items():
        yield f"label {label} {name}: {counted(voxels[label], 'voxel')} in {counted(cases[label], 'case')}"
    for remark, count in sorted(Counter(remark for record in records for remark in record.remarks).items()):
        yield f"{counted(count, 'case')}: {remark}"


def skipped_lines(skipped: Sequence[Skipped], *, everything: bool = False) -> Iterator[str]:
    """Name what was left out, by reason; without `everything` the first few of each reason."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for skip in skipped:
        by_reason[skip.reason].append(skip.name)
    for reason, names in by_reason.items():
        yield f"skipped {len(names)}: {reason}"
        shown = names if everything else names[:_NAMED]
        yield from (f"  {name}" for name in shown)
        if len(names) > len(shown):
            yield f"  ... and {len(names) - len(shown)} more"


def _split_lines(result: Result) -> Iterator[str]:
    split = result.split
    yield f"split: {split.title}"
    for number, fold in enumerate(split.folds):
        words = f"fold {number}: {len(fold.train)} training, {counted(len(fold.val), 'validation case')}"
        if not fold.val:
            words += (
                " (nnU-Net needs some: the training cases stand in, so its validation says nothing of new patients)"
            )
        yield words
    yield f"test (imagesTs, labelsTs): {counted(len(split.test), 'case')}"


def _sizes(records: Iterable[Record]) -> str:
    shapes = Counter(record.shape for record in records)
    common = ", ".join(f"{_times(shape)} ({count})" for shape, count in shapes.most_common(3))
    if len(shapes) <= 3:
        return f"sizes: {common}"
    ranges = " x ".join(_range(axis) for axis in zip(*shapes, strict=True))
    return f"sizes: {len(shapes)} different ones, {ranges}; most often {common}"


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _range(values: Iterable[int | float]) -> str:
    low, *_, high = [*sorted(values)] * 2
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
