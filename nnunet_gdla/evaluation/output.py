"""Where results may go: not among the masks, and not over a summary of another program."""

import os
from collections.abc import Iterable
from pathlib import Path

from nnunet_gdla.errors import UserError
from nnunet_gdla.evaluation.comparison import COMPARISON_FILE, DIFFERENCES_FILE
from nnunet_gdla.evaluation.conventions import LEAVE_OUT, STANDARD
from nnunet_gdla.evaluation.files import read_json_object
from nnunet_gdla.evaluation.report import FIGURE_FILE
from nnunet_gdla.evaluation.results import METRICS_FILE, SUMMARY_FILE

__all__ = ["default_folder", "refuse_occupied"]

_FILES = (METRICS_FILE, SUMMARY_FILE, FIGURE_FILE, COMPARISON_FILE, DIFFERENCES_FILE)


def default_folder(rules: str, missed: str) -> str:
    """Return the name of the folder for results, so that those of other conventions stay."""
    return "evaluation" + ("" if rules == STANDARD else f"_{rules}") + ("" if missed == LEAVE_OUT else f"_{missed}")


def refuse_occupied(folder: Path, masks: Iterable[Path]) -> None:
    """Refuse a folder for results in which our figure would be taken for a mask, or our files replace other ones.

    Args:
        folder: Where results are to go.
        masks: The folders of masks.

    Raises:
        UserError: If it is one of `masks`, or holds a summary.json that `evaluate` has not written, such as nnU-Net's,
            or cannot be made or written into, which would otherwise be seen when all is measured.
    """
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    taken = [path for path in (folder / name for name in _FILES) if path.is_dir()]
    if not there.is_dir():
        raise UserError(f"{folder} cannot be made ({there} is a file); give another folder with --out")
    if not os.access(there, os.W_OK):
        raise UserError(f"{there} cannot be written into; give another folder with --out")
    if taken:
        raise UserError(f"{taken[0]} is a folder, where a file of that name belongs; give another folder with --out")
    if any(folder.resolve() == other.resolve() and not (folder / METRICS_FILE).is_file() for other in masks):
        raise UserError(f"{folder} holds the masks, among which results do not belong; give another folder with --out")
    summary = folder / SUMMARY_FILE
    if summary.is_file() and "convention" not in read_json_object(summary):
        raise UserError(
            f"{summary} was not written by nnunet-gdla evaluate and would be replaced; give another folder with --out"
        )
