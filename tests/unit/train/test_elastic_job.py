"""Elastic workers that are contexts of one process, with real engines over a real store."""

from __future__ import annotations

import gc
import os
import queue
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from led_job import await_workers, begin_generation

from horovod._job import Assignment, Worker
from horovod._job.job import Job, open_job
from horovod._job.records import EventKind
from horovod._native import Buffer
from horovod._rank import context
from horovod._rank.reduction import PLAIN_SUM
from horovod._train import objects
from horovod._train.elastic.leaving import leave_politely
from horovod._train.elastic.position import Position
from horovod._train.elastic.run import run
from horovod._train.process_set import ProcessSet, add_process_set, remove_process_set
from horovod.common.elastic import ObjectState
from horovod.errors import PeerLostError, ShutDownError, StartError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE_S = 90.0


def broadcast_object(obj: Any, root_rank: int = 0) -> Any:
    return objects.broadcast_object(context.global_group(), obj, root_rank)


@pytest.fixture
def job() -> Iterator[Job]:
    with open_job() as job:
        yield job


class Fleet:
    """Workers on threads, each with a context of its own."""

    def __init__(self, job: Job, threads: ThreadPoolExecutor) -> None:
        self.job = job
        self._threads = threads
        self.identities: list[str] = []

    def start(self, slot: int, work: Callable[[], Any], **more: Any) -> Any:
        """A worker that calls ``hvd.init()`` and works; its result is awaited later."""
        identity = self.job.new_identity("a")
        told = Assignment(
            self.job.where, None, identity, "a", slot=slot, elastic=True, min_size=1, max_size=3,
            **more,
        )  # fmt: skip

        def live() -> Any:
            own = context.Context()
            with own.use():
                context.init(job=told)
                try:
                    return work()
                finally:
                    own.shutdown()
                    own.part()

        self.identities.append(identity)
        return self._threads.submit(live)

    def begin(self, num_workers: int) -> None:
        """Begins a generation with the first workers, when they are ready."""
        wanted = self.identities[:num_workers]
        await_workers(self.job, lambda job: set(wanted) <= set(job.available), PATIENCE_S)
        workers = [self.job.available[each] for each in wanted]
        begin_generation(self.job, sorted(workers, key=_slot))


def _slot(worker: Worker) -> int:
    return worker.slot


@pytest.fixture
def fleet(job: Job) -> Iterator[Fleet]:
    with ThreadPoolExecutor(4) as threads:
        yield Fleet(job, threads)


def trained_until(
    generation: int,
    on_round: Callable[[], object] = lambda: None,
    on_reset: Callable[[], object] = lambda: None,
) -> int:
    """Works until a generation has begun; returns the number of rounds."""
    state = ObjectState(broadcast_object, rounds=0)
    state.register_reset_callbacks([on_reset])

    @run
    def train(state: ObjectState) -> int:
        state.rounds += 1
        on_round()
        while context.generation() < generation:
            state.check_host_updates()
        return state.rounds

    return train(state)


@pytest.fixture
def _only_new_garbage() -> Iterator[None]:
    """Collections pass over what other tests and frameworks have made: up to a second each."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_only_new_garbage")
def test_sixty_changes_leave_nothing_behind(fleet: Fleet) -> None:
    last, measured = 60, []
    begun = threading.Semaphore(0)

    def note() -> None:
        if context.rank() == 0:
            gc.collect()
            threads = [t for t in threading.enumerate() if t.is_alive()]
            measured.append((len(os.listdir("/proc/self/fd")), len(threads)))
        begun.release()

    workers = [fleet.start(slot, lambda: trained_until(last, note)) for slot in range(2)]
    for _ in range(last + 1):
        fleet.begin(2)
        for _ in range(2):
            assert begun.acquire(timeout=PATIENCE_S)
    assert [worker.result(PATIENCE_S) for worker in workers] == [last + 1] * 2
    early, late = measured[5:25], measured[-20:]
    assert min(late) <= max(early)
    assert max(late) <= (max(early)[0] + 2, max(early)[1] + 2)


def test_a_newcomer_works_while_the_others_train(fleet: Fleet) -> None:
    began = threading.Semaphore(0)
    workers = [fleet.start(slot, lambda: trained_until(1, began.release)) for slot in range(2)]
    fleet.begin(2)
    for _ in workers:
        assert began.acquire(timeout=PATIENCE_S)
    may_enter, came = threading.Event(), threading.Event()

    def late() -> tuple[Any, ...]:
        provisional = context.rank(), context.size(), context.local_rank(), context.generation()
        limits = context.min_size(), context.max_size()
        came.set()
        assert may_enter.wait(PATIENCE_S)
        rounds = trained_until(1)
        return provisional, limits, rounds, (context.rank(), context.size())

    newcomer = fleet.start(2, late)
    assert came.wait(PATIENCE_S)  # although nobody has begun a generation with it
    may_enter.set()
    fleet.begin(3)
    assert newcomer.result(PATIENCE_S) == ((2, 3, 2, 0), (1, 3), 2, (2, 3))
    assert [worker.result(PATIENCE_S) for worker in workers] == [2, 2]


def test_what_autotuning_has_found_is_kept(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_AUTOTUNE", "1")
    began = threading.Semaphore(0)

    def train() -> tuple[int, int, int]:
        tuned: list[int] = []
        thresholds: list[int] = []

        def tune() -> None:
            config = context.current_config()
            thresholds.append(config.fusion_threshold if config.fusion_threshold_is_set else 0)
            if context.generation() == 0:
                for _ in range(60):  # which is more than it takes
                    take_step()
                statistics = context.global_group().engine.statistics()
                tuned.append(statistics["tuned_threshold"])
            began.release()

        trained_until(1, tune)
        return tuned[0], *thresholds

    workers = [fleet.start(slot, train) for slot in range(2)]
    fleet.begin(2)
    for _ in workers:
        assert began.acquire(timeout=PATIENCE_S)
    fleet.begin(2)
    tuned, before, after = workers[0].result(PATIENCE_S)
    assert before == 0 < tuned == after
    assert workers[1].result(PATIENCE_S) == (0, 0, 0)


def take_step() -> None:
    """Some allreduces at a time, as of gradients."""
    group, handles = context.global_group(), []
    for number in range(6):
        values = bytearray(80_000)
        view = Buffer.from_array(values)
        handles.append(group.allreduce((view,), (view,), name=f"g{number}", keep=values))
    for handle in handles:
        handle.wait()


def test_a_newcomer_may_meet_the_others_in_a_reset_callback(fleet: Fleet) -> None:
    """What it runs before the wrapped function has its match there; its place is real by then."""

    def meet() -> list[tuple[int, int]]:
        place = context.generation(), context.rank()
        return objects.allgather_object(context.global_group(), place)

    met: list[Any] = []
    began = threading.Event()
    first = fleet.start(0, lambda: trained_until(1, began.set, lambda: met.append(meet())))
    fleet.begin(1)
    assert began.wait(PATIENCE_S)
    second = fleet.start(1, lambda: (meet(), trained_until(1))[0])
    fleet.begin(2)
    # It still had its provisional place when it looked at it, before the collective.
    assert second.result(PATIENCE_S) == [(1, 0), (0, 1)]
    assert first.result(PATIENCE_S) == 2
    assert met == [[(1, 0), (0, 1)]]


def test_process_sets_follow_the_size(fleet: Fleet) -> None:
    seen: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()

    def work() -> int:
        process_set = add_process_set(ProcessSet([0, 2]))

        def note() -> None:
            if context.rank() == 0:
                seen.put((context.size(), process_set.ranks, process_set.size()))

        return trained_until(2, note)

    workers = [fleet.start(slot, work) for slot in range(3)]
    fleet.begin(3)
    assert seen.get(timeout=PATIENCE_S) == (3, [0, 2], 2)
    fleet.begin(2)
    fleet.job.dismiss(fleet.identities[2], "enough")
    for _ in range(2):
        assert seen.get(timeout=PATIENCE_S) == (2, [0], 1)
        fleet.begin(2)
    assert [worker.result(PATIENCE_S) for worker in workers[:2]] == [3, 3]
    assert isinstance(workers[2].exception(PATIENCE_S), SystemExit)


def test_sets_that_become_those_of_all_ranks_go_on(fleet: Fleet) -> None:
    """With two ranks, sets of 0 and 1, of 0, 1 and 2, and the global one have the same ranks."""
    seen: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()

    def sum_of(group: Any) -> int:
        values = bytearray([context.rank() + 1])
        buffer = Buffer.from_array(values)
        group.allreduce([buffer], [buffer], PLAIN_SUM, name="sum", keep=values).wait()
        return values[0]

    def work() -> tuple[int, bool, bool]:
        sets = [add_process_set(ProcessSet(ranks)) for ranks in ([0, 1], [1, 0, 3], [0, 1, 4])]

        def note() -> None:
            sums = [sum_of(each.group()) for each in sets if each.included()]
            sums.append(sum_of(context.global_group()))
            if context.rank() == 0:
                seen.put((context.size(), [each.process_set_id for each in sets], sums))

        rounds = trained_until(2, note)
        with pytest.raises(UsageError, match=r"\[0, 1, 4\] are those of process set 3"):
            add_process_set([4, 1, 0])
        removed = remove_process_set(sets[0])
        return rounds, removed, sets[1].process_set_id == 2

    workers = [fleet.start(slot, work) for slot in range(3)]
    fleet.begin(3)
    assert seen.get(timeout=PATIENCE_S) == (3, [1, 2, 3], [3, 3, 3, 6])
    fleet.begin(2)
    fleet.job.dismiss(fleet.identities[2], "enough")
    for _ in range(2):
        assert seen.get(timeout=PATIENCE_S) == (2, [1, 2, 3], [3, 3, 3, 3])
        fleet.begin(2)
    assert [worker.result(PATIENCE_S) for worker in workers[:2]] == [(3, True, True)] * 2
    assert isinstance(workers[2].exception(PATIENCE_S), SystemExit)


def test_a_set_that_has_no_ranks_left_is_a_clear_error(fleet: Fleet) -> None:
    began = threading.Semaphore(0)

    def work() -> int:
        kept = add_process_set(ProcessSet([1]))
        assert kept.ranks == [1]
        return trained_until(1, began.release)

    workers = [fleet.start(slot, work) for slot in range(2)]
    fleet.begin(2)
    for _ in range(2):
        assert began.acquire(timeout=PATIENCE_S)
    fleet.begin(1)
    fleet.job.dismiss(fleet.identities[1], "enough")
    with pytest.raises(UsageError, match=r"set of ranks \[1\] cannot go on in a job of 1 ranks"):
        workers[0].result(PATIENCE_S)
    assert isinstance(workers[1].exception(PATIENCE_S), SystemExit)


def test_workers_end_when_nobody_leads_the_job_any_more(fleet: Fleet) -> None:
    began = threading.Semaphore(0)
    workers = [fleet.start(slot, lambda: trained_until(1, began.release)) for slot in range(2)]
    fleet.begin(2)
    for _ in workers:
        assert began.acquire(timeout=PATIENCE_S)
    fleet.job.close()
    errors = [worker.exception(PATIENCE_S) for worker in workers]
    assert all(isinstance(error, StartError) for error in errors)
    assert any("whoever started its job is gone" in str(error) for error in errors)


def test_sigterm_asks_to_leave_but_ends_children(fleet: Fleet) -> None:
    other = fleet.start(0, lambda: trained_until(1))
    fleet.begin(1)
    told = Assignment(fleet.job.where, None, "mine", "a", slot=1, elastic=True)
    own = context.Context()
    with own.use():
        context.init(job=told)  # a newcomer, which holds up nobody
        with leave_politely():
            pid = os.fork()
            if pid == 0:  # as a process that loads data
                os.kill(os.getpid(), signal.SIGTERM)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
            os.kill(os.getpid(), signal.SIGTERM)
            worker = context.elastic_worker()
            assert worker is not None
            assert worker.leaving == "SIGTERM"
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        while (event := fleet.job.next_event(PATIENCE_S)) is not None:
            if event.kind is EventKind.LEAVING:
                break
        assert event is not None
        assert event.worker.identity == "mine"
        own.shutdown()
        own.part()
    begin_generation(fleet.job)
    assert other.result(PATIENCE_S) >= 1


def test_who_still_connects_gives_up_when_a_member_is_lost(fleet: Fleet) -> None:
    """It would wait for it until its start timeout, of 30 s and more."""
    survivor = fleet.start(0, lambda: trained_until(1))
    await_workers(fleet.job, lambda job: len(job.available) == 1, PATIENCE_S)
    own = Worker(fleet.identities[0], "a", 0)
    begin_generation(fleet.job, [own, Worker("a-dead", "a", 1)])
    fleet.job.break_up("rank 1 was killed")
    while (event := fleet.job.next_event(PATIENCE_S)) is None or event.kind is not EventKind.RESET:
        assert event is not None
    assert "rank 1 was killed" in event.text
    begin_generation(fleet.job, [own])
    assert survivor.result(PATIENCE_S) == 1


def test_the_job_hears_how_many_samples_are_done_again(fleet: Fleet) -> None:
    def goes_back_once() -> int:
        position = Position()
        state = ObjectState(broadcast_object, position=position, rounds=0)
        position.begin("loop")
        position.advance("loop", 8)
        rounds = []

        @run
        def train(state: ObjectState) -> None:
            rounds.append(state.position.samples_done)
            if len(rounds) == 1:
                position.advance("loop", 16)
                state.save()
                position.advance("loop", 24)
                position.advance("loop", 28)
                raise PeerLostError("rank 1 was lost")

        train(state)
        return rounds[-1]

    worker = fleet.start(0, goes_back_once)
    fleet.begin(1)
    while (event := fleet.job.next_event(PATIENCE_S)) is None or event.kind is not EventKind.RESET:
        assert event is not None
    assert event.replayed == 28 - 16
    begin_generation(fleet.job, [Worker(fleet.identities[0], "a", 0)])
    assert worker.result(PATIENCE_S) == 16


def test_who_stays_asks_for_a_generation_when_one_leaves_before_it_was_published(
    fleet: Fleet,
) -> None:
    """A commit can come before whoever leads the job has heard that somebody wants to leave."""

    def leaves() -> None:
        worker = context.elastic_worker()
        assert worker is not None
        worker.leaving = "SIGTERM"  # as its handler does, before any thread has told it

    stays = fleet.start(0, lambda: trained_until(1))
    goes = fleet.start(1, lambda: trained_until(1, leaves))
    fleet.begin(2)
    heard: list[tuple[str, EventKind]] = []
    wanted = {("stays", EventKind.RESET), ("goes", EventKind.LEFT)}
    names = dict(zip(fleet.identities, ("stays", "goes"), strict=True))
    while not wanted <= set(heard):
        event = fleet.job.next_event(PATIENCE_S)
        assert event is not None, heard
        heard.append((names[event.worker.identity], event.kind))
    # Otherwise its end would look like that of the training.
    assert heard.index(("goes", EventKind.LEAVING)) < heard.index(("goes", EventKind.LEFT))
    assert isinstance(goes.exception(PATIENCE_S), SystemExit)
    begin_generation(fleet.job, [Worker(fleet.identities[0], "a", 0)])
    assert stays.result(PATIENCE_S) == 2


def test_a_newcomer_waits_for_those_who_train_however_long_it_takes(fleet: Fleet) -> None:
    waits, goes_on = threading.Event(), threading.Event()

    def has_a_long_step() -> int:
        def step() -> None:
            if context.generation() == 0:
                assert goes_on.wait(PATIENCE_S)

        return trained_until(1, on_round=step)

    def comes_late() -> int:
        waits.set()
        return trained_until(1)

    old = fleet.start(0, has_a_long_step)
    fleet.begin(1)
    new = fleet.start(1, comes_late, start_timeout_s=1.0)
    assert waits.wait(PATIENCE_S)
    fleet.begin(2)
    with pytest.raises(AssertionError, match="after 3 s"):  # it gives nothing up meanwhile
        await_workers(fleet.job, lambda job: False, 3.0)
    assert new.running()
    goes_on.set()
    assert old.result(PATIENCE_S) == 2
    assert new.result(PATIENCE_S) == 2
    assert fleet.job.next_generation == 2


def test_a_newcomer_that_waits_hears_that_its_generation_is_over(fleet: Fleet) -> None:
    waits, goes_on = threading.Event(), threading.Event()

    def comes_late() -> int:
        waits.set()
        return trained_until(2)

    def has_a_long_step() -> int:
        def step() -> None:
            if context.generation() == 0:
                assert goes_on.wait(PATIENCE_S)

        return trained_until(2, on_round=step)

    old = fleet.start(0, has_a_long_step)
    fleet.begin(1)
    new = fleet.start(1, comes_late)
    assert waits.wait(PATIENCE_S)
    fleet.begin(2)
    fleet.job.break_up("rank 0 has ended")
    words = iter(lambda: fleet.job.next_event(PATIENCE_S), None)
    given_up = next(word for word in words if word.kind is EventKind.RESET)
    assert given_up.worker.slot == 1
    assert "rank 0 has ended" in given_up.text
    fleet.begin(2)
    goes_on.set()
    assert old.result(PATIENCE_S) == new.result(PATIENCE_S) == 2


def test_who_sleeps_hears_of_a_loss_from_the_job(fleet: Fleet) -> None:
    """Its peer is gone, but nothing wakes its engine up."""
    over = threading.Event()

    def sleeps() -> str:
        with pytest.raises(ShutDownError) as caught:
            context.global_group().barrier().wait()
        over.set()
        return str(caught.value)

    def never_comes() -> None:
        context.global_group()
        assert over.wait(PATIENCE_S)

    asleep = fleet.start(0, sleeps, worker_timeout_s=1.0)
    dead = fleet.start(1, never_comes)
    fleet.begin(2)
    fleet.job.tell_loss(0, "rank 1 (a-1) on a was killed by SIGKILL")
    text = "its job has lost a member: rank 1 (a-1) on a was killed by SIGKILL"
    assert text in asleep.result(PATIENCE_S)
    dead.result(PATIENCE_S)
