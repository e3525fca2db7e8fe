"""What ends a command with one sentence instead of a traceback. Standard library only."""

import sys
from types import TracebackType

__all__ = ["Terminated", "TrainingStopped", "UserError", "WriteError", "install_excepthook"]


class UserError(ValueError):
    """Something the user can correct: the message says what is wrong, where, and what to do.

    Our commands print it and end with exit code 1; inside nnU-Net's commands `install_excepthook` does so.
    """


class WriteError(UserError):
    """A file or folder that could not be written, such as on a full disk; nothing half-written is left.

    Args:
        what: What could not be written, and why.
        remedy: What makes room or gives the right to write.
        again: How to go on after that.
    """

    def __init__(self, what: str, remedy: str = "", again: str = "run the same command again") -> None:
        super().__init__(what, remedy, again)

    def __str__(self) -> str:
        what, remedy, again = self.args
        return f"{what}; {remedy}, then {again}" if remedy else str(what)

    def going_on(self, again: str) -> "WriteError":
        """The same with another way to go on."""
        what, remedy, _ = self.args
        return WriteError(what, remedy, again)


class Terminated(KeyboardInterrupt):
    """Another program ended this one (SIGTERM); what holds for Ctrl-C holds for it, but for the exit code."""


class TrainingStopped(RuntimeError):  # noqa: N818 - not everything that stops a run is an error
    """A training that must not go on, such as one whose loss is no longer finite.

    Ends a command as `UserError` does.
    """


def install_excepthook() -> None:
    """Let an uncaught `UserError` or `TrainingStopped` print its sentence alone; Python then exits with code 1.

    For commands that are not ours: what our trainers and planners raise inside nnU-Net's. Every other exception goes to
    the hook that was there before. Installed once, however often it is called.
    """
    earlier = sys.excepthook
    if getattr(earlier, "of_nnunet_gdla", False):
        return

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if isinstance(error, UserError | TrainingStopped):
            sys.stderr.write(f"{error}\n")
        else:
            earlier(kind, error, traceback)

    hook.of_nnunet_gdla = True  # type: ignore[attr-defined]
    sys.excepthook = hook
