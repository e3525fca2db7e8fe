"""The Triton kernels in Triton's interpreter, on a CPU: they equal the naive twins.

The interpreter has to be chosen before Triton is imported, which other tests do without it; so the cases run in a
Python of their own.
"""

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.paths import ROOT

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed here")


@pytest.mark.slow
@pytest.mark.parametrize("cases", ["differential", "redundancy"])
def test_cases_pass_in_the_interpreter(cases: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(
        [*command, f"tests/ops/triton_cases_{cases}.py"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "skipped" not in finished.stdout.splitlines()[-1]
