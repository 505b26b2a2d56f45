"""The contract suite for horovod.tensorflow, with one process per rank."""

from __future__ import annotations

import pytest
from checks import CHECKS

import horovod

pytest.importorskip("tensorflow")

from tensorflow_api import LACKING, MODES, run_checks


@pytest.mark.parametrize("size", [2, 3])
def test_contract(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # A rank that waits in vain ends the test with a report, not with the patience of the machine.
    monkeypatch.setenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "60")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    names = [check.__name__ for check in CHECKS if check.__name__ not in LACKING]
    assert horovod.run(run_checks, num_proc=size) == [dict.fromkeys(MODES, names)] * size


def test_what_the_interface_lacks_is_part_of_the_contract() -> None:
    assert set(LACKING) < {check.__name__ for check in CHECKS}
