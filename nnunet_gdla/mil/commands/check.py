"""`nnunet-gdla-mil check`: the pre-flight of every fit, by itself; on request the redundancy of the slides."""

import argparse
from pathlib import Path

from tqdm import tqdm

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.commands.shared import bar_wanted, say
from nnunet_gdla.mil.config import load_config
from nnunet_gdla.mil.prepare import PARTS, Prepared, prepare, read_options
from nnunet_gdla.mil.redundancy_stats import write_redundancy
from nnunet_gdla.mil.slides import read_slide
from nnunet_gdla.words import counted

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    """Print the report, lines that begin with PASS or WARN; problems end in a UserError with FAIL lines."""
    try:
        prepared = prepare(load_config(args.config, args.set), say=say, progress=bar_wanted())
    except UserError as error:
        if "\nFAIL " in str(error):  # the report of all files
            raise
        raise UserError(f"FAIL {error}") from None
    sizes = ", ".join(f"{len(prepared.tables[part])} {part}" for part in PARTS)
    outputs = ", ".join(prepared.info.classes) or counted(prepared.info.num_outputs, "time bin")
    print(f"PASS ready to fit: {sizes}; features {prepared.info.in_dim} wide; {outputs}")
    if args.statistics:
        for path in _statistics(prepared, Path(args.statistics)):
            print(f"PASS written: {path}")
    return 0


def _statistics(prepared: Prepared, folder: Path) -> list[Path]:
    options = read_options(prepared.config.data)
    paths = tqdm(prepared.cohort.table["path"], desc="redundancy", unit="slide", disable=not bar_wanted(), leave=False)
    return write_redundancy(folder, (read_slide(Path(path), **options) for path in paths))
