"""Elastic jobs on two hosts that are reached through a real sshd: what the loss of a host does."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cluster import Cluster
from ssh_hosts import SshHosts, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator

    from launcher import Launcher

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

WORKER = str(Path(__file__).with_name("driven_worker.py"))
WORDS = ("-np", "4", "--min-np", "2", "-H", "host0:2,host1:2")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with Cluster(2) as cluster, SshHosts(cluster, tmp_path_factory.mktemp("ssh")) as ssh_hosts:
        yield ssh_hosts


def trains(launcher: Launcher, size: int) -> dict[int, int]:
    lines = launcher.wait_lines("stdout", rf"rank \d+ of {size} is", size)
    found = [re.search(r"rank (\d+) of \d+ is (\d+) at", line) for line in lines]
    return {int(each[1]): int(each[2]) for each in found if each}


@pytest.mark.parametrize("lost", ["a worker", "the host", "its network"])
def test_the_other_host_trains_on(hosts: SshHosts, tmp_path: Path, lost: str) -> None:
    end = tmp_path / "end"
    command = (sys.executable, WORKER, str(end))
    with hosts.launched(*WORDS, *command, env={"HOROVOD_START_TIMEOUT": "90"}) as launcher:
        pids = trains(launcher, 4)
        if lost == "a worker":
            os.kill(pids[3], signal.SIGKILL)
        elif lost == "the host":
            for process in hosts.processes(1):
                process.kill()
        else:
            hosts.cluster.cut(1)
        # Fixed hosts: one that loses a worker is given up as a whole.
        assert trains(launcher, 2) == {0: pids[0], 1: pids[1]}
        end.touch()
        assert launcher.wait() == 0, launcher.lines
    hosts.assert_nothing_runs(30.0)
    hosts.cluster.mend(1)
