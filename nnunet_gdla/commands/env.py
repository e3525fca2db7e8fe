"""`nnunet-gdla env`: the variable that registration sets, for shells in which it cannot."""

import argparse
import os
import shlex
import sys

from nnunet_gdla._register import TRAINERS_VARIABLE, external_trainers

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    """Print one line that sets `nnUNet_extTrainer` in the chosen shell, and keeps what it holds."""
    value = external_trainers(os.environ.get(TRAINERS_VARIABLE))
    shell = args.shell or ("powershell" if sys.platform == "win32" else "bash")
    if shell == "powershell":
        quoted = value.replace("'", "''")
        print(f"$Env:{TRAINERS_VARIABLE} = '{quoted}'")
    elif shell == "fish":
        quoted = value.replace("\\", "\\\\").replace("'", "\\'")
        print(f"set -gx {TRAINERS_VARIABLE} '{quoted}'")
    else:
        print(f"export {TRAINERS_VARIABLE}={shlex.quote(value)}")
    return 0
