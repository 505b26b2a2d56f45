"""What unit tests of several folders share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from horovod._rank import context

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def alone() -> Iterator[None]:
    """This process is the only rank of a job."""
    context.init()
    yield
    context.shutdown()
