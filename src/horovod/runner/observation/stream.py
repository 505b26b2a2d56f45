"""Serves what a job does to whoever of the same user watches, from a thread of the launcher.

While nobody watches, the thread sleeps, and the ranks wait for a key of the store. The loop of the
launcher never waits for a viewer: viewers are processes of their own, and get the newest view when
they have taken the last one.
"""

from __future__ import annotations

import os
import selectors
import shlex
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod._rendezvous.waits import OBSERVE_KEY, POSSIBLE_KEY
from horovod.errors import StartError
from horovod.runner.observation.door import is_of_this_user, open_door
from horovod.runner.observation.news import JobNews
from horovod.runner.observation.subscriber import Subscriber, encode

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Sequence

    from horovod.runner.observation.observation import Observation
    from horovod.runner.observation.records import JobView
    from horovod.runner.observation.watched import WatchedJob

# Events appear at once, but not more often than this.
_LEAST_GAP_S = 0.1
_JOIN_S = 5.0
_MOST_VIEWERS = 32
_FAREWELL_S = 1.0


class JobStream:
    """Follows one job.

    Args:
        job: with its store; it may change its generation.
        command: what the ranks run.
        watchers: called with each view, on the thread of the stream; if there is one, the job is
            watched from its beginning.
        pid: of the process by which users name the job; None for this one.
        elsewhere: where the output of a rank is that the stream does not get.

    Attributes:
        key: for ``horovodrun dashboard``; empty if no socket could be opened.
        news: takes what the launcher learns.
    """

    def __init__(
        self,
        job: WatchedJob,
        command: Sequence[str],
        watchers: Sequence[Callable[[JobView], object]] = (),
        *,
        pid: int | None = None,
        elsewhere: str = "",
    ) -> None:
        self._job = job
        self._command = shlex.join(command)[:500]
        self._watchers = tuple(watchers)
        self._pid = pid
        self._elsewhere = elsewhere
        self._began_at = time.time()
        self._lock = threading.Lock()
        # -1 once the thread has ended: another file may have its number then.
        self._wakeups = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._subscribers: list[Subscriber] = []
        self._is_over = threading.Event()
        self._is_observing = False
        self._observation: Observation | None = None
        self._last: JobView | None = None
        self._looked_at, self._due_at = 0.0, 0.0
        self._ended = ""
        self.key = ""
        self.news = JobNews(self._wake)

    @contextmanager
    def using(self) -> Iterator[None]:
        """Serve inside of the block; then send the last view."""
        self._job.store.set(POSSIBLE_KEY, b"")
        door = self._open()
        thread = threading.Thread(target=self._run, args=(door,), name="horovod-stream")
        thread.daemon = True
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            self._wake()
            thread.join(_JOIN_S)

    def end(self, text: str) -> None:
        """Note how the job ends; callable from any thread."""
        self._ended = text or "the job has ended"
        self.news.add("end", self._ended)

    def _open(self) -> socket.socket | None:
        try:
            door, self.key = open_door(self._pid)
        except OSError:  # no descriptor is left: the job runs without viewers
            return None
        return door

    def _wake(self) -> None:
        with self._lock:
            if self._wakeups >= 0:
                os.eventfd_write(self._wakeups, 1)

    # -- the thread

    def _run(self, door: socket.socket | None) -> None:
        self._selector.register(self._wakeups, selectors.EVENT_READ)
        if door is not None:
            door.setblocking(False)
            self._selector.register(door, selectors.EVENT_READ)
        try:
            with suppress(StartError):  # the store was closed
                while not self._is_over.is_set():
                    self._wait(door)
                    self._look()
            self._part()
        finally:
            for each in self._subscribers:
                each.close()
            self._selector.close()
            if door is not None:
                door.close()
            with self._lock:
                os.close(self._wakeups)
                self._wakeups = -1

    @property
    def _is_watched(self) -> bool:
        return bool(self._subscribers or self._watchers)

    def _wait(self, door: socket.socket | None) -> None:
        limit_s = None
        if self._is_watched:
            limit_s = max(0.0, self._due_at - time.monotonic())
        for key, events in self._selector.select(limit_s):
            if key.fileobj is door and door is not None:
                self._welcome(door)
            elif isinstance(key.fileobj, Subscriber):
                self._serve(key.fileobj, events)
            else:
                with suppress(BlockingIOError):
                    os.eventfd_read(self._wakeups)
                self._due_at = min(self._due_at, self._looked_at + _LEAST_GAP_S)
        for each in self._subscribers:
            if each.is_open:
                events = selectors.EVENT_READ
                events |= selectors.EVENT_WRITE if each.wants_to_write else 0
                self._selector.modify(each, events)

    def _welcome(self, door: socket.socket) -> None:
        try:
            sock, _ = door.accept()
        except OSError:  # no descriptor is left now, or the viewer has gone
            self._is_over.wait(_LEAST_GAP_S)
            return
        if not is_of_this_user(sock) or len(self._subscribers) >= _MOST_VIEWERS:
            sock.close()
            return
        subscriber = Subscriber(sock)
        self._selector.register(subscriber, selectors.EVENT_READ)
        self._subscribers.append(subscriber)
        self._due_at = 0.0

    def _serve(self, subscriber: Subscriber, events: int) -> None:
        if events & selectors.EVENT_READ:
            for request in subscriber.read():
                self._answer(subscriber, request)
        if events & selectors.EVENT_WRITE:
            subscriber.write()
        if not subscriber.is_open:
            self._drop(subscriber)

    def _drop(self, subscriber: Subscriber) -> None:
        self._selector.unregister(subscriber)
        self._subscribers.remove(subscriber)

    def _answer(self, subscriber: Subscriber, request: dict[str, object]) -> None:
        match request.get("do"):
            case "output":
                rank = request.get("rank")
                if isinstance(rank, int):
                    text = self.news.output_of(rank) or self._elsewhere
                    subscriber.answer({"type": "output", "rank": rank, "text": text})
            case "stacks" | "trace":
                observation = self._observe()
                observation.questions.ask(request, subscriber, observation.interval_s)

    # -- views

    def _look(self) -> None:
        now = time.monotonic()
        if self._is_watched != self._is_observing:
            self._is_observing = self._is_watched
            if self._is_observing:
                self._observe().begin()
            else:
                self._job.store.delete_prefix(OBSERVE_KEY)
        if not self._is_observing or now < self._due_at:
            return
        observation = self._observe()
        observation.follow()
        observation.questions.look()
        view = observation.view(now, self._ended)
        self._looked_at, self._due_at = now, now + observation.look_again_in_s()
        self._show(view)

    def _observe(self) -> Observation:
        if self._observation is None:
            # Most jobs are never watched, and are to start soon.
            from horovod.runner.observation.observation import Observation

            what = self.key, self._command, self._began_at
            self._observation = Observation(self._job, self.news, *what)
        return self._observation

    def _show(self, view: JobView) -> None:
        self._last = view
        for watcher in self._watchers:
            watcher(view)
        if self._subscribers:
            text = encode({"type": "view", **view.to_data()})
            for subscriber in list(self._subscribers):
                subscriber.show(text)
                if not subscriber.is_open:
                    self._drop(subscriber)

    def _part(self) -> None:
        """Send the last view to those who still take it."""
        if not self._is_watched:
            return
        self._ended = self._ended or "the job has ended"
        try:
            self._show(self._observe().view(time.monotonic(), self._ended))
        except StartError:  # the store was closed before
            if self._last is not None:
                self._show(replace(self._last, number=self._last.number + 1, ended=self._ended))
        deadline = time.monotonic() + _FAREWELL_S
        while time.monotonic() < deadline:
            if not any(each.is_open and each.wants_to_write for each in self._subscribers):
                break
            self._wait_to_write(deadline)

    def _wait_to_write(self, deadline: float) -> None:
        with selectors.DefaultSelector() as selector:
            for each in self._subscribers:
                if each.is_open and each.wants_to_write:
                    selector.register(each, selectors.EVENT_WRITE)
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                assert isinstance(key.fileobj, Subscriber)
                key.fileobj.write()
