"""Every speed claim, measured on this machine, as one Markdown page.

    python -m benchmarks                        # all, under ten minutes on two cores; writes docs/benchmarks.md
    python -m benchmarks --only unet growth     # some; written only where --out names a page
    python -m benchmarks --full                 # more rounds and larger sizes, tens of minutes

Each benchmark is a process of its own. One that fails is named and the others go on; the page is then left as it was
and the exit status is 1. It is 0 where a target is missed: the page says so.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

BENCHMARKS = (
    "segmentation",
    "attention_core",
    "encoder",
    "growth",
    "unet",
    "slide_layer",
    "slide_step",
    "nystrom",
    "bag_memory",
    "redundancy",
    "cindex",
    "surface_distance",
)
ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
_INTRODUCTION = """\
# Benchmarks

Made by `python -m benchmarks`; run it on your machine. Every figure is a ratio to a named rival, measured in turn in
one process after their results were compared: outputs, and gradients where there is a backward pass. Times are
processor time, added up over the threads, which other programs on the machine hardly move; the ratio by wall clock
stands beside them. A ratio is the median over the rounds of the ratio within a round, so that it need not be that of
the two medians beside it. In rows of bytes, and of times whose target says "at most", it is ours over the rival's, else
the rival's over ours. "missed" marks a target that was not reached; targets are for processor time.
"""


def main() -> int:
    """Run what was asked for and write the page.

    Returns:
        The exit status: 1 if a benchmark failed.
    """
    arguments = _parse()
    names = [name for name in BENCHMARKS if name in arguments.only] if arguments.only else list(BENCHMARKS)
    sections: list[str] = []
    failed: list[str] = []
    began = time.monotonic()
    for number, name in enumerate(names, start=1):
        print(f"[{number}/{len(names)}] {name} ({time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)
        section = run_one(name, full=arguments.full, threads=arguments.threads)
        if section is None:
            failed.append(name)
        else:
            sections.append(section)
            print(section, flush=True)
    seconds = time.monotonic() - began
    print(f"{seconds:.0f} s; missed targets: {sum(map(count_missed, sections))}", file=sys.stderr)
    if failed:
        print(f"failed: {', '.join(failed)}; no page was written", file=sys.stderr)
        return 1
    page = arguments.out or (None if arguments.only else PAGE)
    if page is not None:
        write_page(page, sections, arguments.threads)
        print(f"wrote {page}", file=sys.stderr)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"the page; default without --only: {PAGE.name}")
    parser.add_argument("--full", action="store_true", help="more rounds and larger sizes")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    return parser.parse_args()


def run_one(name: str, *, full: bool, threads: int) -> str | None:
    """Run a benchmark in a process of its own.

    Returns:
        Its section of the page, or None if it failed; what it said stands on the error stream.
    """
    with tempfile.TemporaryDirectory() as folder:
        section = Path(folder) / "section.md"
        options = ["--threads", str(threads), "--markdown", str(section), *(["--full"] if full else [])]
        command = [sys.executable, "-m", f"benchmarks.{name}", *options]
        status = subprocess.run(command, stdout=subprocess.DEVNULL, cwd=ROOT, check=False).returncode
        if status == 0 and section.is_file():
            return section.read_text(encoding="utf-8")
    print(f"{name} failed with exit status {status}", file=sys.stderr)
    return None


def count_missed(section: str) -> int:
    """How many rows of a section miss their target."""
    return sum(line.endswith("**missed** |") for line in section.splitlines())


def write_page(page: Path, sections: Sequence[str], threads: int) -> None:
    """Put the page in its place in one step, so that nobody ever finds half of one."""
    import torch

    from benchmarks.table import machine_line

    torch.set_num_threads(threads)
    missed = sum(map(count_missed, sections))
    summary = f"{machine_line()}. Targets missed: {missed or 'none'}.\n"
    page.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=page.parent, prefix=page.name, suffix=".part", encoding="utf-8", delete=False
    ) as file:
        part = Path(file.name)
        try:
            file.write("\n".join([_INTRODUCTION, summary, *sections]))
            file.close()
            part.chmod(0o644)
            part.replace(page)
        finally:
            part.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
