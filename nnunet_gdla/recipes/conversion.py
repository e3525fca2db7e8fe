"""From found cases to a finished nnU-Net raw dataset: resumable case by case, in place at once when all are done."""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from nnunet_gdla.errors import UserError, WriteError
from nnunet_gdla.files import made_folder
from nnunet_gdla.recipes.files import write_json
from nnunet_gdla.recipes.layout import Case, CaseProblem, Found, Options, Record, Skipped, Target
from nnunet_gdla.recipes.parallel import each
from nnunet_gdla.recipes.splits import Split, without
from nnunet_gdla.write_errors import explained

__all__ = ["JOURNAL", "Job", "Result", "convert"]

JOURNAL = "gdla_conversion.jsonl"
_VERSION = 1  # of what converters write; another number has all cases written anew


@dataclass(frozen=True)
class Job:
    """A conversion.

    Args:
        found: What there is.
        split: Who is where; cases in no part are not written.
        options: What changes the files.
        folder: The dataset's folder, inside `nnUNet_raw`.
        description: More entries for dataset.json.
        processes: How many cases are written at a time.
        overwrite: Whether a finished dataset of that name is replaced.
    """

    found: Found
    split: Split
    options: Options
    folder: Path
    description: Mapping[str, object]
    processes: int = 1
    overwrite: bool = False

    @property
    def unfinished(self) -> Path:
        """Where files are collected; nnU-Net takes every folder whose name begins with Dataset for a dataset."""
        return self.folder.with_name(f".{self.folder.name}.unfinished")


@dataclass(frozen=True)
class Result:
    """What a conversion left.

    Args:
        records: Of every written case.
        split: Without the cases that could not be used.
        skipped: Cases that could not be used.
        kept: How many were there from an earlier run.
    """

    records: dict[str, Record]
    split: Split
    skipped: list[Skipped]
    kept: int


def convert(job: Job) -> Result:
    """Write the dataset, or finish what an earlier run began.

    Raises:
        UserError: If another dataset is in the way, no training case can be used, or something cannot be written.
    """
    named = job.split.named
    cases = [case for case in job.found.cases if case.name in named]
    keys = {case.name: _key(case, job) for case in cases}
    finished = _finished(job, cases, keys)
    if finished is not None:
        records, problems = finished
        return _finish(job, records, problems, kept=len(records))
    with _kept_or_removed(job), explained(job.folder, unfinished=job.unfinished, option="--out"):
        return _write_cases(job, cases, keys)


@contextlib.contextmanager
def _kept_or_removed(job: Job) -> Iterator[None]:
    """Make the unfinished folder; where an error stops what follows, it goes again unless it holds finished cases."""
    with made_folder(job.unfinished, option="--out"):
        try:
            yield
        except Exception as error:
            kept = any(_is_there(_target(job, job.unfinished, case.name)) for case in job.found.cases)
            if not kept:
                shutil.rmtree(job.unfinished, ignore_errors=True)
            elif isinstance(error, WriteError):
                raise error.going_on(
                    f"run the same command again, which goes on from here: finished cases are kept in {job.unfinished}"
                ) from error
            raise


def _write_cases(job: Job, cases: list[Case], keys: dict[str, str]) -> Result:
    known, _ = _read_journal(job.unfinished / JOURNAL, keys)
    done = {name: record for name, record in known.items() if _is_there(_target(job, job.unfinished, name))}
    pending = [case for case in cases if case.name not in done]
    records, problems = dict(done), []
    with (job.unfinished / JOURNAL).open("a", encoding="utf-8") as journal:
        work = [(case, _target(job, job.unfinished, case.name)) for case in pending]
        write = partial(_write, job.found.write)
        for (case, _), result in each(write, work, processes=job.processes, title=job.folder.name, done=len(done)):
            if isinstance(result, CaseProblem):
                problems.append(Skipped(case.name, str(result)))
                entry: dict[str, object] = {"problem": str(result)}
            else:
                records[case.name] = result
                entry = asdict(result)
            journal.write(json.dumps({"case": case.name, "key": keys[case.name], **entry}) + "\n")
            journal.flush()
    return _finish(job, records, sorted(problems, key=lambda skip: skip.name), kept=len(done))


def _write(write: Callable[[Case, Target], Record], work: tuple[Case, Target]) -> Record:
    return write(*work)


def _finish(job: Job, records: dict[str, Record], problems: list[Skipped], *, kept: int) -> Result:
    split = without(job.split, {skip.name for skip in problems})
    if not any(fold.train for fold in split.folds):
        reasons = "; ".join(f"{skip.name}: {skip.reason}" for skip in problems[:3])
        raise UserError(f"no training case could be converted ({reasons or 'none was found'})")
    records = dict(sorted(records.items()))
    place = job.unfinished if job.unfinished.is_dir() else job.folder
    training = len(records.keys() - set(split.test))
    description = {
        "channel_names": job.found.channel_names,
        "labels": job.found.labels,
        "numTraining": training,
        "file_ending": job.found.file_ending,
        "name": job.folder.name,
        "converted_by": "nnunet-gdla convert",
        "split": split.title,
        **job.description,
    }
    if place == job.unfinished:
        _remove_strays(job, records)
    write_json(place / "dataset.json", description)
    write_json(place / "splits_final.json", split.nnunet())
    if place == job.unfinished:
        _put_in_place(job)
    return Result(records, split, problems, kept)


def _put_in_place(job: Job) -> None:
    old = job.folder.with_name(f".{job.folder.name}.replaced")
    if job.folder.exists():
        if old.exists():
            shutil.rmtree(old)
        job.folder.rename(old)
    job.unfinished.rename(job.folder)
    if old.exists():
        shutil.rmtree(old)


def _finished(job: Job, cases: list[Case], keys: dict[str, str]) -> tuple[dict[str, Record], list[Skipped]] | None:
    """Return what a finished dataset holds if that is exactly what would be written, None where there is none."""
    if not job.folder.exists():
        return None
    if not (job.folder / JOURNAL).is_file():
        raise UserError(
            f"{job.folder} is there and was not made by this command; choose another number with -d, or move it away"
        )
    if job.overwrite:
        return None
    records, problems = _read_journal(job.folder / JOURNAL, keys)
    there = set(job.folder.glob("images*/*"))
    targets = {_target(job, job.folder, name) for name in records}
    same = {case.name for case in cases} == records.keys() | problems.keys()
    if not same or there != {target.image for target in targets} or not all(map(_is_there, targets)):
        raise UserError(
            f"{job.folder} was converted before from other files, with other options or another split, or has lost "
            "files; add --overwrite to replace it, or choose another number with -d"
        )
    return records, [Skipped(name, reason) for name, reason in sorted(problems.items())]


def _key(case: Case, job: Job) -> str:
    """Return what changes when the files of a case have to be written anew."""
    files = [(path.name, (stat := path.stat()).st_size, stat.st_mtime_ns) for path in case.sources]
    part = "Ts" if case.name in job.split.test else "Tr"
    write = job.found.write
    how = [write.func.__name__, write.keywords] if isinstance(write, partial) else [write.__name__]
    content = json.dumps([_VERSION, how, asdict(job.options), part, files])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _read_journal(path: Path, keys: Mapping[str, str]) -> tuple[dict[str, Record], dict[str, str]]:
    """Return the records and the problems that still hold; a broken line is what a power failure leaves."""
    records: dict[str, Record] = {}
    problems: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        name = entry["case"]
        if keys.get(name) != entry["key"]:
            continue
        if "problem" in entry:
            problems[name] = entry["problem"]
            records.pop(name, None)
            continue
        problems.pop(name, None)
        voxels = {int(label): count for label, count in entry["voxels"].items()}
        records[name] = Record(tuple(entry["shape"]), voxels, tuple(entry["spacing_mm"]), tuple(entry["remarks"]))
    return records, problems


def _target(job: Job, folder: Path, name: str) -> Target:
    part, ending = "Ts" if name in job.split.test else "Tr", job.found.file_ending
    return Target(
        folder / f"images{part}" / f"{name}_0000{ending}", folder / f"labels{part}" / f"{name}{ending}", job.options
    )


def _is_there(target: Target) -> bool:
    return target.image.is_file() and target.label.is_file()


def _remove_strays(job: Job, records: Mapping[str, Record]) -> None:
    """Remove what an earlier run with another split or other sources left in the unfinished folder."""
    wanted = set()
    for name in records:
        target = _target(job, job.unfinished, name)
        wanted |= {target.image, target.label}
    for folder in ("imagesTr", "labelsTr", "imagesTs", "labelsTs"):
        for path in (job.unfinished / folder).glob("*"):
            if path not in wanted:
                path.unlink()
