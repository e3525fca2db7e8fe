"""What foreign readers raise on a damaged file, and the one line of it that belongs in a sentence for the user."""

import re
import struct
import zlib
from pathlib import Path

__all__ = ["DAMAGE", "reason"]

# What parsers raise on bytes that are none of theirs. Listed by kind, so that Ctrl-C, SystemExit and the errors nobody
# thought of still end the command.
DAMAGE: tuple[type[Exception], ...] = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,  # a size that is not true
    OSError,
    RuntimeError,
    SyntaxError,  # Pillow raises it for a broken PNG header
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)


def reason(error: BaseException, path: Path) -> str:
    """Return the telling line of an exception without the file's name, which the sentence around it gives.

    Args:
        error: SimpleITK puts its reason last, after a C++ path; the operating system its number first.
        path: The file that was read or written.
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if str(error).rstrip().endswith("Reason: No such file or directory") and path.is_file():
        return "the file is cut short or damaged"  # SimpleITK's reason is that of an earlier, unrelated search
    line = ([line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__])[-1]
    return re.sub(rf"(?: (?:for|of|in))?:? ?([\"']?){re.escape(str(path))}\1", "", line).strip()
