"""When a job goes on, and which hosts are named when it does not."""

from __future__ import annotations

import horovod
from horovod.runner.supervision.connect_back import ConnectBack
from horovod.runner.supervision.host_readiness import Decision, HostReadiness

ENDPOINT = ("10.0.0.1", 1)


def test_all_hosts_must_be_ready() -> None:
    gathering = HostReadiness(["a", "b"], None)
    gathering.on_ready("a", horovod.__version__)
    assert gathering.decide() == Decision()
    gathering.on_ready("b", "")
    assert gathering.decide() == Decision(go=True)


def test_all_hosts_must_reach_the_store() -> None:
    ways = ConnectBack([ENDPOINT], ["a", "b"])
    gathering = HostReadiness(["a", "b"], ways)
    for host in ("a", "b"):
        gathering.on_ready(host, "")
    ways.reached("a", 0)
    assert gathering.decide() == Decision()
    ways.reached("b", 0)
    assert gathering.decide() == Decision(go=True, endpoint=ENDPOINT)


def test_all_hosts_that_failed_are_named_when_all_have_answered() -> None:
    ways = ConnectBack([ENDPOINT], ["a", "b", "c", "d"])
    gathering = HostReadiness(["a", "b", "c", "d"], ways)
    gathering.on_failed("a", "refused")
    gathering.on_failed("a", "gone")
    gathering.on_ready("b", "0.1")
    assert gathering.decide() == Decision()  # c and d have not said anything
    gathering.on_ready("c", "")
    gathering.on_ready("d", "")
    ways.reached("c", 0)
    assert gathering.decide() == Decision()  # d is still trying
    ways.gave_up("d")
    failure = gathering.decide().failure
    assert failure.startswith("cannot start on 2 hosts:\n    a: refused\n    b: it has Horovod 0.1")


def test_one_host_that_failed_costs_one_line() -> None:
    gathering = HostReadiness(["a"], None)
    gathering.on_failed("a", "refused")
    assert gathering.decide().failure == "cannot start on host a: refused"


def test_hosts_that_are_late_are_named_with_what_they_wrote() -> None:
    gathering = HostReadiness(["a", "b"], None)
    gathering.on_ready("a", "")
    failure = gathering.give_up(3.0, lambda host: f" [{host} wrote]")
    assert failure.startswith("cannot start on host b: no agent came up there within 3 s")
    assert failure.endswith(" [b wrote]")
    ways = ConnectBack([ENDPOINT], ["a"])
    gathering = HostReadiness(["a"], ways)
    gathering.on_ready("a", "")
    failure = gathering.give_up(3.0, lambda host: "")
    assert failure.startswith("the hosts did not find a way to this machine within 3 s")
