"""The guards of tests/conftest.py do guard."""

import os
import socket

import jaxtyping
import pytest
import torch

from nnunet_gdla.ops import linear_attention


def wrong_call() -> torch.Tensor:
    return linear_attention(torch.ones(1, 1, 2, 3), torch.ones(1, 1, 2, 3), torch.ones(2, 3))


def test_shapes_are_checked() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        wrong_call()


@pytest.mark.compile
def test_tests_that_compile_run_without_the_checks() -> None:
    with pytest.raises((ValueError, RuntimeError)) as error:
        wrong_call()
    assert not isinstance(error.value, jaxtyping.TypeCheckError)


@pytest.mark.parametrize("host", ["example.org", "192.0.2.1", "2001:db8::1"])
def test_the_internet_is_out_of_reach(host: str) -> None:
    with pytest.raises(OSError, match="tests reach no internet"):
        socket.create_connection((host, 80), timeout=1)
    with socket.socket() as direct, pytest.raises(ConnectionRefusedError, match="tests reach no internet"):
        direct.connect(("192.0.2.1", 80))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_this_machine_is_not(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection((host, server.getsockname()[1]), timeout=10).close()


def test_every_test_starts_from_the_same_seed_and_from_scratch() -> None:
    assert torch.initial_seed() == 0
    assert os.environ["NNUNET_GDLA_ENCODER_WEIGHTS"] == "none"
