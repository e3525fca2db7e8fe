"""Numbers in sentences."""

__all__ = ["counted"]


def counted(number: int, noun: str) -> str:
    """Return "1 case", "2 cases", "0 cases"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
