"""What every test gets: shape checks, seeds, one thread a worker, no internet, no pretrained weights."""

import importlib.metadata
import importlib.util
import inspect
import os
import random
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import jaxtyping
import numpy as np
import pytest
import torch

from tests.paths import ROOT
from tests.unchecked import unchecked

# A shell starts what it puts into the background, perhaps the whole test run, with Ctrl-C ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave_unchecked(cls: type[torch.autograd.Function]) -> None:
    """Take the checks off the methods of a new autograd function: even switched off, they cannot be traced there."""
    for name, member in list(vars(cls).items()):
        if isinstance(member, staticmethod) and hasattr(member.__func__, "__wrapped__"):
            setattr(cls, name, staticmethod(inspect.unwrap(member.__func__)))


torch.autograd.Function.__init_subclass__ = classmethod(_leave_unchecked)  # type: ignore[assignment]

# Not `--jaxtyping-packages`: that refuses a package that is already imported, and `nnunet_gdla` (without its parts) is
# imported at every start of Python by the registration. The hook takes the parts as they are imported.
jaxtyping.install_import_hook("nnunet_gdla", "beartype.beartype")

# Nothing may be fetched; the tests that mean to load an encoder set their own.
os.environ["NNUNET_GDLA_ENCODER_WEIGHTS"] = "none"

if "PYTEST_XDIST_WORKER" in os.environ:  # the workers share the cores, and so do the programs that tests start
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)

hypothesis.settings.register_profile("tests", derandomize=True, deadline=None)
hypothesis.settings.load_profile("tests")

SLOW_TIMEOUT_S = 900


def pytest_configure() -> None:
    """Refuse to run against a bare checkout, which has no `nnunet_gdla.trainers`."""
    if importlib.util.find_spec("nnunet_gdla.trainers") is None:
        pytest.exit("nnunet-gdla is not installed here; run: pip install -e '.[test]'", returncode=4)
    early = [name for name in sys.modules if name.startswith("nnunet_gdla.") and name != "nnunet_gdla._register"]
    if early:
        pytest.exit(f"imported before the shape checks could be put in: {', '.join(early)}", returncode=4)


def pytest_report_header() -> str:
    """Say which package is tested: the installed one, and whether it is still what this checkout holds."""
    spec = importlib.util.find_spec("nnunet_gdla")
    assert spec is not None
    assert spec.origin is not None
    installed = Path(spec.origin).parent
    header = f"nnunet_gdla {importlib.metadata.version('nnunet-gdla')} from {installed}"
    if installed == ROOT / "nnunet_gdla":
        return header
    sources = [
        (path, installed / path.relative_to(ROOT / "nnunet_gdla")) for path in _python_files(ROOT / "nnunet_gdla")
    ]
    for mapped in ("trainers", "plans"):
        sources += [
            (path, installed / mapped / path.relative_to(ROOT / mapped)) for path in _python_files(ROOT / mapped)
        ]
    stale = [str(ours.relative_to(ROOT)) for ours, theirs in sources if not _same(ours, theirs)]
    return header + (
        f"\nINSTALL AGAIN, these files differ from the installed ones: {', '.join(stale)}" if stale else ""
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests their longer limit, and say why a GPU test cannot run."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))
        if item.get_closest_marker("gpu") and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture
def device() -> torch.device:
    """The GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - nnU-Net and batchgenerators draw from the global generator
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_shape_checks_while_compiling(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests marked `compile` run as users do, without shape checks: `fullgraph=True` cannot trace those."""
    if request.node.get_closest_marker("compile") is None:
        yield
        return
    torch.compiler.reset()
    with unchecked():
        yield
    torch.compiler.reset()


@pytest.fixture(autouse=True)
def _no_internet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only this machine can be reached from Python; what goes further fails as it does on a machine without network."""

    def guard(connect: Callable[[socket.socket, Any], Any]) -> Callable[[socket.socket, Any], Any]:
        def connect_here(self: socket.socket, address: Any) -> Any:  # noqa: ANN401 - as various as socket families
            if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_here(address[0]):
                raise ConnectionRefusedError(f"tests reach no internet, asked for {address}")
            return connect(self, address)

        return connect_here

    def lookup_here(host: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if not _is_here(host):
            raise socket.gaierror(socket.EAI_NONAME, f"tests reach no internet, asked for {host}")
        return getaddrinfo(host, *args, **kwargs)

    getaddrinfo = socket.getaddrinfo
    monkeypatch.setattr(socket.socket, "connect", guard(socket.socket.connect))
    monkeypatch.setattr(socket.socket, "connect_ex", guard(socket.socket.connect_ex))
    monkeypatch.setattr(socket, "getaddrinfo", lookup_here)


@pytest.fixture(autouse=True)
def _poisoned_empty(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In tests of operators an element that nobody wrote is NaN (or the largest integer), not a lucky zero."""
    if not request.path.is_relative_to(ROOT / "tests" / "ops") or request.node.get_closest_marker("compile"):
        return

    def poisoned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def make_poisoned(*args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: ANN401
            made = make(*args, **kwargs)
            with torch.no_grad():
                if made.dtype.is_floating_point or made.dtype.is_complex:
                    made.fill_(torch.nan)
                elif made.dtype != torch.bool:
                    made.fill_(torch.iinfo(made.dtype).max)
            return made

        return make_poisoned

    for name in ("empty", "empty_like", "empty_strided"):
        monkeypatch.setattr(torch, name, poisoned(getattr(torch, name)))
    for name in ("new_empty", "new_empty_strided"):
        monkeypatch.setattr(torch.Tensor, name, poisoned(getattr(torch.Tensor, name)))


def _is_here(host: object) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    if name is None or name in ("", "localhost", "::", "::1", "0.0.0.0", socket.gethostname()):
        return True
    return isinstance(name, str) and name.startswith("127.")


def _python_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def _same(ours: Path, theirs: Path) -> bool:
    return theirs.is_file() and ours.read_bytes() == theirs.read_bytes()
