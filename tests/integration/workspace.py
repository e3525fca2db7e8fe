"""Folders of one nnU-Net user, and nnU-Net's commands run in them, each in a process of its own."""

import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["HERE", "Workspace"]

HERE: Final = Path(__file__).resolve().parent
SCRIPTS: Final = Path(sysconfig.get_path("scripts"))
LIMIT_S: Final = 600
# What README tells users of a small machine without a GPU; planning wants at least one process for augmentation.
COMMON: Final = {
    "NNUNET_GDLA_ENCODER_WEIGHTS": "none",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "nnUNet_def_n_proc": "1",
    "nnUNet_n_proc_DA": "0",
    "PYTHONWARNINGS": "ignore",
    "MPLBACKEND": "agg",
}


@dataclass(frozen=True)
class Workspace:
    """nnU-Net's three folders; several workspaces may share raw and preprocessed data."""

    raw: Path
    preprocessed: Path
    results: Path
    logs: Path

    @classmethod
    def below(cls, root: Path, *, like: "Workspace | None" = None) -> "Workspace":
        """Make a workspace; `like` lends its data, the results are always the new one's own."""
        results, logs = root / "results", root / "logs"
        for folder in (results, logs):
            folder.mkdir(parents=True, exist_ok=True)
        if like is not None:
            return cls(like.raw, like.preprocessed, results, logs)
        raw, preprocessed = root / "raw", root / "preprocessed"
        raw.mkdir(exist_ok=True)
        preprocessed.mkdir(exist_ok=True)
        return cls(raw, preprocessed, results, logs)

    def model(self, dataset: str, trainer: str, plans: str) -> Path:
        """Return the folder of a model's 2d configuration."""
        return self.results / dataset / f"{trainer}__{plans}__2d"

    def environment(self, variables: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the variables that a command sees; our own folder of trainers is added by the installed package."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("nnUNet_", "NNUNET_GDLA_"))}
        return {
            **kept,
            **COMMON,
            "nnUNet_raw": str(self.raw),
            "nnUNet_preprocessed": str(self.preprocessed),
            "nnUNet_results": str(self.results),
            "nnUNet_extTrainer": str(HERE / "user_trainers"),
            "PYTHONPATH": str(HERE / "every_process"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "NNUNET_GDLA_TEST_NETWORK_LOG": str(self.logs / "network.txt"),
            **(variables or {}),
        }

    def run(self, command: str, *arguments: object, expect: int = 0, variables: Mapping[str, str] | None = None) -> str:
        """Run one command to its end and return what it printed.

        Raises:
            AssertionError: If its exit code is not `expect` or it asked for the network; with the end of its output.
        """
        called = [_program(command), *map(str, arguments)]
        done = subprocess.run(
            called,
            env=self.environment(variables),
            cwd=self.logs,  # not the checkout, as users do
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == expect, f"exit code {done.returncode}: {' '.join(called)}\n{done.stdout[-6000:]}"
        self.assert_no_network()
        return done.stdout

    def run_and_kill(self, command: str, *arguments: object, when: Path, variables: Mapping[str, str]) -> None:
        """Start a command and kill it, with all it has started, as soon as the file `when` is there."""
        with (self.logs / "killed.txt").open("w") as output:
            started = subprocess.Popen(
                [_program(command), *map(str, arguments)],
                env=self.environment(variables),
                cwd=self.logs,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                deadline = time.monotonic() + LIMIT_S
                while not when.exists() and started.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.2)
            finally:
                if started.poll() is None:
                    os.killpg(started.pid, signal.SIGKILL)
                code = started.wait()
        said = (self.logs / "killed.txt").read_text()[-6000:]
        assert code == -signal.SIGKILL, f"{command} ended by itself, code {code}:\n{said}"
        assert when.exists(), f"{command} did not come as far as {when} in {LIMIT_S} s:\n{said}"
        self.assert_no_network()

    def assert_no_network(self) -> None:
        log = self.logs / "network.txt"
        assert not log.exists(), f"asked for the network: {log.read_text()}"


def _program(command: str) -> str:
    return sys.executable if command == "python" else str(SCRIPTS / command)
