"""Several jobs in one process, and which of them a thread works for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from horovod import _native
from horovod._rank import context
from horovod._rank.context import Context
from horovod._rank.reduction import PLAIN_SUM
from horovod._rendezvous import StoreServer, make_secret
from horovod._settings.config import Config
from horovod._train.process_set import ProcessSet, add_process_set
from horovod.errors import NotInitializedError

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT_S = 30


class _Rank(NamedTuple):
    engine: _native.Engine
    config: Config

    def close(self, reason: str) -> None:
        self.engine.close(reason)

    def abandon(self) -> None:
        self.engine.abandon()


def world_of(size: int) -> list[Context]:
    """The contexts of the ranks of a job."""
    engines = _native.make_world(size, _native.EngineOptions())
    return [
        Context(
            Config(rank=rank, size=size),
            lambda config, incarnation: _Rank(engines[config.rank], config),
        )
        for rank in range(size)
    ]


def at_once(calls: list[tuple[Context, Callable[[], Any]]]) -> list[Any]:
    """Calls functions side by side, each in its context; returns what they return."""
    with ThreadPoolExecutor(len(calls)) as threads:

        def call(own: Context, function: Callable[[], Any]) -> Any:
            with own.use():
                return function()

        futures = [threads.submit(call, *each) for each in calls]
        return [future.result(TIMEOUT_S) for future in futures]


def total(value: int) -> int:
    """The sum over the ranks of the current job."""
    values = bytearray([value])
    buffer = _native.Buffer.from_array(values)
    group = context.global_group()
    group.allreduce([buffer], [buffer], PLAIN_SUM, name="x", keep=values).wait()
    return values[0]


def train() -> tuple[int, int, int]:
    """What a script does that knows nothing of contexts."""
    context.init()
    try:
        return context.rank(), context.size(), total(1 + context.rank())
    finally:
        context.shutdown()


def test_two_jobs_of_threads_run_at_the_same_time() -> None:
    both_run = threading.Barrier(5, timeout=TIMEOUT_S)

    def rank() -> tuple[int, int, int]:
        context.init()
        both_run.wait()
        try:
            return train()
        finally:
            both_run.wait()

    results = at_once([(each, rank) for size in (2, 3) for each in world_of(size)])
    assert results == [(0, 2, 3), (1, 2, 3), (0, 3, 6), (1, 3, 6), (2, 3, 6)]
    assert not context.is_initialized()


def test_a_thread_without_a_context_finds_the_only_job() -> None:
    (own,) = world_of(1)
    own.init()
    try:
        assert context.current() is own
        with ThreadPoolExecutor(1) as threads:
            assert threads.submit(context.size).result(TIMEOUT_S) == 1
    finally:
        own.shutdown()
    assert context.current() is not own


def test_a_thread_without_a_context_is_told_that_there_are_several_jobs() -> None:
    worlds = [world_of(1)[0], world_of(1)[0]]
    for each in worlds:
        each.init()
    try:
        with ThreadPoolExecutor(1, "loader") as threads:
            words = r"2 jobs, and the thread 'loader_0' belongs to none of them: start it with .*"
            with pytest.raises(NotInitializedError, match=words):
                threads.submit(context.rank).result(TIMEOUT_S)
            with worlds[1].use():
                assert threads.submit(context.inherited(context.current)).result() is worlds[1]
                assert threads.submit(copy_context().run, context.current).result() is worlds[1]
    finally:
        for each in worlds:
            each.shutdown()


def test_a_context_inside_another_one_ends_with_its_block() -> None:
    outer, inner = Context(), Context()
    with outer.use():
        with inner.use():
            assert context.current() is inner
        assert context.current() is outer


def test_listeners_hear_of_every_job_and_of_those_that_run_already() -> None:
    heard: list[tuple[str, int]] = []

    class Listener:
        def begun(self, config: Config, group: Any, number: int) -> None:
            assert number in numbers
            heard.append(("begun", group.rank))

        def ended(self, group: Any) -> None:
            heard.append(("ended", group.rank))

    first, second = world_of(2)
    numbers = {first.number, second.number} - {context.process.default.number}
    assert len(numbers) == 2
    first.init()
    listener = Listener()
    context.listen(listener)
    try:
        second.init()
        first.shutdown()
        second.shutdown()
    finally:
        context.process._listeners.remove(listener)
    assert heard == [("begun", 0), ("begun", 1), ("ended", 0), ("ended", 1)]


def test_ranks_that_are_threads_share_the_objects_of_their_script() -> None:
    first = ProcessSet([0])

    def rank() -> tuple[Any, ...]:
        context.init(process_sets=[first])
        try:
            second = add_process_set([1])
            numbers = first.process_set_id, second.process_set_id
            own = (first, second)[context.rank()]
            return *numbers, own.group().engine is context.global_group().engine
        finally:
            context.shutdown()

    assert at_once([(each, rank) for each in world_of(2)]) == [(1, 2, True)] * 2
    assert first.process_set_id is None


def test_what_belongs_to_a_context_is_its_own() -> None:
    values = context.PerContext[list[int]](list)
    first, second = Context(), Context()
    for own in (first, second, first):
        with own.use():
            values.get().append(1)
    with first.use():
        assert values.get() == [1, 1]
    with second.use():
        assert values.get() == [1]


_OTHER_RANK = """
import sys
from horovod import _native
from horovod._rank import context
from horovod._rank.reduction import PLAIN_SUM
context.init()
values = bytearray([1 + context.rank()])
buffer = _native.Buffer.from_array(values)
context.global_group().allreduce([buffer], [buffer], PLAIN_SUM, name="x", keep=values).wait()
print(context.rank(), context.size(), values[0])
"""


def test_a_step_counts_for_the_job_of_its_thread() -> None:
    first, second = Context(), Context()
    with first.use():
        context.step()
        with second.use():
            context.step()
            context.count_step()  # of an optimizer, which counts no more
            context.step()
    assert (first.steps.number, second.steps.number) == (1, 2)


def test_a_process_has_different_ranks_in_two_jobs() -> None:
    def others_of(place: Config) -> subprocess.Popen[str]:
        """The other rank of a job of two."""
        variables = {
            "HOROVOD_RANK": str(1 - place.rank),
            "HOROVOD_SIZE": "2",
            "HOROVOD_SECRET_KEY": place.secret_key,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": place.rendezvous_addr,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(place.rendezvous_port),
        }
        return subprocess.Popen(
            [sys.executable, "-c", _OTHER_RANK],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            text=True,
        )

    secrets = make_secret(), make_secret()
    with closing(StoreServer(secrets[0])) as first, closing(StoreServer(secrets[1])) as second:
        places = [
            Config(
                rank=rank,
                size=2,
                hostname="here",
                rendezvous_addr=store.address,
                rendezvous_port=store.port,
                secret_key=secret.hex(),
            )
            for rank, store, secret in zip((1, 0), (first, second), secrets, strict=True)
        ]
        processes = [others_of(place) for place in places]
        try:
            mine = at_once([(Context(place), train) for place in places])
            theirs = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.communicate()
    assert mine == [(1, 2, 3), (0, 2, 3)]
    assert theirs == ["0 2 3\n", "1 2 3\n"]
