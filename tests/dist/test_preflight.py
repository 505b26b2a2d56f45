"""``horovodrun --check`` on hosts that are network namespaces with an sshd."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from cluster import Cluster
from ssh_hosts import SshHosts, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with Cluster(2) as cluster, SshHosts(cluster, tmp_path_factory.mktemp("ssh")) as ssh_hosts:
        yield ssh_hosts


def test_hosts_are_reached_and_measured(hosts: SshHosts) -> None:
    job = hosts.horovodrun("--check", "-H", "host0:1,host1:1")
    assert job.process.returncode == 0, (job.lines, job.stderr)
    assert job.lines["stdout"][-1] == "2 hosts checked, no fault found"
    title, first, second = job.lines["stdout"][:3]
    address = title.index("address")
    assert first[address:].startswith("10.77.0.1 ")
    assert second[address:].startswith("10.77.0.2 ")
    assert re.search(r"[\d.]+ [GM]bit/s and \d+ µs to host0$", second)
    hosts.assert_nothing_runs(10.0)


def test_a_host_without_a_name_costs_one_line(hosts: SshHosts) -> None:
    job = hosts.horovodrun("--check", "-H", "host0:1,host9:1")
    assert job.process.returncode == 1
    assert [line for line in job.lines["stdout"] if line.startswith("fault: host9: ")]
    assert job.lines["stdout"][-1] == "2 hosts checked, 1 with faults: host9"
    hosts.assert_nothing_runs(10.0)
