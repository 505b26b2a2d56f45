"""What holds for all tests."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path

# For what tests start from here on; `launcher.environment` puts it in front as well.
QUICK_IMPORTS = str(Path(__file__).with_name("quick_imports"))
os.environ["PYTHONPATH"] = os.pathsep.join(
    [QUICK_IMPORTS, *filter(None, [os.environ.get("PYTHONPATH")])]
)

# pip installs sources only, and images of containers like to say that Python shall keep nothing of
# what it compiles: each of a thousand processes would compile TensorFlow anew, which takes 10 s.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Threads of PyTorch that wait for each other sleep. They would keep the core busy that others need.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Tests let jobs fail; the user's own reports are to stay.
os.environ.setdefault("HOROVOD_KEEP_REPORTS", "0")

# A shell lets the jobs that it starts in the background ignore Ctrl-C, and nohup the end of the
# terminal; their children inherit that, and Horovod respects it. Tests of these signals are to run
# there, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# How long an example takes to make and to run depends on the neighbors of the machine.
if importlib.util.find_spec("hypothesis") is not None:
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("patient")

# These import TensorFlow at their top. `make test-python PYTEST=...` does without it.
_OF_TENSORFLOW = [
    "dist/test_keras*.py",
    "unit/keras/*.py",
    "unit/tensorflow/*.py",
    "unit/test_common.py",
    "unit/test_import_paths.py",
]
_HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None
collect_ignore_glob = [] if _HAS_TENSORFLOW else _OF_TENSORFLOW


def pytest_report_header() -> list[str]:
    """Says what is left out; that what a test skips itself for is in pytest's closing lines."""
    if _HAS_TENSORFLOW:
        return []
    return ["TensorFlow is not installed: its tests are left out (make dev installs it)"]
