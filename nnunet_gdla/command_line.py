"""What both commands do alike: the parser, and how a subcommand ends. Standard library only."""

import argparse
import contextlib
import errno
import os
import select
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from nnunet_gdla import __version__
from nnunet_gdla.errors import Terminated, TrainingStopped, UserError, WriteError
from nnunet_gdla.write_errors import no_room_error

__all__ = ["Command", "make_parser", "run_command"]

STOPPED = 130  # what a shell reports of a program that Ctrl-C ended ...
TERMINATED = 143  # ... of one that SIGTERM ended ...
CLOSED_PIPE = 141  # ... and of one that wrote where nobody reads


class Command(NamedTuple):
    """One subcommand; `COMMANDS_PACKAGE.NAME` holds its `run(args) -> int`."""

    summary: str
    details: str
    add_arguments: Callable[[argparse.ArgumentParser], None]


class _Parser(argparse.ArgumentParser):
    def _print_message(self, message: str, file: Any = None) -> None:  # noqa: ANN401 - argparse's own
        """Print help where it can be printed; argparse itself says nothing where it cannot."""
        stream = file or sys.stderr
        if message and stream is not None:
            stream.write(message)


def make_parser(name: str, description: str, examples: str, commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """Make the parser of a command with subcommands.

    Args:
        name: What the user types.
        description: One sentence.
        examples: Below the list of subcommands, as they stand.
        commands: The subcommands by name.
    """
    parser = _Parser(
        prog=name, description=description, epilog=examples, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"nnunet-gdla {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")
    for word, command in commands.items():
        subparser = subparsers.add_parser(
            word,
            help=command.summary,
            description=command.details,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(subparser)
    return parser


def run_command(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None, run: Callable[[argparse.Namespace], int]
) -> int:
    """Run one subcommand and return its exit code.

    What the user can correct is one sentence on the error stream; a fault of ours keeps its traceback.

    Args:
        parser: Of `make_parser`.
        argv: Its arguments; None: those of the process.
        run: Runs the subcommand that the arguments name.

    Returns:
        0 good, 1 something to correct, 2 wrong usage, 130 Ctrl-C, 143 SIGTERM, 141 nobody reads the output any longer.
    """
    name = parser.prog
    try:
        args = parser.parse_args(argv)
        name += f" {args.command}"
        code = run(args)
        _flush()
    except SystemExit as end:  # argparse's, which has printed the help or what is wrong
        lost = _lost_output()
        if lost is None or end.code:
            raise
        return _without_output(lost, name)
    except KeyboardInterrupt as error:
        code = TERMINATED if isinstance(error, Terminated) else STOPPED
        return _end(code, f"\n{name}: {'; '.join(['stopped', *map(str, error.args)])}")
    except (UserError, TrainingStopped) as error:
        # A full disk can be that of the output, which is written in the middle of everything.
        lost = _lost_output() if isinstance(error, WriteError) else None
        return _end(1, f"{name}: {error}") if lost is None else _without_output(lost, name)
    except Exception as error:
        lost = _lost_output() if isinstance(error, OSError) and error.filename is None else None
        if lost is not None:
            return _without_output(lost, name)
        sentence = _sentence(error)
        if sentence is None:
            raise
        return _end(1, f"{name}: {sentence}")
    return code


def _sentence(error: Exception) -> str | None:
    """What a user is told; None for a fault of ours."""
    failed = no_room_error(error)
    if failed is not None:
        return str(failed)
    if isinstance(error, OSError) and error.filename is not None and not isinstance(error, ConnectionError):
        return f"{error.filename}: {error.strerror}; look at the path and its permissions"
    return None


def _without_output(lost: OSError, name: str) -> int:
    if isinstance(lost, BrokenPipeError):
        return CLOSED_PIPE
    return _end(1, f"{name}: the output cannot be written ({lost.strerror})")


def _end(code: int, sentence: str) -> int:
    with contextlib.suppress(OSError):  # the error stream may be the one that nobody reads
        sys.stderr.write(f"{sentence}\n")
        sys.stderr.flush()
    _lost_output()
    return code


def _flush() -> None:
    """Write what is still in a buffer now: where that fails when Python ends, no handler sees it."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _lost_output() -> OSError | None:
    """Whether an output stream cannot be written; it then swallows what is left, which would fail when Python ends."""
    lost = None
    for stream in (sys.stdout, sys.stderr):
        error = None if stream is None else _failure(stream)
        if error is not None:
            lost = lost or error
            with contextlib.suppress(OSError, ValueError):  # a stream that is no file of the system
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)
    return lost


def _failure(stream: Any) -> OSError | None:  # noqa: ANN401 - a test's stream is no TextIO
    try:
        stream.flush()
        # What was too long for a buffer, or had none, is in it no longer; then the file itself tells.
        os.write(stream.fileno(), b"")
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(stream.fileno(), 0)
            if any(event & select.POLLERR for _, event in poll.poll(0)):
                return BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
    except ValueError:  # closed, or no file of the system
        return None
    except OSError as error:
        return error
    return None
