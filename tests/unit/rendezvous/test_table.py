"""Keys, values and waiters, without a network or a clock."""

from __future__ import annotations

import weakref

from horovod._rendezvous.table import Found, Table


def test_a_value_that_exists_is_answered_at_once() -> None:
    table, answers = Table(), list[Found]()
    table.set("a", b"1")
    table.wait(["a"], "", 10.0, 0.0, answers.append)
    assert answers == [{"a": b"1"}]
    assert table.next_deadline() is None


def test_a_waiter_is_answered_once_when_its_last_key_appears() -> None:
    table, answers = Table(), list[Found]()
    table.wait(["a", "b"], "", 10.0, 0.0, answers.append)
    table.set("b", b"2")
    assert answers == []
    table.set("a", b"1")
    table.set("a", b"3")
    table.expire(11.0)
    assert answers == [{"a": b"1", "b": b"2"}]


def test_a_key_deleted_meanwhile_is_waited_for_again() -> None:
    table, answers = Table(), list[Found]()
    table.wait(["a", "b"], "", 10.0, 0.0, answers.append)
    table.set("a", b"1")
    table.delete_prefix("a")
    table.set("b", b"2")
    assert answers == []
    table.set("a", b"3")
    assert answers == [{"a": b"3", "b": b"2"}]


def test_the_deadline_answers_with_what_there_is() -> None:
    table, answers = Table(), list[Found]()
    table.set("a", b"1")
    table.wait(["a", "b"], "", 10.0, 0.0, answers.append)
    table.expire(9.9)
    assert answers == []
    assert table.next_deadline() == 10.0
    table.expire(10.0)
    assert answers == [{"a": b"1"}]


def test_no_time_means_no_wait() -> None:
    table, answers = Table(), list[Found]()
    table.wait(["a"], "", 0.0, 0.0, answers.append)
    assert answers == [{}]


def test_the_stop_key_ends_the_wait() -> None:
    table, answers = Table(), list[Found]()
    table.wait(["a"], "stop", 10.0, 0.0, answers.append)
    table.set("stop", b"!")
    table.wait(["a"], "stop", 10.0, 0.0, answers.append)
    assert answers == [{"stop": b"!"}, {"stop": b"!"}]


def test_a_cancelled_waiter_is_never_answered() -> None:
    table, answers = Table(), list[Found]()
    waiter = table.wait(["a"], "stop", 10.0, 0.0, answers.append)
    table.cancel(waiter)
    table.cancel(waiter)
    table.set("a", b"1")
    table.expire(20.0)
    assert answers == []


def test_waiters_expire_in_the_order_of_their_deadlines() -> None:
    table, order = Table(), list[str]()
    for name, deadline in (("late", 3.0), ("early", 1.0), ("middle", 2.0)):
        table.wait(["a"], "", deadline, 0.0, lambda found, name=name: order.append(name))  # type: ignore[misc]
    table.expire(2.5)
    assert order == ["early", "middle"]


def test_add_keeps_the_first_value() -> None:
    table = Table()
    assert table.add("a", b"1") is None
    assert table.add("a", b"2") == b"1"


def test_delete_prefix_counts_and_spares_the_others() -> None:
    table, answers = Table(), list[Found]()
    for key in ("x/1", "x/2", "y/1"):
        table.set(key, b"")
    assert table.delete_prefix("x/") == 2
    table.wait(["x/1", "y/1"], "", 0.0, 0.0, answers.append)
    assert answers == [{"y/1": b""}]


def test_waits_that_have_ended_are_forgotten_long_before_their_deadline() -> None:
    """A job of weeks waits without end, and each wait may be answered at once."""
    table, answers = Table(), list[Found]()
    pending = [table.wait(["never"], "", 1e6, 0.0, answers.append) for _ in range(5)]
    ended = []
    for number in range(1000):
        ended.append(weakref.ref(table.wait([f"{number}"], "", 1e6, 0.0, answers.append)))
        table.set(f"{number}", b"1")
    assert len(answers) == 1000
    assert sum(each() is not None for each in ended) < 100
    table.wait(["never"], "", 7.0, 0.0, answers.append)
    assert table.next_deadline() == 7.0
    table.expire(1e6)
    assert answers[1000:] == [{}] * 6
    assert all(each.done for each in pending)


def test_the_keys_of_those_who_wait_for_the_same_are_kept_once() -> None:
    table, answers = Table(), list[Found]()
    waiters = [
        table.wait([f"rank/{rank}" for rank in range(3)], "", 10.0, 0.0, answers.append)
        for _ in range(2)
    ]
    other = table.wait(["rank/0"], "", 10.0, 0.0, answers.append)
    assert waiters[0].keys is waiters[1].keys
    assert other.keys == ("rank/0",)
    for rank in range(3):
        table.set(f"rank/{rank}", b"v")
    assert sorted(map(len, answers)) == [1, 3, 3]
