"""The ranks of a job on emulated hosts: starts them, collects what they print, ends them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from horovod._job.job import open_job
from horovod._job.python_path import with_horovod_on_path
from horovod.runner.placing.hosts import Host, Slot, assign
from horovod.runner.placing.plan import (
    JobSettings,
    common_environment,
    membership_of,
    rank_environment,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

# After the first failure the other ranks may still say what they saw of it.
GRACE_S = 5.0
KILL_S = 20.0


@dataclass(frozen=True)
class JobHost:
    """Where ranks run.

    Attributes:
        name, address, interface: of the host in its network.
        entered: a context in which sockets and processes of the calling thread are on the host.
    """

    name: str
    address: str
    interface: str
    entered: Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        codes: the exit code of each rank, negative for a signal.
        lines: what they printed, in the order of arrival, as ``[rank]<stdout>:text``.
    """

    codes: tuple[int, ...]
    lines: tuple[str, ...]

    @property
    def output(self) -> str:
        """All lines as one text."""
        return "\n".join(self.lines)

    def check(self) -> Outcome:
        """Raises RuntimeError with the whole output if a rank failed."""
        if any(self.codes):
            raise RuntimeError(f"exit codes {self.codes}\n{self.output}")
        return self


@dataclass
class _Rank:
    process: subprocess.Popen[str]
    readers: list[threading.Thread] = field(default_factory=list)


class Job:
    """Running ranks; leaving the context ends all of their processes.

    The store listens on the first host. Ranks get the variables that the launcher would give them.

    Args:
        hosts: in the order of their ranks.
        ranks_per_host: at least 1.
        command: what every rank executes.
        env: variables beside those of this process and of the launcher.
        relay: write what the ranks write to stderr, too.
    """

    def __init__(
        self,
        hosts: Sequence[JobHost],
        ranks_per_host: int,
        command: Sequence[str],
        env: Mapping[str, str],
        relay: bool = False,
    ) -> None:
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._ranks: list[_Rank] = []
        self._over = False
        self._relay = relay
        self._cleanup = ExitStack()
        slots = assign(
            [Host(host.name, ranks_per_host) for host in hosts], ranks_per_host * len(hosts)
        )
        try:
            common = self._prepare(hosts, slots, env)
            for slot in slots:
                host = hosts[slot.rank // ranks_per_host]
                self._start(slot, host, command, {**common, **rank_environment(slot)})
        except BaseException:
            self.close()
            raise

    def _prepare(
        self, hosts: Sequence[JobHost], slots: Sequence[Slot], env: Mapping[str, str]
    ) -> dict[str, str]:
        """Makes secret and store; returns the variables that all ranks have in common."""
        directory = self._cleanup.enter_context(tempfile.TemporaryDirectory(prefix="hvd-cluster-"))
        with hosts[0].entered():  # a listener stays where it was made
            job = self._cleanup.enter_context(open_job(hosts[0].address))
        job.publish(membership_of(slots))
        environ = with_horovod_on_path({**os.environ, **env})
        settings = JobSettings((), "", environ, network_interfaces=(hosts[0].interface,))
        return {
            **common_environment(settings, job.where),
            **job.told(directory).variables(),
        }

    def _start(
        self, slot: Slot, host: JobHost, command: Sequence[str], env: Mapping[str, str]
    ) -> None:
        with host.entered():
            process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        rank = _Rank(process)
        self._ranks.append(rank)
        for name, stream in (("stdout", process.stdout), ("stderr", process.stderr)):
            assert stream is not None
            prefix = f"[{slot.rank}]<{name}>:"
            reader = threading.Thread(target=self._read, args=(prefix, stream), daemon=True)
            rank.readers.append(reader)
            reader.start()

    def _read(self, prefix: str, stream: TextIO) -> None:
        with stream:
            for line in stream:
                with self._news:
                    self.lines.append(prefix + line.rstrip("\n"))
                    self._news.notify_all()
                if self._relay:
                    print(self.lines[-1], file=sys.stderr, flush=True)

    @property
    def processes(self) -> list[subprocess.Popen[str]]:
        """Those of the ranks, in their order."""
        return [rank.process for rank in self._ranks]

    def wait_lines(self, pattern: str, count: int, timeout_s: float) -> list[str]:
        """Waits until that many lines match, and returns them."""

        def found() -> list[str]:
            return [line for line in self.lines if re.search(pattern, line)]

        with self._news:
            enough = self._news.wait_for(lambda: len(found()) >= count, timeout_s)
            if not enough:
                raise TimeoutError(f"no {count} lines {pattern!r} among {self.lines}")
            return found()

    def wait(self, deadline_s: float) -> Outcome:
        """Waits until all ranks have ended.

        When one fails, the others have ``GRACE_S`` to end by themselves; what runs after
        ``deadline_s`` is killed.
        """
        deadline = time.monotonic() + deadline_s
        ended = threading.Semaphore(0)
        for rank in self._ranks:
            threading.Thread(target=_announce, args=(rank.process, ended), daemon=True).start()
        for _ in self._ranks:
            if not ended.acquire(timeout=max(0.0, deadline - time.monotonic())):
                break
            if any(rank.process.poll() for rank in self._ranks):
                deadline = min(deadline, time.monotonic() + GRACE_S)
        self._end_processes()
        return Outcome(tuple(rank.process.wait() for rank in self._ranks), tuple(self.lines))

    def _end_processes(self) -> None:
        """Each rank leads a session, so that what it has started ends with it."""
        if self._over:
            return  # the ids may belong to others by now
        self._over = True
        if any(rank.process.poll() is None for rank in self._ranks):
            self._signal(signal.SIGTERM)
            deadline = time.monotonic() + KILL_S
            for rank in self._ranks:
                _wait_until(rank.process, deadline)
        self._signal(signal.SIGKILL)
        for rank in self._ranks:
            rank.process.wait(KILL_S)
            for reader in rank.readers:
                reader.join(KILL_S)

    def _signal(self, signum: signal.Signals) -> None:
        for rank in self._ranks:
            try:
                os.killpg(rank.process.pid, signum)
            except ProcessLookupError:
                continue  # nobody is left of it

    def close(self) -> None:
        """Ends all processes of the job, and the store. Idempotent."""
        self._end_processes()
        self._cleanup.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _announce(process: subprocess.Popen[str], ended: threading.Semaphore) -> None:
    process.wait()
    ended.release()


def _wait_until(process: subprocess.Popen[str], deadline: float) -> None:
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return  # SIGKILL comes next
