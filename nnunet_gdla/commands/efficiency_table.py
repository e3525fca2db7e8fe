"""The efficiency table as Markdown and as CSV."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from nnunet_gdla.files import replaced
from nnunet_gdla.insight import ProductCount
from nnunet_gdla.insight.timing import median_ratio

__all__ = ["Row", "markdown", "write_csv"]


@dataclass(frozen=True)
class Row:
    """One network at one size.

    Args:
        network: Its name.
        size: Edge of the image.
        input_size: Edge of what the network is given; nnU-Net's networks need a multiple of their deepest stride.
        channels: Channels of the image.
        classes: Output channels.
        parameters: Numbers in its parameters.
        products: Multiply-adds of one image.
        forward: Seconds per image of every round, in inference; empty if not measured.
        training: Likewise, forward and backward with deep supervision.
    """

    network: str
    size: int
    input_size: int
    channels: int
    classes: int
    parameters: int
    products: ProductCount
    forward: list[float] = field(default_factory=list)
    training: list[float] = field(default_factory=list)


def markdown(rows: Sequence[Row], *, rival: str) -> str:
    """Return the table; columns of what was not measured are left out, and ratios where the rival is missing."""
    header = ["size", "network", "parameters (M)", "multiply-adds (G)", "in attention products (G)"]
    columns = [column for column in ("forward", "training") if any(getattr(row, column) for row in rows)]
    compared = any(row.network == rival for row in rows)
    for column in columns:
        header += [f"{column} (ms)"] + [f"{column} / {rival}"] * compared
    lines = []
    for row in rows:
        cells = [
            str(row.size),
            row.network,
            f"{row.parameters / 1e6:.2f}",
            f"{row.products.total / 1e9:.2f}",
            f"{row.products.attention / 1e9:.2f}",
        ]
        for column in columns:
            cells.append(f"{1000 * median(getattr(row, column)):.0f}")
            if compared:
                cells.append(f"{_ratio(row, rows, column, rival):.2f}")
        lines.append(cells)
    rule = ["---:", "---", *["---:"] * (len(header) - 2)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, rule, *lines))


def write_csv(path: Path, rows: Sequence[Row], *, rival: str) -> None:
    """Write all numbers in full; the file appears at once or not at all.

    Raises:
        WriteError: If it cannot be written.
    """

    def write(unfinished: Path) -> None:
        with unfinished.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(_record(rows[0], rows, rival)))
            writer.writeheader()
            writer.writerows(_record(row, rows, rival) for row in rows)

    replaced(path, write, option="--out")


def _record(row: Row, rows: Sequence[Row], rival: str) -> dict[str, object]:
    record: dict[str, object] = {
        "network": row.network,
        "size": row.size,
        "input_size": row.input_size,
        "channels": row.channels,
        "classes": row.classes,
        "parameters": row.parameters,
        "multiply_adds": row.products.total,
        **{f"multiply_adds_{kind}": count for kind, count in row.products._asdict().items()},
    }
    for column in ("forward", "training"):
        seconds: list[float] = getattr(row, column)
        record |= {
            f"{column}_seconds_median": median(seconds) if seconds else "",
            f"{column}_seconds_min": min(seconds, default=""),
            f"{column}_seconds_max": max(seconds, default=""),
            f"{column}_over_{rival}": _ratio(row, rows, column, rival) if seconds else "",
        }
    return record


def _ratio(row: Row, rows: Sequence[Row], column: str, rival: str) -> float | str:
    """Return the time over the rival's at the same size, or nothing where the rival was not measured."""
    for other in rows:
        if other.network == rival and other.size == row.size:
            return median_ratio(getattr(row, column), getattr(other, column))
    return ""
