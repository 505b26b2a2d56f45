"""A job: owns its store and its secret, hears who is ready or gone, and publishes generations."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from horovod._job.environment import Assignment, StoreAddress
from horovod._job.records import (
    EVENTS,
    LOST,
    NEWEST_KEY,
    Event,
    EventKind,
    Store,
    alive_key,
    claim_identity,
    dismissed_key,
    generation_key,
    lost_key,
    places_to_json,
)
from horovod._rendezvous.incarnation import Incarnation, latest_key
from horovod._rendezvous.roster import HOSTS_KEY
from horovod._rendezvous.secret import make_secret, write_secret
from horovod._rendezvous.server import StoreServer

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from horovod._job.membership import Membership, Worker

_LOOPBACK = "127.0.0.1"
# A job may have changes without end. Who is further behind than that looks for the newest one.
_KEPT_GENERATIONS = 16

JobT = TypeVar("JobT", bound="Job")


class Job:
    """The coordinator's side of a job; one process has it, no rank needs it.

    Not for several threads at once.

    Args:
        store: the server itself, or a connection to it.
        where: the store listens, with its secret.

    Attributes:
        where: see above.
        membership: the last generation that was published; None before the first.
        available: the workers that are ready, by identity, as far as events were read.
    """

    def __init__(self, store: Store, where: StoreAddress) -> None:
        self.where = where
        self.membership: Membership | None = None
        self.available: dict[str, Worker] = {}
        self._store = store
        self._num_events = 0
        self._cleanup = ExitStack()

    @property
    def store(self) -> Store:
        """The store of the job."""
        return self._store

    @property
    def next_generation(self) -> int:
        """The number of the generation that would be published next."""
        return 0 if self.membership is None else self.membership.generation + 1

    def new_identity(self, host: str) -> str:
        """An identity for a process that is about to be started on a host."""
        return claim_identity(self._store, host)

    def told(self, directory: str | os.PathLike[str] | None = None) -> Assignment:
        """Return the assignment common to all processes of the job: the address of the store.

        Args:
            directory: gets a file with the secret; it must be private (mode 0700). None to tell
                the secret itself.

        Raises:
            StartError: the file cannot be written.
        """
        if directory is None:
            return Assignment(self.where)
        store = StoreAddress(self.where.address, self.where.port)
        return Assignment(store, secret_file=write_secret(directory, self.where.secret))

    def assignment(self, worker: Worker) -> Assignment:
        """Return what a process about to be started needs to join and ask for its place."""
        return Assignment(self.where, identity=worker.identity, hostname=worker.host)

    def next_event(self, timeout_s: float) -> Event | None:
        """Waits until a worker tells something, or is gone; updates ``available``.

        One that is about to leave is available no longer, so the next generation does without it.

        Returns:
            The next event that was not read yet; None if there was none in time.

        Raises:
            MalformedEventError: a worker sent a malformed event; the next call goes on after it.
            StartError: the store was lost or closed.
        """
        key = f"{EVENTS}{self._num_events}"
        text = self._store.wait_all([key], timeout_s).get(key)
        if text is None:
            return None
        self._num_events += 1
        self._store.delete(key)  # nobody else reads it, and a job may have changes without end
        event = Event.from_json(text)
        if event.kind is EventKind.READY:
            self.available[event.worker.identity] = event.worker
        elif event.kind not in (EventKind.RUNNING, EventKind.RESET):
            self.available.pop(event.worker.identity, None)
        return event

    def dismiss(self, identity: str, text: str) -> None:
        """Tells a worker that it takes part no longer; it ends with exit code 0.

        Args:
            identity: of the worker, which has no place in the newest generation.
            text: why.
        """
        self._store.add(dismissed_key(identity), text.encode())
        self.available.pop(identity, None)

    def forget(self, identity: str) -> None:
        """Deletes what the store holds for a worker whose process has ended.

        That there was such a worker remains known: an identity names one process, for ever.
        """
        self._store.delete(alive_key(identity))
        self._store.delete(dismissed_key(identity))

    def break_up(self, text: str) -> None:
        """Lets members that still connect in the newest generation give it up.

        They would wait for one that is dead until their start timeout. Those that are connected
        notice its loss by themselves.

        Args:
            text: why.
        """
        if self.membership is not None:
            self._fail(self.membership, text)

    def tell_loss(self, generation: int, text: str) -> None:
        """Tells those who train in a generation that it has lost a member.

        They usually notice it by themselves, and sooner; this is for those whom nothing wakes up.

        Args:
            generation: which one; nobody trains any more in those before it.
            text: why.
        """
        self._store.delete_prefix(LOST)
        self._store.add(lost_key(generation), text.encode())

    def publish(self, membership: Membership) -> None:
        """Tells all workers their places in a generation; the one before it is over.

        Ranks that still connect in the generation before give up, as its members may be gone.
        """
        generation, last = membership.generation, self.membership
        self._store.set(HOSTS_KEY, json.dumps(membership.hosts).encode())
        self._store.set(generation_key(generation), places_to_json(membership.places))
        self._store.set(NEWEST_KEY, str(generation).encode())
        self.membership = membership
        if last is not None:
            self._end(last, generation)

    def _end(self, last: Membership, generation: int) -> None:
        text = f"generation {generation} of the job has replaced generation {last.generation}"
        self._fail(last, text)
        # Who comes late to it looks at the next one. What is older than that has no reader.
        self._store.set(generation_key(last.generation), places_to_json({}))
        self._store.delete(generation_key(generation - _KEPT_GENERATIONS))
        if last.generation > 0:
            self._store.delete_prefix(f"peers/{last.generation - 1}.")

    def _fail(self, membership: Membership, text: str) -> None:
        started = {Incarnation(membership.generation, 1)}
        for member in membership.members:
            latest = self._store.try_get(latest_key(member.place.rank))
            if latest is not None:
                started.add(Incarnation.parse(latest))
        for incarnation in started:
            if incarnation.generation == membership.generation:
                self._store.add(incarnation.failed_key, text.encode())

    def close(self) -> None:
        """Closes the store, if the job has opened it. Idempotent."""
        self._cleanup.close()

    def __enter__(self: JobT) -> JobT:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class LocalJob(Job):
    """A job whose store is in this process.

    Attributes:
        server: the store.
    """

    def __init__(self, server: StoreServer, secret: bytes) -> None:
        super().__init__(server, StoreAddress(server.address, server.port, secret))
        self.server = server
        self._cleanup.callback(server.close)

    def narrow(self, endpoint: tuple[str, int]) -> None:
        """Keeps one endpoint of the store only, the one that the hosts of the job can reach."""
        self.server.narrow(endpoint)
        self.where = StoreAddress(*endpoint, self.where.secret)


def open_job(
    address: str = _LOOPBACK,
    port: int = 0,
    *,
    further_addresses: Sequence[str] = (),
    secret: bytes | None = None,
) -> LocalJob:
    """Opens a job in this process: makes its secret, and starts its store.

    Args:
        address: of this host, where the store listens; one that all workers reach.
        port: at each address; 0 lets the system choose.
        further_addresses: see :class:`horovod._rendezvous.server.StoreServer`.
        secret: 32 bytes; a new one if None.

    Raises:
        StartError: the store cannot listen there.

    Example:
        >>> with open_job() as job:
        ...     start_processes(job.where)         # each calls horovod._job.join(...)
        ...     while len(job.available) < 4:
        ...         job.next_event(timeout_s=60)
        ...     workers = list(job.available.values())
        ...     job.publish(assign_places(None, workers, 0))   # each gets its Assignment
    """
    secret = make_secret() if secret is None else secret
    return LocalJob(StoreServer(secret, address, port, further_addresses=further_addresses), secret)
