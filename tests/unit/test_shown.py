"""A process beside rank 0 that cannot start: who asked for it decides what follows."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from horovod._rank import context
from horovod._rank.context import Context
from horovod._rank.reports import shown
from horovod._settings.config import Config
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def alone(config: Config, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A context of one rank, beside which nothing can be started."""
    monkeypatch.setattr(shown, "_MODULE", "horovod.is_not_there")
    own = Context(config)
    try:
        with own.use():
            yield
    finally:
        own.end()
        own.part()


def test_a_job_starts_that_others_want_to_hear_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with alone(Config(exports=("kubeflow",)), monkeypatch):
        context.init()
        assert context.size() == 1
    (line,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert line.startswith("nothing is told to kubeflow: the process that shows the job failed")


def test_a_job_that_the_user_wants_to_watch_does_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        alone(Config(watch=True, exports=("kubeflow",)), monkeypatch),
        pytest.raises(StartError, match="the process that shows the job failed"),
    ):
        context.init()
