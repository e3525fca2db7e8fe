"""What ends a command with one sentence instead of a traceback. Standard library only."""

__all__ = ["TrainingStopped", "UserError"]


class UserError(SystemExit, ValueError):
    """Something the user can mend: the message says what is wrong, where, and what to do.

    It is a `ValueError` for those who call our functions and catch, and a `SystemExit` for those who run a command,
    ours or nnU-Net's: uncaught, Python prints the message alone and ends with exit code 1.
    """


class TrainingStopped(SystemExit, RuntimeError):  # noqa: N818 - not everything that stops a run is an error
    """A training that must not go on, such as one whose loss is no longer finite.

    Uncaught, Python prints the message alone and ends with exit code 1; code that drives a trainer catches it as a
    `RuntimeError`.
    """
