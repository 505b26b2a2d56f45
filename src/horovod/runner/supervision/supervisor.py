"""The launcher's loop: events come in, a policy decides, an executor carries out its commands.

One thread, one selector, no polling: the loop sleeps until an executor's descriptor, a signal or
another thread wakes it, or a deadline passes.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from horovod._base.fast_dataclass import dataclass
from horovod.runner.supervision import events
from horovod.runner.supervision.outcome import Outcome
from horovod.runner.supervision.policy import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from horovod.runner.supervision.commands import Command
    from horovod.runner.supervision.events import Event
    from horovod.runner.supervision.news import News
    from horovod.runner.supervision.policy import Decision, Policy


class Executor(Protocol):
    """Carries out commands with agents, actors or whatever else runs workers."""

    def begin(self, selector: selectors.BaseSelector, report: Callable[[Event], None]) -> None:
        """Get ready for commands.

        Args:
            selector: watches descriptors of the executor; the data of each key is called with its
                file object when that is ready.
            report: takes what happens.
        """
        ...

    def execute(self, command: Command) -> None:
        """Carry out a command; do not wait for what follows."""
        ...

    def is_busy(self) -> bool:
        """Return whether a process of the job may be left."""
        ...

    def wait_s(self) -> float | None:
        """Return for how long at most the loop may sleep; None for any time."""
        ...

    def finish(self, outcome: Outcome, interrupts: int | None) -> Outcome:
        """Complete what is left to do, such as output, when no process is left.

        Args:
            outcome: how the job ended.
            interrupts: a descriptor that becomes readable when the user wants no further wait.

        Returns:
            The outcome, with all that the executor knows of it.
        """
        ...

    def close(self) -> None:
        """Release everything, also after an exception."""
        ...


@dataclass(frozen=True)
class Alarm:
    """Something elsewhere that ends the job.

    Attributes:
        descriptor: becomes readable when it happens; nothing is read from it.
        cause: returns then what happened.
    """

    descriptor: int
    cause: Callable[[], Outcome]


@dataclass(frozen=True)
class Outside:
    """Events that reach a job from outside.

    Attributes:
        interrupts: descriptor on which the number of a signal arrives as one byte; None if the
            caller lets exceptions such as KeyboardInterrupt end the job.
        wakeups: descriptor that becomes readable when a handler of the caller has to run.
        alarm: ends the job when something elsewhere does; None if nothing can.
        news: events of other threads; None if there are none.
    """

    interrupts: int | None = None
    wakeups: int | None = None
    alarm: Alarm | None = None
    news: News | None = None


class Supervisor:
    """Runs one job from start to end in the thread that calls :meth:`run`.

    Args:
        policy: decides.
        executor: does what the policy decides, and reports what happens.
        outside: what else can reach the job.
        log: takes one line about what happens; for ``--verbose``.
    """

    def __init__(
        self,
        policy: Policy,
        executor: Executor,
        outside: Outside | None = None,
        log: Callable[[str], object] = lambda line: None,
    ) -> None:
        self._policy = policy
        self._executor = executor
        self._outside = outside or Outside()
        self._log = log
        self._selector = selectors.DefaultSelector()
        self._state = State()
        self._events: deque[Event] = deque()
        self._is_deciding = False

    def run(self) -> Outcome:
        """Run the job; return when no process of it is left, or 10 s after a failure.

        Raises:
            BaseException: what a signal handler of the caller raised; the job has been ended.
        """
        began_at = time.monotonic()
        try:
            self._listen()
            self._executor.begin(self._selector, self.take)
            self._follow(self._policy.begin(began_at))
            outcome = self._run_to_end()
        except BaseException as error:
            self._end_after_exception(error)
            raise
        finally:
            self._executor.close()
            self._selector.close()
        if outcome.exit_code == 0:
            self._log(f"the job ran for {time.monotonic() - began_at:.1f} s")
        return outcome

    def take(self, event: Event) -> None:
        """Let the policy decide on an event, after the commands of the decision under way."""
        if self._is_deciding:
            self._events.append(event)
        else:
            self._follow(self._policy.decide(self._state, event))

    def _follow(self, decision: Decision) -> None:
        """Carry out a decision, and those on events that its commands cause."""
        self._is_deciding = True
        try:
            self._carry_out(decision)
            while self._events:
                self._carry_out(self._policy.decide(self._state, self._events.popleft()))
        finally:
            self._is_deciding = False

    def _carry_out(self, decision: Decision) -> None:
        self._state = decision.state
        if decision.reason:
            self._log(decision.reason)
        for command in decision.commands:
            self._executor.execute(command)

    def _run_to_end(self) -> Outcome:
        while self._executor.is_busy() or self._state.awaits_hosts:
            self._wait()
        self.take(events.HostsGone(time.monotonic()))
        outcome = self._state.outcome or Outcome(1, "the launcher lost track of the job")
        return self._executor.finish(outcome, self._outside.interrupts)

    def _wait(self) -> None:
        """Sleep until something happens, and take it in."""
        limits_s = [self._executor.wait_s()]
        if self._state.deadline_at is not None:
            limits_s.append(max(0.0, self._state.deadline_at - time.monotonic()))
        limit_s = min((limit_s for limit_s in limits_s if limit_s is not None), default=None)
        for key, _ in self._selector.select(limit_s):
            key.data(key.fileobj)
        now = time.monotonic()
        if self._state.deadline_at is not None and now >= self._state.deadline_at:
            self.take(events.Deadline(now))

    def _end_after_exception(self, error: BaseException) -> None:
        """End the job; a second exception, from a second Ctrl-C, makes it quick."""
        signum = 0
        if isinstance(error, KeyboardInterrupt):
            signum = signal.SIGINT
        elif isinstance(error, SystemExit):  # as handlers of SIGTERM raise it
            signum = signal.SIGTERM
        try:
            self.take(events.EndAsked(time.monotonic(), Outcome(1, stop_signal=signum)))
            self._run_to_end()
        except BaseException:
            self.take(events.KillAsked(time.monotonic()))
            while self._executor.is_busy():
                self._wait()

    # -- what wakes the loop from outside

    def _listen(self) -> None:
        outside = self._outside
        alarm = None if outside.alarm is None else outside.alarm.descriptor
        handlers: list[tuple[int | News | None, Callable[..., object]]] = [
            (outside.interrupts, self._on_interrupt),
            (outside.wakeups, lambda wakeups: os.read(wakeups, 64)),  # its handler has run
            (alarm, self._on_alarm),
            (outside.news, self._on_news),
        ]
        for source, handler in handlers:
            if source is not None:
                self._selector.register(source, selectors.EVENT_READ, handler)

    def _on_interrupt(self, interrupts: int) -> None:
        self.take(events.Signal(time.monotonic(), os.read(interrupts, 1)[0]))

    def _on_alarm(self, descriptor: int) -> None:
        assert self._outside.alarm is not None
        self._selector.unregister(descriptor)
        self.take(events.EndAsked(time.monotonic(), self._outside.alarm.cause()))

    def _on_news(self, news: News) -> None:
        for event in news.take():
            self.take(event)
