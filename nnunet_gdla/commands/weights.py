"""`nnunet-gdla weights`: fetch the encoders' files, show what is in a file, convert a released checkpoint."""

import argparse
import importlib

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    """Run `args.action`: "fetch", "show" or "convert"."""
    action = importlib.import_module(f"nnunet_gdla.commands.weights_{args.action}")
    code: int = action.run(args)
    return code
