"""Runs at the start of every Python process of these tests, nnU-Net's own children included.

No network: an attempt is refused and noted, so that a test can tell that there was none, not only that none was needed.
One thread: nnU-Net gives a CPU run one thread a core, and several test workers share the cores.
"""

import os
import socket
from pathlib import Path
from typing import Any, NoReturn

_LOG = Path(os.environ["NNUNET_GDLA_TEST_NETWORK_LOG"])
_connect = socket.socket.connect


def _refuse(what: object) -> NoReturn:
    with _LOG.open("a") as log:
        log.write(f"{what}\n")
    raise OSError(f"there is no network here, asked for {what}")


def _connect_here(self: socket.socket, address: Any) -> None:  # noqa: ANN401 - as various as socket families
    if self.family in (socket.AF_INET, socket.AF_INET6):
        _refuse(address)
    _connect(self, address)


def _lookup(host: object, *args: object, **kwargs: object) -> NoReturn:
    _refuse(host)


socket.socket.connect = _connect_here  # type: ignore[method-assign, assignment]
socket.socket.connect_ex = _connect_here  # type: ignore[method-assign, assignment]
socket.getaddrinfo = _lookup
os.cpu_count = lambda: 1
