"""A worker's part in a job: it joins, waits for its place, hears of changes, and leaves."""

from __future__ import annotations

import os
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod._job.environment import Assignment, StoreAddress
from horovod._job.membership import Worker
from horovod._job.records import (
    EVENTS,
    NEWEST_KEY,
    Event,
    EventKind,
    alive_key,
    claim_identity,
    dismissed_key,
    generation_key,
    place_of,
)
from horovod._rendezvous.incarnation import Incarnation
from horovod._rendezvous.messages import MAX_TIMEOUT_S
from horovod._rendezvous.roster import rank_key
from horovod._rendezvous.secret import read_secret
from horovod._rendezvous.store import StoreClient
from horovod._rendezvous.versions import check_version
from horovod.errors import StartError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod._job.place import Place

# How often a newcomer that waits for the others looks whether it still has a place.
_LOOK_AROUND_S = 5.0


class Dismissed(SystemExit):
    """The job goes on without this worker, whose process ends with exit code 0 if nobody objects.

    Args:
        text: why.
    """

    def __init__(self, text: str) -> None:
        super().__init__(0)
        self.text = text

    def __str__(self) -> str:
        return self.text


def join(
    store: StoreAddress,
    host: str,
    slot: int = 0,
    identity: str = "",
    timeout_s: float = 30.0,
    *,
    ready: bool = True,
) -> JoinedWorker:
    """Lets this process join a job.

    Args:
        store: of the job.
        host: the name of this host; ranks with the same name become neighbors.
        slot: which of the places for a worker this one uses on its host, from 0.
        identity: of this process, if whoever started it chose one; a new one if it is empty.
        timeout_s: seconds for reaching the store.
        ready: whether it can take part at once; otherwise :meth:`JoinedWorker.ready` says so later.

    Returns:
        The worker; its end, or that of this process, tells the job that it is gone.

    Raises:
        StartError: the store cannot be reached, the job has another version of Horovod, or another
            process has this identity.
    """
    return JoinedWorker(store, host, slot, identity, timeout_s, ready=ready)


def join_as(assignment: Assignment, slot: int | None = None, *, ready: bool = True) -> JoinedWorker:
    """Do the same as :func:`join` for a process that has its store, and maybe its identity.

    Args:
        assignment: what it was told.
        slot: of its host; None for that of the assignment.
        ready: see :func:`join`.

    Raises:
        UsageError: it was not told where the store is.
        StartError: see :func:`join`.
    """
    if assignment.store is None or not assignment.hostname:
        raise UsageError("a worker joins a job at its store, from a host: tell it both")
    timeout_s = 30.0 if assignment.start_timeout_s is None else assignment.start_timeout_s
    store = assignment.store
    if not store.secret and assignment.secret_file:
        store = replace(store, secret=read_secret(assignment.secret_file))
    slot = assignment.slot if slot is None else slot
    return join(store, assignment.hostname, slot, assignment.identity, timeout_s, ready=ready)


class JoinedWorker:
    """A worker of a job; see :func:`join`. Leaving the context leaves the job.

    Attributes:
        worker: its identity, host and slot.
        store_error: why nobody will be told of changes any more; empty as long as they are.
    """

    def __init__(
        self,
        store: StoreAddress,
        host: str,
        slot: int,
        identity: str,
        timeout_s: float,
        *,
        ready: bool = True,
    ) -> None:
        self._address = store
        self._timeout_s = timeout_s
        # As long as this connection lasts, the worker lives.
        self._presence = self._connect()
        try:
            check_version(self._presence, f"a worker on {host} (process {os.getpid()})")
            self.worker = Worker(identity or claim_identity(self._presence, host), host, slot)
            self._awaiting = self._connect()
        except BaseException:
            self._presence.close()
            raise
        self._watch: threading.Thread | None = None
        self._watching: StoreClient | None = None
        self.store_error = ""
        self._has_left = False
        self._is_ready = False
        try:
            self._announce()
            if ready:
                self.ready()
        except BaseException:
            self._close()
            raise
        _joined.add(self)

    @property
    def identity(self) -> str:
        """Names this process and no other of the job, ever; it is not the rank."""
        return self.worker.identity

    def ready(self) -> None:
        """Tells the job that this worker can take part from now on. Idempotent.

        Raises:
            StartError: the store was lost.
        """
        if not self._is_ready:
            self._is_ready = True
            self._tell(Event(EventKind.READY, self.worker))

    def tell_running(self, generation: int, stood_s: float) -> None:
        """Tells the job that this worker is connected to all others of a generation.

        Args:
            generation: which one.
            stood_s: seconds since it gave up the one before; 0 in its first.

        Raises:
            StartError: the store was lost.
        """
        event = Event(EventKind.RUNNING, self.worker, generation=generation, stood_s=stood_s)
        self._tell(event)

    def tell_reset(self, generation: int, text: str, replayed: int = 0) -> None:
        """Tells the job that a generation has failed for this worker, which awaits the next one.

        Args:
            generation: which one.
            text: why.
            replayed: how many samples all ranks had done in it since their last commit.

        Raises:
            StartError: the store was lost.
        """
        event = Event(EventKind.RESET, self.worker, text, generation, replayed=replayed)
        self._tell(event)

    def tell_leaving(self, text: str) -> None:
        """Asks the job for a generation without this worker.

        Raises:
            StartError: the store was lost.
        """
        self._tell(Event(EventKind.LEAVING, self.worker, text))

    def places(self, generation: int = -1) -> bytes | None:
        """Return the published places of a generation, or of the newest one; None if there is
        nothing.

        Raises:
            StartError: the store was lost.
        """
        if generation < 0:
            generation = self.newest()
        return None if generation < 0 else self._awaiting.try_get(generation_key(generation))

    def newest(self) -> int:
        """The number of the newest generation; -1 if there is none.

        Raises:
            StartError: the store was lost.
        """
        return int(self._awaiting.try_get(NEWEST_KEY) or b"-1")

    def await_place(self, after: int = -1, timeout_s: float = MAX_TIMEOUT_S) -> Assignment:
        """Waits for a generation in which this worker has a place.

        Args:
            after: the last generation that it knows; -1 for none. Generations in between that were
                replaced meanwhile are passed over.
            timeout_s: seconds to wait.

        Returns:
            What ``hvd.init(job=…)`` takes.

        Raises:
            StartError: there was none in time, this worker has left, or the store was lost.
            Dismissed: the job goes on without this worker.
        """
        deadline = time.monotonic() + timeout_s
        generation = after + 1
        while True:
            # Again each time: those that were replaced long ago are deleted.
            generation = max(generation, -1 if self._has_left else self.newest())
            left_s = deadline - time.monotonic()
            text = self._ask(self._awaiting, generation, min(max(0.0, left_s), _LOOK_AROUND_S))
            if text is not None:
                place = place_of(self.identity, text)
                if place is not None:
                    return self.assignment(place)
                generation += 1
            elif left_s <= 0:
                raise StartError(
                    f"worker {self.identity} got no place after generation {after} within "
                    f"{timeout_s:g} s"
                )

    def await_entry(self, generation: int) -> None:
        """Waits until those who trained before enter a generation in which this worker is new.

        They do so at their next commit or check, however long that takes. Also returns when the
        generation has failed or was replaced, which connecting then finds out.

        Raises:
            StartError: this worker has left, or the store was lost.
            Dismissed: the job goes on without this worker.
        """
        incarnation = Incarnation(generation, 1)
        senior = rank_key(incarnation, 0)  # all of them go together
        while True:
            found = self._awaiting.wait_all([senior], _LOOK_AROUND_S, incarnation.failed_key)
            if self._has_left:
                raise StartError(f"worker {self.identity} has left the job")
            if found or self.newest() > generation:
                return
            text = self._awaiting.try_get(dismissed_key(self.identity))
            if text is not None:
                raise Dismissed(text.decode(errors="replace"))

    def assignment(self, place: Place) -> Assignment:
        """Return the argument of ``hvd.init(job=…)`` for a place of this worker."""
        return Assignment(
            self._address, place, self.identity, self.worker.host, start_timeout_s=self._timeout_s
        )

    def on_change(
        self,
        generation: int,
        notify: Callable[[int], None],
        beat_s: float = 0.0,
        beat: Callable[[StoreClient], None] = lambda _: None,
    ) -> None:
        """Calls a function on a thread for every generation that comes, until this worker leaves.

        Args:
            generation: those above it are told.
            notify: called with the number of each, but for those that were replaced long before
                this thread asked. It also ends when the store is lost.
            beat_s: how often the thread tells the job that this process is alive, in seconds; 0 for
                never.
            beat: called each time on that thread, with its connection to the store.
        """
        if self._watch is not None:
            raise UsageError(f"somebody listens for changes at worker {self.identity} already")
        self._watching = self._connect()
        self._watch = threading.Thread(
            target=self._tell_changes,
            args=(self._watching, generation + 1, notify, beat_s, beat),
            name=f"horovod-job-{self.identity}",
            daemon=True,
        )
        self._watch.start()

    def leave(self, text: str = "") -> None:
        """Takes leave of the job: the process goes on, without a place from now on. Idempotent.

        Args:
            text: why, for the job's messages.
        """
        if self._has_left:
            return
        self._has_left = True
        with suppress(StartError):  # a store that is gone needs no leave
            self._presence.add(dismissed_key(self.identity), b"it has left")
            self._presence.leave_will(EVENTS, None)
            self._presence.append(EVENTS, Event(EventKind.LEFT, self.worker, text).to_json())
        self._close()

    def __enter__(self) -> JoinedWorker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.leave()

    def _connect(self) -> StoreClient:
        where = self._address
        return StoreClient(
            where.address, where.port, where.secret, self._timeout_s, purpose="worker"
        )

    def _announce(self) -> None:
        key = f"job/worker/{self.identity}"
        if self._presence.add(key, str(os.getpid()).encode()) is not None:
            raise StartError(
                f"a process took part as worker {self.identity} before: an identity names one "
                "process, for ever"
            )
        gone = Event(EventKind.GONE, self.worker, "its connection to the job's store ended")
        self._presence.leave_will(EVENTS, gone.to_json(), append=True)

    def _tell(self, event: Event) -> None:
        self._presence.append(EVENTS, event.to_json())

    def _ask(self, client: StoreClient, generation: int, timeout_s: float) -> bytes | None:
        """The places of a generation; None if it did not come in time, or is deleted."""
        key, stop = generation_key(generation), dismissed_key(self.identity)
        found = {} if self._has_left else client.wait_all([key], timeout_s, stop)
        if self._has_left:
            raise StartError(f"worker {self.identity} has left the job")
        if key not in found and stop in found:
            raise Dismissed(found[stop].decode(errors="replace"))
        return found.get(key)

    def _tell_changes(
        self,
        client: StoreClient,
        generation: int,
        notify: Callable[[int], None],
        beat_s: float,
        beat: Callable[[StoreClient], None],
    ) -> None:
        beats = 0
        try:
            while True:
                if beat_s:
                    beats += 1
                    client.set(alive_key(self.identity), str(beats).encode())
                    beat(client)
                if self._ask(client, generation, beat_s or _LOOK_AROUND_S) is None:
                    newest = int(client.try_get(NEWEST_KEY) or b"-1")
                    if newest < generation:
                        continue
                    generation = newest  # those between were deleted before this thread asked
                notify(generation)
                generation += 1
        except Dismissed:
            return  # told where it awaits its place
        except StartError as error:
            if not self._has_left:
                self.store_error = str(error)

    def _close(self) -> None:
        if self._watch is not None and self._watch is not threading.current_thread():
            self._watch.join()
        for client in (self._presence, self._awaiting, self._watching):
            if client is not None:
                client.close()

    def _abandon(self) -> None:
        """In the child of a fork: the worker is the parent, whose end must show."""
        self._has_left = True
        for client in (self._presence, self._awaiting, self._watching):
            if client is not None:
                client.abandon()


_joined: weakref.WeakSet[JoinedWorker] = weakref.WeakSet()


def _abandon_all() -> None:
    for worker in list(_joined):
        worker._abandon()


os.register_at_fork(after_in_child=_abandon_all)
