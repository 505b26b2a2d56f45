"""When a job starts on its hosts, where they reach the store, and who is named if not."""

from __future__ import annotations

import pytest

from horovod.runner.supervision.readiness import Readiness

ENDPOINTS = (("10.0.0.1", 1001), ("192.168.0.1", 1002), ("172.17.0.1", 1003))


def reported(*reports: tuple[str, str, int | str], endpoints: int = 3) -> Readiness:
    """Two hosts, a and b, of which both are up unless it says otherwise."""
    readiness = Readiness.of(("a", "b"), ENDPOINTS[:endpoints])
    for host, what, value in reports:
        match what:
            case "up":
                readiness = readiness.find(host)
            case "reaches":
                assert isinstance(value, int)
                readiness = readiness.reach(host, ENDPOINTS[value])
            case "tried":
                readiness = readiness.give_up(host)
            case "failed":
                readiness = readiness.fail(host, str(value))
    return readiness


UP = (("a", "up", 0), ("b", "up", 0))
TRIED = (("a", "tried", 0), ("b", "tried", 0))


@pytest.mark.parametrize(
    ("endpoints", "reports", "starts", "choice"),
    [
        (0, UP[:1], False, None),
        (0, UP, True, None),
        (3, UP, False, None),
        (3, (*UP, ("a", "reaches", 2), ("a", "reaches", 1)), False, None),
        (3, (*UP, ("a", "reaches", 2), ("a", "reaches", 1), ("b", "reaches", 1)), True, 1),
        (3, (*UP, ("a", "reaches", 2), ("b", "reaches", 2), *TRIED), True, 2),
        (3, (UP[0], ("a", "reaches", 0), ("b", "reaches", 0)), False, 0),
    ],
)
def test_the_best_address_that_all_hosts_reached_is_chosen(
    endpoints: int, reports: tuple[tuple[str, str, int]], starts: bool, choice: int | None
) -> None:
    readiness = reported(*reports, endpoints=endpoints)
    assert readiness.is_complete == starts
    assert readiness.choice == (None if choice is None else ENDPOINTS[choice])
    assert readiness.failure() == ""


@pytest.mark.parametrize(
    ("reports", "failure"),
    [
        ((*UP, ("a", "reaches", 0), ("b", "tried", 0)), ""),  # a is still trying
        (
            (*UP, ("a", "reaches", 0), *TRIED),
            "no address of this machine can be reached from b: tried 10.0.0.1, 192.168.0.1",
        ),
        (
            (*UP, ("a", "reaches", 0), ("b", "reaches", 2), ("b", "reaches", 1), *TRIED),
            "no address of this machine can be reached from all hosts: a reached 10.0.0.1; "
            "b reached 192.168.0.1, 172.17.0.1; name an interface that all share",
        ),
        ((UP[0], ("a", "failed", "gone")), ""),  # b has not said anything
        ((UP[1], ("a", "failed", "gone")), ""),  # b is still trying
        (
            (UP[1], ("a", "failed", "no"), ("a", "failed", "gone"), TRIED[1]),
            "cannot start on host a: no",
        ),
        (
            (("b", "failed", "late"), ("a", "failed", "refused")),
            "cannot start on 2 hosts:\n    b: late\n    a: refused",
        ),
    ],
)
def test_hosts_are_named_when_all_have_answered(
    reports: tuple[tuple[str, str, int | str]], failure: str
) -> None:
    found = reported(*reports).failure()
    assert found.startswith(failure) if failure else not found


def test_nobody_is_waited_for_when_the_time_is_over() -> None:
    assert reported(UP[1], ("a", "failed", "refused")).failure("late").endswith("host a: refused")
    assert reported(*UP).failure("within 3 s") == (
        "the hosts could not reach this machine within 3 s"
    )


def test_reports_leave_earlier_states_alone() -> None:
    before = reported()
    assert before.find("a") != before == reported()
