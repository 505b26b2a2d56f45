"""The contract suite for horovod.tensorflow, with one process per rank."""

from __future__ import annotations

import importlib.util

import pytest
from checks import CHECKS

import horovod

pytest.importorskip("tensorflow")

from tensorflow_api import LACKING, MODES, run_checks


# Graphs take long to make, and do not depend on Keras. On two ranks the oldest TensorFlow makes
# them.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "keras", "modes"), [(2, "tf_keras", ("eager",)), (3, "keras", MODES)]
)
def test_contract(
    size: int, keras: str, modes: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec(keras) is None:
        pytest.skip(f"{keras} is not installed: requirements/keras2.txt")
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", str(int(keras == "tf_keras")))
    # A rank that waits in vain ends the test with a report, not with the patience of the machine.
    monkeypatch.setenv("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "60")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    names = [check.__name__ for check in CHECKS if check.__name__ not in LACKING]
    told = horovod.run(run_checks, (modes,), num_proc=size)
    assert told == [dict.fromkeys(modes, names)] * size


def test_what_the_interface_lacks_is_part_of_the_contract() -> None:
    assert set(LACKING) < {check.__name__ for check in CHECKS}
