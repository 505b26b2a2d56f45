"""What a launcher refuses before it starts a job that is to be watched."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

import pytest

from horovod.errors import StartError, UsageError
from horovod.runner.starting import observed_job
from horovod.runner.starting.observed_job import check_watching, variables_of
from horovod.runner.starting.requests import Watching
from horovod.runner.starting.served import with_variables

if TYPE_CHECKING:
    from pathlib import Path


def test_a_page_needs_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed_job, "NEEDS", ("no_such_library",))
    with pytest.raises(UsageError, match="pip install no_such_library"):
        check_watching(Watching(dashboard=0))
    check_watching(Watching(verdicts=True, metrics=0))


def test_a_page_needs_a_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed_job, "NEEDS", ())
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UsageError, match=f"--dashboard={port}: Address already in use"):
            check_watching(Watching(dashboard=port))
    check_watching(Watching(dashboard=port))


@pytest.mark.parametrize(
    ("options", "environ", "expected"),
    [
        (Watching(), {}, Watching()),
        (Watching(), {"HOROVOD_DASHBOARD": "0"}, Watching()),
        (Watching(), {"HOROVOD_DASHBOARD": "1", "HOROVOD_WATCH": "1"}, Watching(True, 0)),
        (Watching(), {"HOROVOD_METRICS_PORT": "0"}, Watching(metrics=0)),
        (Watching(dashboard=7000), {"HOROVOD_DASHBOARD": "8000"}, Watching(dashboard=7000)),
    ],
)
def test_variables_are_options_that_are_weaker(
    options: Watching, environ: dict[str, str], expected: Watching
) -> None:
    assert with_variables(options, environ) == expected
    assert with_variables(Watching(), variables_of(expected)) == expected


def test_a_port_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(StartError, match="HOROVOD_DASHBOARD"):
        with_variables(Watching(), {"HOROVOD_DASHBOARD": "yes"})


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o604])
def test_the_address_of_a_page_goes_to_no_file_that_others_can_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: int
) -> None:
    monkeypatch.setattr(observed_job, "NEEDS", ())
    log = tmp_path / "log"
    log.touch()
    log.chmod(mode)
    with log.open("w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        if mode == 0o600:
            check_watching(Watching(dashboard=0))
        else:
            with pytest.raises(UsageError, match="chmod 600 it"):
                check_watching(Watching(dashboard=0))
