"""How the driver lets users watch a job; its environment is not that of the ranks."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from horovod.errors import StartError
from horovod.spark.running import launch_options


def test_the_driver_serves_what_its_environment_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_METRICS_PORT", "9400")
    monkeypatch.setenv("HOROVOD_WATCH", "1")
    watching = launch_options(1, timestamps=False, timeout_s=5.0).watching
    assert (watching.metrics, watching.verdicts, watching.dashboard) == (9400, True, None)
    monkeypatch.setenv("HOROVOD_METRICS_PORT", "x")
    with pytest.raises(StartError, match="HOROVOD_METRICS_PORT"):
        launch_options(1, timestamps=False, timeout_s=5.0)
