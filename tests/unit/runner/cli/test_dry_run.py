from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from horovod.runner.cli.command import main

if TYPE_CHECKING:
    from pathlib import Path


def dry_run(line: str, capsys: pytest.CaptureFixture[str], **environ: str) -> list[str]:
    assert main([*line.split(), "--dry-run", "python", "train.py", "a b"], environ) == 0
    return capsys.readouterr().out.splitlines()


def test_it_tells_what_would_run_on_each_host(capsys: pytest.CaptureFixture[str]) -> None:
    lines = dry_run("-np 3 -H a:2,b:1 --cache-capacity 5", capsys, PATH="/bin")
    assert lines[0] == "3 ranks on 2 hosts"
    assert [line for line in lines if line.startswith("host ")] == ["host a", "host b"]
    assert lines.count("  command    python train.py 'a b'") == 2
    assert lines.count("  variable   HOROVOD_CACHE_CAPACITY=5") == 2
    assert lines.count("  and 1 other variable of this environment") == 2
    ranks = [line.split() for line in lines if line.startswith("  rank ")]
    assert [(words[1], "HOROVOD_HOSTNAME=b" in words) for words in ranks] == [
        ("0", False),
        ("1", False),
        ("2", True),
    ]


def test_other_hosts_get_what_they_will_get(capsys: pytest.CaptureFixture[str]) -> None:
    lines = dry_run("-np 3 -H localhost:1,b:2", capsys, HOME="/me", OMP_NUM_THREADS="3")
    here, there = lines[: lines.index("host b")], lines[lines.index("host b") :]
    leads = "<of the host: what leads to the others>"
    for block in (here, there):
        assert f"  variable   HOROVOD_GLOO_IFACE={leads}" in block
        assert f"  variable   NCCL_SOCKET_IFNAME={leads}" in block
    assert not [line for line in lines if line.endswith("=lo")]
    assert not [line for line in here if "TF_NUM_" in line]  # one rank has the host for itself
    assert "  variable   TF_NUM_INTRAOP_THREADS=<its cores / 2 ranks>" in there
    assert not [line for line in lines if "OMP_NUM_THREADS" in line]  # the user's own
    assert "  and 2 other variables of this environment" in here
    assert "  and 1 other variable of this environment" in there  # HOME is that of b


def test_one_host_talks_over_loopback_and_divides_its_cores(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horovod.runner.cli.dry_run.computing_cores", lambda: 6)
    lines = dry_run("-np 2", capsys)
    assert "  variable   HOROVOD_GLOO_IFACE=lo" in lines
    assert "  variable   OMP_NUM_THREADS=3" in lines


def test_a_choice_of_interfaces_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    lines = dry_run("-np 2 -H a:1,b:1 --network-interfaces eth1", capsys)
    assert lines.count("  variable   HOROVOD_GLOO_IFACE=<what the host has of eth1>") == 2


def test_no_host_is_looked_up_and_nothing_is_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.getaddrinfo", None)
    monkeypatch.setattr("subprocess.Popen", None)
    assert "1 rank on 1 host" in dry_run("-np 1 -H nowhere.invalid:1", capsys)


@pytest.mark.parametrize(
    "name", ["_HOROVOD_SECRET_KEY", "HOROVOD_MY_TOKEN", "AWS_KEY", "MINE", "NCCL_PASSWORD"]
)
def test_nothing_confidential_is_shown(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = "\n".join(dry_run("-np 1", capsys, **{name: "hunter2"}))
    assert "hunter2" not in text
    if name in ("HOROVOD_MY_TOKEN", "NCCL_PASSWORD"):
        assert f"{name}=<not shown>" in text


def test_a_command_can_be_copied_from_it(capsys: pytest.CaptureFixture[str]) -> None:
    (variable,) = [
        line for line in dry_run("-np 1 --timeline-filename=x;y", capsys) if "TIMELINE" in line
    ]
    assert variable.endswith("HOROVOD_TIMELINE='x;y'")


def test_faults_are_found_in_a_dry_run_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-np", "3", "-H", "a:2", "--dry-run", "x"], {}) == 2
    assert re.search(r"3 ranks were requested, but only 2 slots", capsys.readouterr().err)
