"""What nodes without a common launcher agree on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from horovod._rendezvous import StoreServer
from horovod._settings.config import Config
from horovod.errors import StartError, UsageError
from horovod.runner.cli.command import main
from horovod.runner.placing.plan import JobSettings
from horovod.runner.starting import nodes
from horovod.runner.starting.nodes import _Nodes, node_names, place_ranks
from horovod.runner.starting.requests import LaunchOptions, NodeRequest
from horovod.runner.supervision.failure import RankExit
from horovod.runner.supervision.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future


def infos(*hosts: tuple[str, int], **more: Any) -> list[dict[str, Any]]:
    total = sum(slots for _, slots in hosts)
    return [
        {"host": host, "slots": slots, "num_proc": total, "version": "1", **more}
        for host, slots in hosts
    ]


def test_all_nodes_compute_the_same_places() -> None:
    slots = place_ranks(infos(("a", 1), ("b", 2)))
    assert [(s.rank, s.size, s.hostname, s.local_rank, s.cross_rank) for s in slots] == [
        (0, 3, "a", 0, 0),
        (1, 3, "b", 0, 1),
        (2, 3, "b", 1, 0),
    ]


def test_hosts_of_the_same_name_are_told_apart() -> None:
    assert node_names(infos(("a", 1), ("b", 1), ("a", 1))) == ["a#0", "b", "a#2"]
    assert len(place_ranks(infos(("a", 2), ("a", 2)))) == 4


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_proc": 9}, r"disagree on -np: node 0 \(a\) has 2, node 1 \(b\) has 9"),
        ({"version": "2"}, r"disagree on Horovod's version: .* has 1, node 1 \(b\) has 2"),
        ({"slots": 3}, r"-np is 2, but the nodes take 4 ranks: a:1, b:3"),
    ],
)
def test_nodes_that_do_not_fit_together(changed: dict[str, Any], message: str) -> None:
    told = infos(("a", 1), ("b", 1))
    told[1].update(changed)
    with pytest.raises(StartError, match=message):
        place_ranks(told)


def node(node_rank: int, num_nodes: int, num_proc: int, slots: int | None = None) -> NodeRequest:
    settings = JobSettings(("x",), "/", {})
    return NodeRequest(settings, LaunchOptions(), node_rank, num_nodes, "a:1", num_proc, slots)


def test_a_node_takes_its_share() -> None:
    assert node(1, 2, 4).share == 2
    assert node(1, 2, 5, slots=3).share == 3
    with pytest.raises(UsageError, match="-np 5 cannot be shared equally by 2 nodes"):
        node(0, 2, 5)
    for node_rank, num_nodes in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(UsageError, match="is not below --num-nodes"):
            node(node_rank, num_nodes, 4)


NODE = "--num-nodes 2 --node-rank 0 --rendezvous a:1"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--node-rank 0 -np 2 x", "go together: give all three"),
        (f"{NODE} x", "-np is missing"),
        (f"{NODE} -np 2 x", "needs a secret that all nodes"),
        (f"{NODE} -np 2 -H a:1,b:1 x", "name only this host"),
        (f"{NODE} -np 2 --dry-run x", "not for one node of several (--node-rank)"),
        (f"{NODE} -np 2 --min-np 1 x", "it is for elastic jobs"),
        (f"{NODE} -np 2 --max-np 3 x", "it is for elastic jobs"),
    ],
)
def test_lines_that_lack_something(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split(), {}) == 2
    assert message in capsys.readouterr().err


def test_a_rendezvous_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    line = "--num-nodes 2 --node-rank 0 --rendezvous nowhere -np 2 x"
    assert main(line.split(), {"HOROVOD_SECRET_KEY": "0f" * 32}) == 1
    assert "'nowhere' is not host:port" in capsys.readouterr().err


class Meeting:
    """Two nodes at one store, each of which tells in a thread how its ranks ended."""

    def __init__(self, stack: ExitStack) -> None:
        key = "0f" * 32
        self.store = stack.enter_context(StoreServer(bytes.fromhex(key)))
        self._pool = stack.enter_context(ThreadPoolExecutor())
        config = replace(
            Config.from_env({"HOROVOD_SECRET_KEY": key}),
            rendezvous_addr=self.store.address,
            rendezvous_port=self.store.port,
        )
        self._nodes = [_Nodes(node(index, 2, 2), config) for index in range(2)]
        for each in self._nodes:
            stack.callback(each.close)

    def finish(self, index: int, outcome: Outcome) -> Future[Outcome]:
        return self._pool.submit(self._nodes[index].finish, outcome)


def follow_up(rank: int) -> Outcome:
    words = ("PeerLostError: a rank was lost",)
    return Outcome(1, f"rank {rank} failed", RankExit(rank, "a", 1, 0.0, stderr_tail=words))


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Meeting]:
    monkeypatch.setattr(nodes, "_FOLLOW_UP_S", 200.0)
    with ExitStack() as stack:
        yield Meeting(stack)


def test_a_node_that_follows_waits_for_the_first_failure(meeting: Meeting) -> None:
    told = meeting.finish(1, follow_up(1))
    meeting.store.get("nodes/blameless/1", 60.0)
    assert not told.done()
    assert meeting.finish(0, Outcome(3, "rank 0 failed")).result(60.0).exit_code == 3
    assert told.result(60.0).exit_code == 3
    assert "rank 0 failed" in told.result().message


@pytest.mark.parametrize("other", [Outcome(0), follow_up(0)])
def test_a_node_that_follows_waits_no_longer_than_for_all(meeting: Meeting, other: Outcome) -> None:
    ends = [meeting.finish(1, follow_up(1)), meeting.finish(0, other)]
    outcomes = [end.result(60.0) for end in ends]
    assert [outcome.exit_code for outcome in outcomes] == [1, other.exit_code]


def test_a_node_that_follows_does_not_wait_forever(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "_FOLLOW_UP_S", 0.1)
    outcome = meeting.finish(1, follow_up(1)).result(60.0)
    assert (outcome.exit_code, outcome.message) == (1, "rank 1 failed")
