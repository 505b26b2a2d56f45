"""What a peer says is bounded before anything depends on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from horovod._job.membership import Worker
from horovod._job.records import Event, EventKind
from horovod._rendezvous.bounds import name_in, number_in, one_line, seconds_in
from horovod._rendezvous.roster import RankInfo, host_key
from horovod._rendezvous.waits import Waits
from horovod.errors import StartError


@pytest.mark.parametrize("value", [10**12, -1, "1" * 5000, b"9" * 25, "x", 1.0, True, None, [1]])
def test_numbers_out_of_bounds_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        number_in(value, 0, 4096)


@pytest.mark.parametrize("value", [7, "7", b"7"])
def test_numbers_within_are_taken(value: object) -> None:
    assert number_in(value, 0, 7) == 7


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, 11, 10**400, "1", None, True])
def test_times_out_of_bounds_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="not a time"):
        seconds_in(value, 10.0)


@pytest.mark.parametrize("value", ["a\nb", "a b", "a" * 513, "\x1b[2J", 3, None])
def test_names_that_would_spoil_a_line_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="name"):
        name_in(value)


def test_any_text_becomes_one_line() -> None:
    text = "it failed:\n    no route\r\nto \x1b[2Jhost"
    assert one_line(text) == "it failed: no route to [2Jhost"
    assert len(one_line("x" * 10_000_000)) == 500


INFO = RankInfo(1, 2, "host", 4711, "key", "1.0", "127.0.0.1", 80, "horovod-x", 2, 0)


@pytest.mark.parametrize(
    "fields",
    [{"num_streams": 10**12}, {"tcp_port": 70_000}, {"host": "a\nb"}, {"version": "1" * 10_000}],
)
def test_a_rank_that_publishes_absurd_things_is_refused(fields: dict[str, int | str]) -> None:
    assert RankInfo.from_json(INFO.to_json()) == INFO
    with pytest.raises(StartError, match="a rank published") as caught:
        RankInfo.from_json(replace(INFO, **fields).to_json())  # type: ignore[arg-type]
    assert len(str(caught.value)) < 500


def test_the_longest_name_of_a_host_is_taken() -> None:
    host = ".".join(["h" * 63] * 3 + ["h" * 61])
    info = replace(INFO, host=host, host_key=host_key(host))
    assert RankInfo.from_json(info.to_json()) == info
    event = Event(EventKind.READY, Worker(f"{host}-123456", host))
    assert Event.from_json(event.to_json()) == event


@pytest.mark.parametrize("text", [b"[NaN, 1, 1]", b"[1, Infinity, 1]", b"[1, 1, -1]"])
def test_waits_out_of_bounds_are_refused(text: bytes) -> None:
    with pytest.raises(StartError, match="malformed waits"):
        Waits.from_json(text)
