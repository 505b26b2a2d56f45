"""A worker whose place changes while it trains, and how it follows its job."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod._job.place import Place
from horovod._job.records import beat_s_of, identities_in, lost_key
from horovod._job.worker import Dismissed, join_as
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod._job.environment import Assignment
    from horovod._rendezvous.store import StoreClient

_logger = logging.getLogger(__name__)


class ElasticWorker:
    """A process's membership in its elastic job; it joins as soon as this is made.

    Args:
        told: the store, the host, the slot, and the limits of the job.
        on_loss: takes a generation that has lost a member, and why, from a thread; called some
            seconds after that became known, as its members usually notice by themselves.

    Attributes:
        told: see above.
        generation: of its last place; -1 before the first.
        newest: the newest generation of which it has heard.
        leaving: why it wants to leave; empty if it does not.

    Raises:
        UsageError, StartError: see :func:`horovod._job.worker.join_as`.
    """

    def __init__(
        self, told: Assignment, on_loss: Callable[[int, str], object] = lambda *_: None
    ) -> None:
        self.told = told
        self._on_loss = on_loss
        self._lost = -1
        self._has_run = False
        self.generation = -1
        self.newest = -1
        self.leaving = ""
        self._after = -1
        self._stands_since_s: float | None = None
        self._is_waiting = False
        self._watches = False
        self._asking = threading.Lock()
        self._has_asked = False
        self._members: frozenset[str] = frozenset()
        self._joined = join_as(told, ready=False)

    @property
    def identity(self) -> str:
        """Names this process and no other of the job, ever."""
        return self._joined.identity

    def provisional(self) -> Assignment | None:
        """The place of a newcomer while the others train without it: as one more rank.

        Its local rank is its slot, which stays when it gets a real place beside the others.

        Returns:
            What the settings of this process may be made of; None if the job has not begun yet.

        Raises:
            StartError: the store was lost.
        """
        newest = self._joined.places()
        while newest is not None and not identities_in(newest):  # replaced while it was asked for
            newest = self._joined.places()
        if newest is None:
            return None
        rank, slot = len(identities_in(newest)), self.told.slot
        size = max(rank, slot) + 1
        place = Place(rank=rank, size=size, local_rank=slot, local_size=slot + 1)
        return self._assignment(place)

    def await_place(self) -> Assignment:
        """Tells the job that it is ready, and waits for a place; the last one if that still counts.

        Raises:
            StartError: there was none within the elastic timeout, or the store was lost.
            Dismissed: the job goes on without this worker, or this worker wants to leave.
        """
        self._is_waiting = True  # from now on, leaving ends the wait
        try:
            if self.leaving:
                self.leave(self.leaving)
                raise Dismissed(self.leaving)
            self._watch()
            self._joined.ready()
            place = self._await(max(self._after, self.generation - 1))
        except StartError as error:
            if self.leaving:
                raise Dismissed(self.leaving) from error
            raise
        except Dismissed as dismissed:
            _logger.info("worker %s takes part no longer: %s", self.identity, dismissed)
            raise
        finally:
            self._is_waiting = False
        self.generation = place.generation
        self.newest = max(self.newest, place.generation)
        self._members = identities_in(self._joined.places(place.generation) or b"{}")
        return self._assignment(place)

    def await_others(self, rank: int) -> None:
        """Waits until those who train enter the generation of a newcomer, however long it takes.

        Args:
            rank: of this worker there. Rank 0 is one of those who train.

        Raises:
            StartError: this worker has left, or the store was lost.
            Dismissed: the job goes on without this worker, or this worker wants to leave.
        """
        if self._has_run or self.generation == 0 or rank == 0:
            return
        self._is_waiting = True
        try:
            self._joined.await_entry(self.generation)
        except StartError as error:
            if self.leaving:
                raise Dismissed(self.leaving) from error
            raise
        finally:
            self._is_waiting = False

    def _await(self, after: int) -> Place:
        """The next place; who has not trained yet waits for it as long as the others train.

        It may have had a place that came to nothing, as when the others were about to end.
        """
        began_with_all = self._has_run or self.generation == 0
        while True:
            try:
                place = self._joined.await_place(after, self.told.elastic_timeout_s).place
            except StartError:
                if self.leaving or began_with_all or self._joined.newest() < 0:
                    raise
            else:
                assert place is not None
                return place

    def _watch(self) -> None:
        """From before its first place on: a worker that is silent then holds up the others, too."""
        if not self._watches:
            self._watches = True
            beat_s = beat_s_of(self.told.worker_timeout_s)
            self._joined.on_change(self._joined.newest(), self._hear, beat_s, self._look_for_loss)

    def expect_change(self) -> None:
        """The next place is one of a later generation."""
        self._after = self.generation
        if self._stands_since_s is None:
            self._stands_since_s = time.monotonic()

    def runs(self) -> None:
        """Tells the job that this worker is connected to all others of its generation.

        Raises:
            StartError: the store was lost.
        """
        self._has_run = True
        since_s, self._stands_since_s = self._stands_since_s, None
        stood_s = 0.0 if since_s is None else time.monotonic() - since_s
        self._joined.tell_running(self.generation, stood_s)

    def check_store(self) -> None:
        """Fails if nobody can tell of changes any more.

        Raises:
            StartError: the store was lost.
        """
        if self._joined.store_error:
            raise StartError(
                f"worker {self.identity} cannot go on, as whoever started its job is gone: "
                f"{self._joined.store_error}"
            )

    def fail(self, text: str, replayed: int = 0) -> None:
        """Tells the job that its generation has failed here, so that another one must come.

        Args:
            text: why.
            replayed: how many samples all ranks had done since their last commit.

        Raises:
            StartError: the store was lost.
        """
        self.expect_change()
        self._joined.tell_reset(self.generation, text, replayed)

    def has_newcomers(self, generation: int) -> bool:
        """Whether a generation has members that its own has not; True if that is unknown.

        Raises:
            StartError: the store was lost.
        """
        # Either is empty if it was replaced before this worker looked.
        members = identities_in(self._joined.places(generation) or b"{}")
        return not members or not members <= self._members

    def leave_soon(self, text: str) -> None:
        """Lets this worker leave where all ranks look for changes next; at once if it waits.

        Returns at once, so that a signal's handler may call it.
        """
        if not self.leaving:
            self.leaving = text
            threading.Thread(target=self._ask_to_leave, name="horovod-leave", daemon=True).start()

    def leave(self, text: str) -> None:
        """Takes leave of the job. Idempotent."""
        with suppress(StartError):
            self._ask()  # the thread that asks may be late, and then the end looks like success
        self._joined.leave(text)

    def _ask_to_leave(self) -> None:
        with suppress(StartError):  # without a store there is nobody to ask
            self._ask()
            if self._is_waiting:
                self.leave(self.leaving)

    def _ask(self) -> None:
        with self._asking:
            if self.leaving and not self._has_asked:
                self._has_asked = True
                self._joined.tell_leaving(self.leaving)

    def _look_for_loss(self, store: StoreClient) -> None:
        generation = self.generation
        text = store.try_get(lost_key(generation)) if generation >= 0 else None
        if text is not None and self._lost == generation:  # its engine had its time to notice
            self._on_loss(generation, text.decode(errors="replace"))
        self._lost = -1 if text is None else generation

    def _hear(self, generation: int) -> None:
        _logger.debug("worker %s hears of generation %d", self.identity, generation)
        self.newest = max(self.newest, generation)

    def _assignment(self, place: Place) -> Assignment:
        store = self._joined.assignment(place).store
        return replace(self.told, store=store, place=place, identity=self.identity)
