"""Hosts that come and go, and what libraries ask of lists of hosts."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from horovod.errors import StartError, UsageError
from horovod.runner.common.util.hosts import (
    HostInfo,
    SlotInfo,
    get_host_assignments,
    parse_host_files,
    parse_hosts,
)
from horovod.runner.elastic.discovery import FixedHosts, HostDiscovery, HostDiscoveryScript


def found(command: str, slots: int | None = None) -> dict[str, int]:
    return HostDiscoveryScript(command, slots).find_available_hosts_and_slots()


def test_a_script_prints_hosts(tmp_path: Path) -> None:
    script = tmp_path / "hosts.sh"
    script.write_text("echo \"$1\"-0:2\n\nprintf '  worker-1:4  \\n'\n")
    assert found(f"sh {script} worker") == {"worker-0": 2, "worker-1": 4}
    assert found("echo a; echo b:3", slots=2) == {"a": 2, "b": 3}
    assert found("echo '[fe80::1]:2'") == {"fe80::1": 2}
    assert found("echo a:0; echo b:1") == {"a": 0, "b": 1}
    assert found("true") == {}


def test_a_line_without_slots_needs_a_default() -> None:
    with pytest.raises(UsageError, match=r"line 2 of the host discovery script .*'b' gives no num"):
        found("echo a:1; echo b")


@pytest.mark.parametrize("line", ["a:b", "a b", "a:1,b:2", "a:-1"])
def test_a_line_that_cannot_be_read_is_quoted(line: str) -> None:
    with pytest.raises(UsageError, match=f"line 1 of the host discovery script .*{line}"):
        found(f"echo '{line}'")


def test_a_script_that_fails_or_hangs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"'exit 3' failed with exit code 3"):
        found("exit 3")
    started = tmp_path / "pid"
    hanging = HostDiscoveryScript(f"sleep 100 & echo $! > {started}; wait", None, timeout_s=2.0)
    with pytest.raises(StartError, match="did not end within 2 s"):
        hanging.find_available_hosts_and_slots()
    # What it had started has gone as well.
    deadline = time.monotonic() + 30
    while runs(int(started.read_text())):
        assert time.monotonic() < deadline


def runs(pid: int) -> bool:
    """Whether a process is there and no zombie that nobody has buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return os.path.exists(f"/proc/{pid}")


def test_fixed_hosts_can_be_told_anew() -> None:
    given = {"a": 1}
    hosts = FixedHosts(given)
    first = hosts.find_available_hosts_and_slots()
    given["a"] = 9
    first["b"] = 9
    assert hosts.find_available_hosts_and_slots() == {"a": 1}
    hosts.set({"a": 1, "b": 2})
    assert hosts.find_available_hosts_and_slots() == {"a": 1, "b": 2}
    with pytest.raises(NotImplementedError):
        HostDiscovery().find_available_hosts_and_slots()


def test_hosts_are_read_and_filled_as_libraries_expect() -> None:
    hosts = parse_hosts("worker-0:1,worker-1:2")
    assert [(host.hostname, host.slots) for host in hosts] == [("worker-0", 1), ("worker-1", 2)]
    assert HostInfo("worker-0", 1) == hosts[0]
    slots = get_host_assignments(hosts, 1)
    assert [(slot.hostname, slot.rank, slot.local_rank) for slot in slots] == [
        ("worker-0", 0, 0),
        ("worker-1", 1, 0),
        ("worker-1", 2, 1),
    ]
    last = slots[2]
    assert isinstance(last, SlotInfo)
    assert (last.size, last.local_size, last.cross_rank, last.cross_size) == (3, 2, 0, 1)


def test_assignments_have_a_least_and_a_most_number_of_ranks() -> None:
    hosts = parse_hosts("a:2,b:2")
    assert [slot.hostname for slot in get_host_assignments(hosts, 1, 2)] == ["a", "a"]
    assert len(get_host_assignments(hosts, 1, 9)) == 4
    with pytest.raises(ValueError, match="5 ranks were requested, but only 4 slots"):
        get_host_assignments(hosts, 5)


def test_a_hostfile_becomes_a_list(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# two\nhost1 slots=1\nme@host2 slots=2\n[fe80::1] slots=3\n")
    listed = parse_host_files(str(file))
    assert listed == "host1:1,me@host2:2,[fe80::1]:3"
    assert [host.slots for host in parse_hosts(listed)] == [1, 2, 3]
