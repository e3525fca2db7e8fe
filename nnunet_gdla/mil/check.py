"""The pre-flight: every file and row is looked at before the first epoch, and one report says what was found."""

import multiprocessing
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pandas as pd
from tqdm import tqdm

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.cohort import Cohort
from nnunet_gdla.mil.slides.encoders import common_encoder, encoder_key
from nnunet_gdla.mil.slides.inspect import SlideFacts, inspect_slide
from nnunet_gdla.mil.slides.placing import JUDGED_FROM, SMALLEST_SHARE
from nnunet_gdla.mil.slides.slide import ReadOptions
from nnunet_gdla.mil.table_file import listed
from nnunet_gdla.words import counted

__all__ = ["Report", "check_cohort"]

# Patients of a class, or events, below which results say little.
FEW: Final = 10
# A bag this many times larger or smaller than the median is pointed out.
UNUSUAL: Final = 10
# Share of the patches of a slide without a neighbour that is pointed out.
MANY_ISOLATED: Final = 0.1
# Remarks that differ in their numbers alone, from which on they become one line.
DIFFERENT: Final = 5
NUMBERS: Final = re.compile(r"\d+(?:[.,]\d+)*(?:, (?:\d+|\.\.\.))*")


@dataclass(frozen=True, eq=False)
class Report:
    """What a pre-flight found.

    Attributes:
        lines: One finding each, beginning with PASS, WARN or FAIL.
        slides: One row per readable slide: slide_id, patches, width, dtype, feature_key, encoder, layout, stride, unit,
            share (of patches with a neighbour), duplicates, zeros.
        in_dim: Width of the features; 0 if no file was readable.
        encoder: What most files name as their encoder; None where none names one.
    """

    lines: list[str]
    slides: pd.DataFrame
    in_dim: int
    encoder: str | None = None

    @property
    def failed(self) -> bool:
        """True where a line begins with FAIL."""
        return any(line.startswith("FAIL") for line in self.lines)


def check_cohort(
    cohort: Cohort,
    options: ReadOptions | Mapping[str, Any] | None = None,
    *,
    workers: int = 0,
    progress: bool | None = None,
    strict: bool = True,
) -> Report:
    """Read every file of a cohort once, in pieces, and compare what they hold.

    Args:
        cohort: The slides.
        options: How they are read; keywords of `read_slide`.
        workers: Processes that read; 0 reads in this one.
        progress: Show a bar. None: on a terminal.
        strict: Raise if anything failed; otherwise the report says so.

    Raises:
        UserError: With the whole report, if a file cannot be used or files do not fit together.
    """
    if not isinstance(options, ReadOptions):
        options = ReadOptions(**(options or {}))
    facts = _facts(cohort, options, workers, progress)
    readable = [fact for fact in facts if not fact.error]
    lines = [*_unreadable(facts), *_mixtures(readable), *_bags(readable), *_lattices(readable)]
    lines += [*_isolated(readable, options), *_targets(cohort)]
    names = ("slide_id", "patches", "width", "dtype", "feature_key", "encoder", "layout", "stride", "unit")
    columns = (*names, "share", "duplicates", "zeros")
    table = pd.DataFrame([[getattr(fact, name) for name in columns] for fact in readable], columns=list(columns))
    widths = Counter(fact.width for fact in readable)
    encoder = common_encoder(fact.encoder for fact in readable)
    report = Report(lines, table, widths.most_common(1)[0][0] if widths else 0, encoder)
    if strict and report.failed:
        raise UserError("the pre-flight found what must be mended first:\n" + "\n".join(report.lines))
    return report


def _facts(cohort: Cohort, options: ReadOptions, workers: int, progress: bool | None) -> list[SlideFacts]:
    paths = list(cohort.paths.values())
    with _mapped(workers) as mapped:
        found = mapped(partial(inspect_slide, options=options), paths)
        disable = None if progress is None else not progress
        return list(tqdm(found, total=len(paths), desc="checking files", unit="slide", disable=disable, leave=False))


@contextmanager
def _mapped(workers: int) -> Iterator[Any]:
    if workers < 1:
        yield map
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool.map


def _unreadable(facts: Sequence[SlideFacts]) -> list[str]:
    """One line per kind of error: the first in full, the others by name."""
    kinds: dict[str, list[SlideFacts]] = {}
    for fact in facts:
        if fact.error:
            kinds.setdefault(_kind(fact.error.replace(str(fact.path), "")), []).append(fact)
    lines = []
    for first, *others in kinds.values():
        alike = f"; the same in {counted(len(others), 'more file')}: {listed(_ids(others))}" if others else ""
        lines.append(f"FAIL {first.error}{alike}")
    if not lines:
        lines.append(f"PASS {counted(len(facts), 'file')} can be read and hold finite numbers")
    return lines


def _kind(sentence: str) -> str:
    """A sentence without its numbers."""
    return NUMBERS.sub("#", sentence)


def _ids(facts: Sequence[SlideFacts]) -> list[str]:
    return [fact.slide_id for fact in facts]


def _mixtures(facts: Sequence[SlideFacts]) -> list[str]:
    """One width, one encoder: a second one is a mistake whatever it is."""
    lines = []
    named = [(fact.slide_id, fact.encoder or fact.feature_key) for fact in facts if _names_encoder(fact)]
    spelling = {encoder_key(name): name for _, name in reversed(named)}
    for what, values in (
        ("feature width", {fact.slide_id: str(fact.width) for fact in facts}),
        ("encoder", {slide_id: spelling[encoder_key(name)] for slide_id, name in named}),
    ):
        counts = Counter(values.values()).most_common()
        if len(counts) == 1:
            lines.append(f"PASS one {what}: {counts[0][0]}")
        for place, (value, _) in enumerate(counts[1 : DIFFERENT + 1], 1):
            # the last line speaks of all that are left
            alike = {value} if place < DIFFERENT else {other for other, _ in counts[place:]}
            names = [name for name, own in values.items() if own in alike]
            which = value if len(alike) == 1 else f"{value} and {len(alike) - 1} others"
            where = f"{counted(len(names), 'slide')}: {listed(names)}"
            lines.append(f"FAIL {what} {which} instead of {counts[0][0]} in {where}")
    silent = [fact.slide_id for fact in facts if not _names_encoder(fact)]
    if 0 < len(silent) < len(facts):
        lines.append(f"WARN {counted(len(silent), 'file')} without the encoder that others name: {listed(silent)}")
    return lines


def _names_encoder(fact: SlideFacts) -> bool:
    return fact.encoder is not None or fact.layout == "other"


def _bags(facts: Sequence[SlideFacts]) -> list[str]:
    if not facts:
        return []
    sizes = np.array([fact.patches for fact in facts])
    median = float(np.median(sizes))
    lines = [f"PASS {sizes.min():,} to {sizes.max():,} patches a slide, median {median:,.0f}"]
    odd = [f for f in facts if f.patches * UNUSUAL < median or f.patches > median * UNUSUAL]
    if odd:
        lines.append(f"WARN unusual number of patches: {listed([f'{f.slide_id} ({f.patches:,})' for f in odd])}")
    for what, count in (("duplicate coordinates", "duplicates"), ("all-zero features", "zeros")):
        named = [f"{fact.slide_id} ({getattr(fact, count):,})" for fact in facts if getattr(fact, count)]
        if named:
            lines.append(f"WARN patches with {what}: {listed(named)}")
    return lines


def _lattices(facts: Sequence[SlideFacts]) -> list[str]:
    lines = []
    placed = [fact for fact in facts if fact.stride is not None]
    if placed:
        counts = Counter(f"{fact.stride:.6g} {fact.unit}" for fact in placed).most_common()
        strides = listed([f"{stride} ({counted(count, 'slide')})" for stride, count in counts])
        shares = np.array([fact.share for fact in placed])
        lines.append(f"PASS stride {strides}; {shares.mean():.0%} of the patches of a slide have a neighbour")
    for word, name in (("WARN", "warnings"), ("PASS", "notes")):
        said = [(remark, fact.slide_id) for fact in facts for remark in getattr(fact, name)]
        texts = Counter(kind for kind, _ in {(_kind(remark), remark) for remark, _ in said})
        remarks: dict[str, list[tuple[str, str]]] = {}
        for remark, slide in said:
            key = _kind(remark) if texts[_kind(remark)] > DIFFERENT else remark
            remarks.setdefault(key, []).append((remark, slide))
        for found in remarks.values():
            alike = "" if len({remark for remark, _ in found}) == 1 else ", or alike"
            where = f"{counted(len(found), 'slide')}: {listed([slide for _, slide in found])}"
            lines.append(f"{word} {found[0][0]}{alike}: {where}")
    return lines


def _isolated(facts: Sequence[SlideFacts], options: ReadOptions) -> list[str]:
    """Slides that were judged one by one may still leave a cohort without neighbours: tiny ones, or cut by the cap."""
    if not options.need_coords or options.allow_isolated:
        return []
    lines = []
    lonely = [
        f"{fact.slide_id} ({1 - fact.share:.0%} of {fact.patches:,} at stride {fact.stride:.6g}"
        + (f"; they lie {fact.other_stride:.6g} apart" if fact.other_stride else "")
        + ")"
        for fact in facts
        if fact.stride is not None and fact.patches >= JUDGED_FROM and SMALLEST_SHARE <= fact.share <= 1 - MANY_ISOLATED
    ]
    if lonely:
        lines.append(
            f"WARN patches without a neighbour, which the correction leaves as they are: {listed(lonely)}; two strides "
            "in one file?"
        )
    cap = options.max_patches
    judged = [fact for fact in facts if fact.stride is not None and _shows_neighbours(fact.patches, cap)]
    share = float(np.median([fact.share for fact in judged])) if judged else 1.0
    if share >= SMALLEST_SHARE:
        return lines
    cut = cap is not None and any(fact.patches > cap for fact in judged)
    cause = f"max_patches {cap} leaves" if cut else "the slides have"
    advice = "raise max_patches, or give" if cut else "give the right stride,"
    return [
        *lines,
        f"FAIL {cause} hardly a neighbour for the correction to look at: in the median slide {share:.0%} of the "
        f"patches have one; {advice} a model without correction, or allow_isolated if that is meant",
    ]


def _shows_neighbours(patches: int, cap: int | None) -> bool:
    """Whether a slide is large enough that its patches should lie side by side."""
    kept = patches if cap is None else min(patches, cap)
    return kept >= 2 or patches >= JUDGED_FROM


def _targets(cohort: Cohort) -> list[str]:
    table = cohort.table
    if cohort.task == "classification":
        patients = table.groupby("label").patient_id.nunique()
        counts = {name: int(patients.get(name, 0)) for name in cohort.classes}
        few = [f"{name} ({count})" for name, count in counts.items() if count < FEW]
        lines = [f"PASS patients per class: {', '.join(f'{name} {count}' for name, count in counts.items())}"]
        return lines + ([f"WARN few patients: {listed(few)}; results will vary much between splits"] if few else [])
    if cohort.task == "survival":
        patients = table.drop_duplicates("patient_id")
        events, total = int(patients.event.sum()), len(patients)
        if not events:
            return [f"FAIL none of {counted(total, 'patient')} has an event; see event_map"]
        word = "WARN only" if events < FEW else "PASS"
        have = "has" if events == 1 else "have"
        return [f"{word} {events} of {counted(total, 'patient')} {have} an event ({events / total:.0%})"]
    return []
