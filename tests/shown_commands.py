"""Command lines that help and documentation show, found in their text."""

import argparse
import re
import shlex
from collections.abc import Iterable, Iterator

from tests.paths import ROOT

__all__ = ["help_texts", "pages", "shown_lines"]

# Words that stand for something the reader puts in.
_PLACEHOLDERS = {"GB": "8", "ID": "4", "N": "2"}


def pages() -> list[str]:
    """README and all pages of the documentation."""
    return [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]


def help_texts(parser: argparse.ArgumentParser) -> Iterator[str]:
    """What --help prints, of a parser and of all its subcommands."""
    yield parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                yield from help_texts(subparser)


def shown_lines(program: str, texts: Iterable[str]) -> list[list[str]]:
    """The arguments of each call that the texts show, sorted, each once.

    A call is what follows the program's name at the start of a line, of inline code, of `$(...)` or behind `&&`, up to
    the end of that, a comment (two blanks or #) or a pipe. The name with a subcommand alone, as inline code, is taken
    for a mention unless the subcommand needs no more.
    """
    calls = set()
    for text in texts:
        for match in re.finditer(rf"(^[ \t]*|`|\$\(|&& ){program} ([^`\n|&)]*)", text, re.MULTILINE):
            shown = re.split(r" {2,}", match[2].strip())[0]
            words = [_PLACEHOLDERS.get(word, word) for word in shlex.split(shown, comments=True)]
            if len(words) > 1 or match[1] != "`":
                calls.add(tuple(words))
    return [list(words) for words in sorted(calls)]
