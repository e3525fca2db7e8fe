"""What was noticed on the way to a training, as the lines of a report."""

from dataclasses import dataclass, field

__all__ = ["Remarks"]


@dataclass
class Remarks:
    """Sentences without a full stop, in the order in which they came up.

    Attributes:
        notes: What was counted, understood and asked for.
        warnings: What was left out, or looks like a mistake.
    """

    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        """One line each, beginning with PASS or WARN."""
        return [f"PASS {note}" for note in self.notes] + [f"WARN {warning}" for warning in self.warnings]
