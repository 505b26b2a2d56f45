"""What actors do is shown where the job's store is."""

from __future__ import annotations

import re
import threading
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.ray.ray_ranks import dawdle
from tests.ray.ray_waits import START_S, wait_until

from horovod.errors import StartError
from horovod.ray import RayExecutor

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.usefixtures("nothing_is_left")

ADDRESS = r"horovod: metrics: (http\S+/metrics);"
VERDICT = r'job_verdict{.*kind="rank",rank="1",phase="compute"} 0\.[5-9]'


class Printed:
    """What a test has printed on stderr."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture
        self.text = ""

    def find(self, pattern: str) -> re.Match[str] | None:
        self.text += self._capture.readouterr().err
        return re.search(pattern, self.text)


def metrics(url: str, home: Path) -> str:
    token = (home / ".horovod" / "metrics.token").read_text()
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize("size", [{"num_workers": 2}, {"min_workers": 2, "max_workers": 2}])
def test_metrics_name_the_slow_rank(
    cluster: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    size: Mapping[str, int],
) -> None:
    monkeypatch.setenv("HOROVOD_METRICS_PORT", "0")
    printed = Printed(capfd)
    stop = tmp_path / "stop"
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=START_S), **size)
    executor.start()
    results: list[int] = []

    def run() -> None:
        results.extend(executor.run(dawdle, [str(stop)]))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: printed.find(ADDRESS) is not None)
        found = printed.find(ADDRESS)
        assert found is not None
        url = found[1]
        wait_until(lambda: re.search(VERDICT, metrics(url, Path.home())) is not None)
    finally:
        stop.touch()
        thread.join(60)
        executor.shutdown()
    assert sorted(results) == [0, 1]


def test_a_port_that_makes_no_sense_is_refused_before_ranks_start() -> None:
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=START_S), num_workers=1)
    with pytest.raises(StartError, match="HOROVOD_METRICS_PORT"):
        executor.start(extra_env_vars={"HOROVOD_METRICS_PORT": "70000"})
