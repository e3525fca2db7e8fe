"""Numbers in sentences."""

__all__ = ["counted"]


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return "1 case", "2 cases", "0 cases", "1,000 cases"; `plural` where it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
