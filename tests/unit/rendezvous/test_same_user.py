"""A text for the processes of one user on one host."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from horovod._rendezvous import local, same_user
from horovod._rendezvous.local import connect_unix, make_unix_name
from horovod._rendezvous.same_user import SameUserDoor, ask_same_user, await_same_user
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterator

WHAT = "the job of 3 ranks"


def deadline(seconds: float = 30.0) -> float:
    return time.monotonic() + seconds


@pytest.fixture
def name() -> str:
    return make_unix_name()


@pytest.fixture
def door(name: str) -> Iterator[SameUserDoor]:
    door = SameUserDoor(name, WHAT)
    yield door
    door.close()


def test_ranks_that_come_before_and_after_get_the_text(name: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        texts = [pool.submit(await_same_user, name, rank, WHAT, deadline()) for rank in (1, 2)]
        door = SameUserDoor(name, WHAT)
        door.give("the text", (1, 2), deadline())
        assert [text.result() for text in texts] == ["the text"] * 2
        door.close()
    assert ask_same_user(name, 1, WHAT, deadline()) == ""


def test_one_that_comes_twice_does_not_count_for_another(name: str, door: SameUserDoor) -> None:
    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            pool.submit(await_same_user, name, 1, WHAT, deadline(3.0))
        with pytest.raises(StartError, match="rank 2 of the job of 3 ranks did not come"):
            door.give("the text", (1, 2), deadline(0.5))


def test_one_that_says_nothing_is_passed_over(
    name: str, door: SameUserDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(same_user, "_HELLO_S", 0.1)
    with ThreadPoolExecutor(1) as pool, connect_unix(name, deadline()):
        text = pool.submit(await_same_user, name, 1, WHAT, deadline())
        door.give("the text", (1,), deadline())
        assert text.result() == "the text"


def test_a_name_has_one_owner(name: str, door: SameUserDoor) -> None:
    with pytest.raises(StartError, match="is already rank 0 of the job of 3 ranks"):
        SameUserDoor(name, WHAT)


def test_other_users_get_nothing_and_are_not_believed(
    name: str, door: SameUserDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask_same_user, name, 1, WHAT, deadline())
        monkeypatch.setattr(same_user, "is_same_user", lambda sock: False)
        with pytest.raises(StartError, match="did not come"):
            door.give("the text", (1,), deadline(0.3))
        assert asked.result() == ""
    monkeypatch.setattr(local, "is_same_user", lambda sock: False)
    with pytest.raises(StartError, match="a process of another user than"):
        await_same_user(name, 1, WHAT, deadline())


def test_a_rank_0_that_never_comes_is_told(name: str) -> None:
    with pytest.raises(StartError, match="did not answer rank 1 on this host in time"):
        await_same_user(name, 1, WHAT, deadline(0.1))
