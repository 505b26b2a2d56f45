"""Fixtures of the rendezvous tests: a secret, a store, and a check that nothing stays open."""

from __future__ import annotations

import gc
import os
import threading
from typing import TYPE_CHECKING

import pytest

from horovod._rendezvous import StoreServer, make_secret

if TYPE_CHECKING:
    from collections.abc import Iterator


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def secret() -> bytes:
    return make_secret()


@pytest.fixture
def no_leak() -> Iterator[None]:
    """The test leaves no more descriptors and threads than it found."""
    gc.collect()  # what other tests have left
    descriptors, threads = num_descriptors(), set(threading.enumerate())
    yield
    assert num_descriptors() <= descriptors
    assert set(threading.enumerate()) <= threads


@pytest.fixture
def server(no_leak: None, secret: bytes) -> Iterator[StoreServer]:
    with StoreServer(secret) as server:
        yield server
