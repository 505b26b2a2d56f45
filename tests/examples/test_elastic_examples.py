"""Elastic examples go on when one of their workers is killed."""

from __future__ import annotations

import importlib.util
import re
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from launcher import launched

if TYPE_CHECKING:
    from launcher import Launcher

pytest.importorskip("torch")
pytest.importorskip("sklearn")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# Two ranks import TensorFlow at the same time.
PATIENCE_S = 240.0
EPOCHS = 15

needs_tensorflow = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed"
)


def worker(launcher: Launcher, slot: int) -> psutil.Process:
    """The process of a slot, once it runs."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        for process in launcher.descendants():
            with suppress(psutil.Error):  # it has ended meanwhile
                if process.environ().get("HOROVOD_WORKER_SLOT") == str(slot):
                    return process
        time.sleep(0.05)
    raise AssertionError(f"no worker has the slot {slot}")


@pytest.mark.parametrize(
    ("folder", "style"),
    [
        ("pytorch", "loops"),
        ("pytorch", "function"),
        pytest.param("tensorflow", "loops", marks=needs_tensorflow),
        pytest.param("tensorflow", "function", marks=needs_tensorflow),
        pytest.param("keras", "callback", marks=needs_tensorflow),
        pytest.param("keras", "function", marks=needs_tensorflow),
    ],
)
def test_an_example_outlives_a_worker(folder: str, style: str) -> None:
    program = str(EXAMPLES / folder / "digits_elastic.py")
    words = ["-np", "2", "--min-np", "1", "-H", "localhost:2", sys.executable, program]
    with launched(*words, "--style", style, "--epochs", str(EPOCHS)) as launcher:
        victim = worker(launcher, 1)  # before it trains, so that it can be killed at once
        launcher.wait_lines("stdout", r"epoch +1\b.* on 2 rank", timeout_s=PATIENCE_S)
        victim.send_signal(signal.SIGKILL)
        assert launcher.wait(PATIENCE_S) == 0, launcher.stderr
    output = "\n".join(launcher.lines["stdout"])
    epochs = [(int(n), int(size)) for n, size in re.findall(r"epoch +(\d+)\b.* on (\d) ", output)]
    assert [number for number, _ in epochs] == list(range(1, EPOCHS + 1))
    sizes = [size for _, size in epochs]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1, "the worker was killed too late"
    (accuracy,) = re.findall(r"test accuracy: ([\d.]+)% on 1 rank", output)
    assert float(accuracy) >= 90.0
