"""``horovodrun --check``: what is made of what the hosts tell, and how they are asked."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from horovod.runner.checks.check_hosts import check_hosts
from horovod.runner.checks.facts import Facts, collect_facts
from horovod.runner.checks.preflight import Finding, Link, examine_hosts
from horovod.runner.checks.preflight_report import (
    COLUMNS,
    advice_on_hosts,
    forecast_of,
    lines_of_advice,
    plain_table,
    rows_of,
    verdict,
)
from horovod.runner.checks.probe import targets_of
from horovod.runner.checks.run_on import HostError, launcher, run_on
from horovod.runner.placing.hosts import Host
from horovod.runner.starting.requests import Workload
from horovod.runner.starting.ssh import SshOptions

LINKS_S = 50.0

GOOD = Facts(
    hostname="n",
    python="3.11.7",
    executable="/usr/bin/python",
    horovod="1.0.0",
    frameworks={"PyTorch": "2.13.0"},
    kernels="avx2",
    cores=8,
    descriptors=4096,
    shared_memory_bytes=1 << 30,
)


def finding(host: str, facts: Facts | None = GOOD, **more: Any) -> Finding:
    return Finding(host, **{"slots": 2, "facts": facts, "address": "10.0.0.1", **more})


def told(*findings: Finding) -> list[str]:
    return lines_of_advice(advice_on_hosts(findings))


def test_equal_hosts_get_no_advice() -> None:
    findings = [finding("a"), finding("b", links=(Link("b", "a", 1e-5, 1e9),))]
    assert told(*findings) == []
    assert verdict(findings, []) == "2 hosts checked, no fault found"


def test_a_forecast_needs_the_speed_of_all_links() -> None:
    links = (Link("b", "a", 1e-5, 1.25e8),)
    findings = [finding("a", slots=4), finding("b", slots=4, links=links)]
    line = forecast_of(findings, Workload(0.4, 1e8))
    assert line.startswith("forecast: 2 hosts at 1.0 Gbit/s: a step takes ")
    assert forecast_of([*findings, finding("c")], Workload(0.4, 1e8)) == (
        "no forecast: the network of c could not be measured"
    )


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"horovod": "0.9"},
            "fault: c: Horovod is 0.9, elsewhere 1.0.0; install the same version",
        ),
        ({"python": "3.10.1"}, "fault: c: Python is 3.10.1, elsewhere 3.11.7; use the same"),
        ({"python": "3.11.9"}, "hint: c: Python is 3.11.9, elsewhere 3.11.7; use the same"),
        (
            {"frameworks": {"PyTorch": "2.12.0"}},
            "fault: c: PyTorch is 2.12.0, elsewhere 2.13.0; install the same version",
        ),
        ({"frameworks": {}}, "fault: c: PyTorch is missing, elsewhere 2.13.0; install the same"),
        (
            {"fault_of_engine": "no such file"},
            "fault: c: the engine cannot be loaded: no such file; install Horovod again",
        ),
        (
            {"fault_of_memfd": "No space left"},
            "fault: c: ranks cannot share memory (memfd): No space left; free or allow memory",
        ),
        (
            {"descriptors": 100},
            "fault: c: a process may open 100 files, and 6 ranks need about 146; raise the limit "
            "(ulimit -n 146)",
        ),
        ({"shared_memory_bytes": 64 << 20}, "hint: c: /dev/shm has 64 MiB free; data loaders"),
        ({"cores": 1}, "hint: c: 2 ranks share 1 core; give the host fewer slots"),
    ],
)
def test_a_host_that_differs_is_named(change: dict[str, Any], line: str) -> None:
    (said,) = told(finding("a"), finding("b"), finding("c", replace(GOOD, **change)))
    assert said.startswith(line)


def test_hosts_without_shared_memory_are_left_alone() -> None:
    assert told(finding("a", replace(GOOD, shared_memory_bytes=None))) == []


@pytest.mark.parametrize(
    ("clock_s", "line"),
    [
        (0.4, ""),
        (-0.4, ""),
        (None, ""),
        (2.0, "fault: a: its clock is 2.0 s ahead of this machine's; run chrony or ntpd"),
        (-61.0, "fault: a: its clock is 61.0 s behind this machine's; run chrony or ntpd"),
    ],
)
def test_clocks(clock_s: float | None, line: str) -> None:
    assert told(finding("a", clock_s=clock_s)) == ([line] if line else [])


def test_links() -> None:
    links = (Link("b", "a", 1e-4, 1e9), Link("b", "c", 1e-4, 1e9), Link("b", "d", 1e-4, 1e7))
    slow, blocked = told(
        finding("a"),
        finding("b", links=links),
        finding("c", links=(Link("c", "a", fault="no route"),)),
        finding("d"),
    )[::-1]
    assert blocked.startswith("fault: c: cannot reach a: no route; does a firewall")
    assert slow.startswith("hint: b: the network to d carries 80 Mbit/s, others 8.0 Gbit/s")


def test_a_host_that_is_gone_is_told_once() -> None:
    gone = finding("b", None, fault="no answer within 30 s")
    beside = finding("a", links=(Link("a", "b", fault="nobody came"),))
    assert told(beside, gone) == ["fault: b: no answer within 30 s"]
    assert verdict([beside, gone], advice_on_hosts([beside, gone])) == (
        "2 hosts checked, 1 with faults: b"
    )


def test_the_table_has_a_row_per_host() -> None:
    link = Link("b", "a", 2e-5, 1.25e9)
    rows = rows_of([finding("a", None, fault="x"), finding("b", clock_s=0.002, links=(link,))])
    assert all(len(row) == len(COLUMNS) for row in rows)
    lines = plain_table(rows).splitlines()
    assert lines[0].split() == list(COLUMNS)
    assert lines[1].split() == ["a", "no", "answer"]
    assert lines[2].endswith("avx2     10.0.0.1  +2 ms  10.0 Gbit/s and 20 µs to a")


@pytest.mark.parametrize("num_hosts", [1, 2, 3, 4, 7])
def test_neighbors_on_a_ring_meet_once(num_hosts: int) -> None:
    pairs = [
        (source, target) for source in range(num_hosts) for target in targets_of(source, num_hosts)
    ]
    assert all(target < source for source, target in pairs), "only lower ones listen"
    ring = (
        {frozenset((i, (i + 1) % num_hosts)) for i in range(num_hosts)} if num_hosts > 1 else set()
    )
    assert {frozenset(pair) for pair in pairs} == ring
    assert len(pairs) == len(ring)


# -- asking

START = launcher(dict(os.environ), SshOptions())


def script(text: str) -> Any:
    def start(module: str) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            ["sh", "-c", text], stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )

    return start


def test_an_answer_among_the_words_of_a_login_script() -> None:
    start = script("read question; echo Welcome!; echo 'horovod-answer: {\"a\": 1}'; echo bye")
    assert run_on(start, "m", {}, 30) == {"a": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo Permission denied >&2; exit 255", "ended with code 255 .*: Permission denied"),
        ("echo hello", "ended with code 0 and gave no answer"),
        ("echo 'horovod-answer: {'", "gave no answer"),
        ("echo 'horovod-answer: 3'", "gave no answer"),
    ],
)
def test_a_host_that_says_something_else(text: str, message: str) -> None:
    with pytest.raises(HostError, match=message):
        run_on(script(text), "m", {}, 30)


def test_a_host_that_says_nothing_is_given_up_with_all_its_processes() -> None:
    began_s = time.monotonic()
    with pytest.raises(HostError, match=r"no answer within 0.3 s"):
        run_on(script("sleep 1000 & sleep 1000"), "m", {}, 0.3)
    assert time.monotonic() - began_s < 60


def test_no_ssh_here() -> None:
    def start(module: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["/nowhere/ssh"])

    with pytest.raises(HostError, match="cannot start m: No such file"):
        run_on(start, "m", {}, 30)


def test_this_machine_knows_itself() -> None:
    facts = collect_facts()
    assert Facts(**facts.to_dict()) == facts
    assert facts.executable == sys.executable
    assert facts.kernels
    assert not facts.fault_of_engine
    assert not facts.fault_of_memfd


def test_emulated_hosts_answer_and_measure_each_other() -> None:
    hosts = [Host("localhost", 1), Host("127.0.0.1", 1), Host("127.0.0.2", 1)]
    findings = examine_hosts(hosts, START, 60)
    assert [each.host for each in findings] == ["localhost", "127.0.0.1", "127.0.0.2"]
    assert [each.fault for each in findings] == ["", "", ""]
    links = [(link.source, link.target) for each in findings for link in each.links]
    assert links == [
        ("127.0.0.1", "localhost"),
        ("127.0.0.2", "127.0.0.1"),
        ("127.0.0.2", "localhost"),
    ]
    for each in findings:
        assert each.facts is not None
        assert each.clock_s is not None
        assert abs(each.clock_s) < 5
        assert all(link.bytes_per_s > 0 or link.fault for link in each.links)


def test_a_host_that_cannot_reach_the_launcher_says_so() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        question = {
            "index": 0,
            "num_hosts": 1,
            "endpoints": [taken.getsockname()],
            "secret": "00" * 32,
            "links_s": 60,
        }
        start = partial(START, Host("localhost", 1), False)
        report = run_on(start, "horovod.runner.checks.probe", question, 60)
    assert report["fault"].startswith("cannot reach the launcher at 127.0.0.1; does a firewall")
    assert os.path.samefile(report["facts"]["executable"], sys.executable)


def test_a_neighbor_that_is_stuck_costs_only_the_time_for_links() -> None:
    def start(host: Host, is_remote: bool, module: str) -> subprocess.Popen[bytes]:
        return script("sleep 1000")(module) if host.name == "localhost" else START(host, *rest)

    rest = (False, "horovod.runner.checks.probe")
    hosts = [Host("localhost", 1), Host("127.0.0.9", 1)]
    stuck, waited = examine_hosts(hosts, start, 10, links_s=0.5)
    assert "no answer within 10 s" in stuck.fault
    assert [link.fault for link in waited.links] == ["it did not appear in time"]


def test_the_exit_code_tells_of_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    patient = partial(examine_hosts, links_s=LINKS_S)
    monkeypatch.setattr("horovod.runner.checks.check_hosts.examine_hosts", patient)
    out = io.StringIO()
    there = START

    def start(host: Host, is_remote: bool, module: str) -> subprocess.Popen[bytes]:
        return script("exit 9")(module) if host.name == "127.0.0.9" else there(host, False, module)

    hosts = [Host("localhost", 1), Host("127.0.0.9", 1)]
    began_s = time.monotonic()
    assert check_hosts(hosts, start, 60, out) == 1
    assert time.monotonic() - began_s < LINKS_S  # nobody waits for the one that has ended
    assert "fault: 127.0.0.9: it ended with code 9 and gave no answer" in out.getvalue()
    assert out.getvalue().splitlines()[-1].startswith("2 hosts checked, ")


def test_nobody_waits_for_neighbors_that_have_ended() -> None:
    def start(host: Host, is_remote: bool, module: str) -> subprocess.Popen[bytes]:
        gone = host.name != "127.0.0.1"
        return script("exit 9")(module) if gone else START(host, False, module)

    began_s = time.monotonic()
    hosts = [Host(name, 1) for name in ("localhost", "127.0.0.1", "127.0.0.2")]
    first, second, third = examine_hosts(hosts, start, 60, links_s=LINKS_S)
    assert time.monotonic() - began_s < LINKS_S
    assert first.fault == third.fault == "it ended with code 9 and gave no answer"
    assert [(link.target, link.fault) for link in second.links] == [("localhost", "it has ended")]


def test_a_terminal_gets_a_table_with_lines() -> None:
    pytest.importorskip("rich")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    assert check_hosts([Host("localhost", 1)], START, 60, out) == 0
    assert "│" in out.getvalue()
    assert out.getvalue().endswith("1 host checked, no fault found\n")
