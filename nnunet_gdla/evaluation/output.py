"""Where results may go: not among the masks, and not over a summary of another program."""

from collections.abc import Iterable
from pathlib import Path

from nnunet_gdla.errors import UserError
from nnunet_gdla.evaluation.files import read_json_object
from nnunet_gdla.evaluation.results import METRICS_FILE, SUMMARY_FILE

__all__ = ["refuse_occupied"]


def refuse_occupied(folder: Path, masks: Iterable[Path]) -> None:
    """Refuse a folder for results in which our figure would be taken for a mask, or our files replace other ones.

    Args:
        folder: Where results are to go.
        masks: The folders of masks.

    Raises:
        UserError: If it is one of `masks`, or holds a summary.json that `evaluate` has not written, such as nnU-Net's.
    """
    if any(folder.resolve() == other.resolve() and not (folder / METRICS_FILE).is_file() for other in masks):
        raise UserError(f"{folder} holds the masks, among which results do not belong; give another folder with --out")
    summary = folder / SUMMARY_FILE
    if summary.is_file() and "convention" not in read_json_object(summary):
        raise UserError(
            f"{summary} was not written by nnunet-gdla evaluate and would be replaced; give another folder with --out"
        )
