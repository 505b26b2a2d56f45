"""`horovodrun experiment monitor` in a terminal, as JSON lines and for Prometheus."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from launcher import DEADLINE_S, environment, horovodrun, launched

RANK = f"{shlex.quote(sys.executable)} {Path(__file__).with_name('monitored_rank.py')}"
MONITOR = [sys.executable, "-m", "horovod.runner.cli", "experiment", "monitor", "-f", "job.yml"]
EXPECTED = "the others wait for rank 3 on localhost"
TMUX = ("tmux", "-L", "horovod-test-monitor")


def screen_of(command: list[str]) -> str:
    """What a terminal of 160 x 40 shows when a program has ended, or shows what is expected."""
    env = environment(TERM="xterm-256color")
    line = f"{shlex.join(command)}; echo it has ended; exec sleep 1000"
    subprocess.run([*TMUX, "new-session", "-d", "-x", "160", "-y", "40", line], env=env, check=True)
    try:
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            words = [*TMUX, "capture-pane", "-p"]
            shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            if EXPECTED in shown or "it has ended" in shown:
                return shown
            assert time.monotonic() < deadline_s, shown
            time.sleep(0.2)
    finally:
        subprocess.run([*TMUX, "kill-server"], check=False)


def metrics(url: str, token: str) -> str:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as response:
        return str(response.read().decode())


def test_eight_ranks_are_seen_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = {"project": "p", "train": {"horovod": {"workers": 8}, "run": RANK}}
    Path("job.yml").write_text(json.dumps(data))
    with launched("-f", "job.yml", "-H", "localhost:8") as job:
        while not Path("output/p/1/experiment.json").exists():
            assert job.process.poll() is None, job.stderr
            time.sleep(0.1)
        with launched("experiment", "monitor", "-f", "job.yml", "--json") as watching:
            deadline_s = time.monotonic() + DEADLINE_S
            while not (named := [line for line in watching.lines["stdout"] if EXPECTED in line]):
                assert time.monotonic() < deadline_s, (watching.lines, job.stderr)
                assert job.process.poll() is None, job.stderr
                time.sleep(0.1)
            seen = json.loads(named[0])
        ranks = seen["ranks"]
        assert [each["rank"] for each in ranks] == [*range(8)]
        assert all(each["memory"] > 10 << 20 for each in ranks)
        assert min(ranks, key=lambda each: each["waiting"])["rank"] == 3
        assert all(0 < each["collectives"] < 20 for each in ranks)

        with launched(
            "experiment", "monitor", "-f", "job.yml", "--prometheus", "0", "1"
        ) as serving:
            (line,) = serving.wait_lines("stdout", "http://127")
            url, token_file = line.split(",")[0], Path(line.split()[-1])
            assert token_file.stat().st_mode & 0o777 == 0o600
            text = metrics(url, token_file.read_text())
            assert text.count("horovod_rank_running{") == 8
            with pytest.raises(urllib.error.HTTPError, match="401"):
                metrics(url, "0" * 64)

        if shutil.which("tmux"):
            shown = screen_of(MONITOR)
            rows = [row for row in shown.splitlines() if "localhost" in row and "running" in row]
            assert len(rows) == 8, shown
            assert EXPECTED in shown
            assert "experiment 1: 0 of 1 run(s) done" in shown
            assert "has ended" not in shown

        Path("stop").touch()
        assert job.wait() == 0, job.stderr
    ended = horovodrun("experiment", "monitor", "-f", "job.yml")
    assert ended.lines["stdout"] == ["experiment 1: 1 of 1 run(s) done", "no rank runs now"]
