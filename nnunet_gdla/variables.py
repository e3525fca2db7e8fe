"""Paths in environment variables, as they are by mistake: with quotes, blanks, ~ or $ that no shell has taken away."""

import os
import re
import shlex
from pathlib import Path

from nnunet_gdla.errors import UserError

__all__ = ["NNUNET_FOLDERS", "path_mistake", "refuse_mistaken_paths"]

NNUNET_FOLDERS = ("nnUNet_raw", "nnUNet_preprocessed", "nnUNet_results")


def path_mistake(variable: str, value: str) -> str | None:
    """Say what in a variable's value only a shell would have taken away; None where the path is there as it is.

    Args:
        variable: Its name.
        value: A path; programs take it letter by letter.

    Returns:
        What is part of the value, and the right export.
    """
    if Path(value).exists():
        return None
    meant, wrong = value, []
    while True:
        bare = meant.strip()
        if bare != meant:
            wrong.append("blanks")
        if len(bare) > 1 and bare[0] == bare[-1] and bare[0] in "\"'":
            wrong.append("quotes")
            bare = bare[1:-1]
        if bare == meant:
            break
        meant = bare
    for mark, expand in (("~", os.path.expanduser), ("$", os.path.expandvars)):
        if meant.startswith("~") if mark == "~" else re.search(r"\$(\w|\{)", meant):
            wrong.append(mark)
            meant = expand(meant)
    if not wrong:
        return None
    are = "are" if len(set(wrong)) > 1 or wrong[0].endswith("s") else "is"
    return f"{' and '.join(dict.fromkeys(wrong))} {are} part of its value {value!r}; export {variable}={_quoted(meant)}"


def refuse_mistaken_paths() -> None:
    """Look at nnU-Net's folders before a command makes or misses one of such a name.

    Raises:
        UserError: If one is mistaken.
    """
    for variable in NNUNET_FOLDERS:
        mistake = path_mistake(variable, os.environ.get(variable, ""))
        if mistake is not None:
            raise UserError(f"{variable}: {mistake}")


def _quoted(path: str) -> str:
    """For a shell; a variable that is not set is left for it."""
    return f'"{path}"' if "$" in path else shlex.quote(path)
