"""Which workers are silent although others are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horovod.runner.supervision.silence import Silence

if TYPE_CHECKING:
    from collections.abc import Iterable

TIMEOUT_S = 20.0  # so workers tell every 4 s


def told(silence: Silence, times: Iterable[float], **stops_s: float) -> dict[str, float]:
    """Who is silent, and when that was told; each worker tells until it stops."""
    found = {}
    for now_s in times:
        values = {
            name: None if stop_s < 0 else b"%d" % int(min(now_s, stop_s) / 4)
            for name, stop_s in stops_s.items()
        }
        found.update(dict.fromkeys(silence.look(now_s, values), now_s))
    return found


def test_who_says_nothing_is_told_once_while_others_live() -> None:
    assert told(Silence(TIMEOUT_S), range(0, 100, 4), a=99, b=41, c=99) == {"b": 60}


def test_a_worker_that_never_told_anything_is_silent_as_well() -> None:
    assert told(Silence(TIMEOUT_S), range(0, 40, 4), a=99, b=-1) == {"b": 20}


def test_while_all_are_silent_nobody_is() -> None:
    """A batch system may stop the workers of a job for the night."""
    silence = Silence(TIMEOUT_S)
    assert not told(silence, range(0, 500, 4), a=41, b=43, c=39)
    # When they go on, nobody is taken for silent who is not.
    assert not told(silence, range(500, 600, 4), a=999, b=999, c=999)


def test_who_stays_silent_when_the_others_go_on_is_told() -> None:
    silence = Silence(TIMEOUT_S)
    assert not told(silence, range(0, 500, 4), a=41, b=43)
    # It has some time to follow.
    assert told(silence, range(500, 600, 4), a=999, b=43) == {"b": 508}


def test_a_pause_of_the_launcher_is_no_silence_of_the_workers() -> None:
    silence = Silence(TIMEOUT_S)
    assert not told(silence, range(0, 40, 4), a=999, b=30)
    # The values of a look after an hour are as old as those before it.
    assert not told(silence, [3600.0], a=999, b=30)
    assert told(silence, range(3604, 3640, 4), a=9999, b=30) == {"b": 3612}


def test_a_new_member_begins_anew() -> None:
    silence = Silence(TIMEOUT_S)
    assert not told(silence, range(0, 400, 4), a=999)
    assert not told(silence, range(400, 416, 4), a=999, b=-1)
