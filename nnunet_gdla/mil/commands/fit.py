"""`nnunet-gdla-mil fit`: a training from the check to the figures."""

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nnunet_gdla.errors import UserError, WriteError
from nnunet_gdla.mil.commands.shared import bar_wanted, device_changes, say
from nnunet_gdla.mil.config import load_config
from nnunet_gdla.mil.config_schema import Config
from nnunet_gdla.mil.fit import fit

__all__ = ["run"]

FAST = ("train.epochs=1", "train.bootstrap=20")
SLIDES_OF_FAST = 2


def run(args: argparse.Namespace) -> int:
    """Start or resume a run."""
    changes = [*args.set, *device_changes(args)]
    progress = bar_wanted(args.no_progress)
    if args.resume:
        if changes or args.out or args.fast:
            raise UserError("--resume goes on with the settings of the run: leave out --set, --out, --fast and devices")
        return _go_on(Path(args.resume), progress)
    config = load_config(args.config, [*changes, *(FAST if args.fast else ())])
    if args.fast:
        return _try_out(config, progress)
    run_folder = Path(args.out) if args.out else Path("runs") / Path(args.config).stem
    with _said_how_to_go_on(run_folder):
        fit(config, run=run_folder, say=say, progress=progress)
    return 0


def _go_on(run_folder: Path, progress: bool) -> int:
    if not (run_folder / "config.yaml").is_file():
        raise UserError(f"there is no run in {run_folder} to go on with; start one with --config FILE.yaml --out RUN")
    with _said_how_to_go_on(run_folder):
        fit(load_config(run_folder / "config.yaml"), run=run_folder, resume=True, say=say, progress=progress)
    return 0


def _try_out(config: Config, progress: bool) -> int:
    with tempfile.TemporaryDirectory() as folder:
        fit(config, run=Path(folder) / "run", say=say, progress=progress, limit=SLIDES_OF_FAST)
    print("Everything works, from the first slide to the figures; the numbers above mean nothing.")
    return 0


@contextlib.contextmanager
def _said_how_to_go_on(run_folder: Path) -> Iterator[None]:
    """After Ctrl-C, SIGTERM or on a full disk: what was finished stays in the run."""
    line = f"go on with: nnunet-gdla-mil fit --resume {run_folder}"
    try:
        yield
    except (KeyboardInterrupt, WriteError) as error:
        if not (run_folder / "config.yaml").is_file():
            raise
        if isinstance(error, WriteError):
            raise error.going_on(line) from error
        print(f"\n{line}")
        raise
