"""`nnunet-gdla-mil check`: the pre-flight of every fit, by itself."""

import argparse

from nnunet_gdla.mil.commands.shared import bar_wanted, say
from nnunet_gdla.mil.config import load_config
from nnunet_gdla.mil.prepare import PARTS, prepare

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    """Print the report; problems end in a UserError."""
    prepared = prepare(load_config(args.config, args.set), say=say, progress=bar_wanted())
    sizes = ", ".join(f"{len(prepared.tables[part])} {part}" for part in PARTS)
    outputs = ", ".join(prepared.info.classes) or f"{prepared.info.num_outputs} time bins"
    print(f"ready to fit: {sizes}; features {prepared.info.in_dim} wide; {outputs}")
    return 0
