"""The agent: owns all ranks of one host (``python -m horovod.runner.agent``).

It reads frames on stdin and writes frames on stdout (:mod:`horovod.runner.protocol.frames`), and is
two processes. The *guard* only waits for the *agent* proper, which starts the ranks, relays what
they print and reports how they end. Both are subreapers, so that whichever of the two is killed,
the other one still has every process of the job below it and ends them. The end of stdin (the
launcher died, or ssh was cut) ends the ranks as a STOP frame does.

The agent has one thread: callbacks of an event loop, no lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import horovod
from horovod._job.environment import Assignment
from horovod._rank.cores import computing_cores
from horovod._rendezvous.interfaces import interfaces_of
from horovod._rendezvous.reserved_port import reserve_port
from horovod._rendezvous.secret import write_secret
from horovod._settings.config import inherited_environment
from horovod.errors import StartError
from horovod.runner.agent.launcher_connection import LauncherConnection
from horovod.runner.agent.outbox import Outbox
from horovod.runner.agent.workers import Stream, Worker, explain_start_error, start_worker
from horovod.runner.placing import this_machine, threads
from horovod.runner.placing.plan import interface_environment
from horovod.runner.protocol.agent_job import AgentJob, WorkerJob, store_of
from horovod.runner.protocol.frames import (
    GRACE_S,
    STOP_SOON,
    Decoder,
    Frame,
    FrameError,
    Kind,
    Reached,
    Stop,
)
from horovod.runner.protocol.invitation import Invitation
from horovod.runner.system import descendants, processes
from horovod.runner.system.environment import only_own

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping
    from types import FrameType

GIVE_UP_S = 5.0  # after SIGKILL, on a process that hangs inside the kernel
# A console that takes nothing keeps a rank that shall end from printing for so long; then what it
# prints is dropped.
DROP_AFTER_S = 2.0

# What ranks leave behind may be about to end, as a tee that has not written all.
BACKGROUND_S = 0.3

STOPPED_S = 2.0  # of the agent, without a launcher, before its guard takes over

_READ_BYTES = 256 * 1024
_STDIN = 0


class Agent:
    """Starts the ranks of one host and watches over them until none of their processes is left.

    Args:
        directory: private to this job; holds the secret.
        loop: the event loop to run in.
        console: a descriptor of what the launcher writes to, if it is on this host.
    """

    def __init__(
        self, directory: Path, loop: asyncio.AbstractEventLoop, console: int | None = None
    ) -> None:
        self._directory = directory
        self._loop = loop
        self._console = console
        self._inbox = Decoder()
        self._outbox = Outbox(loop, self._set_paused, self._on_launcher_gone)
        self._workers: dict[int, Worker] = {}  # by pid; those that have not ended
        self._streams: list[Stream] = []
        self._paused = False
        self._dropping = False
        self._drop_timer: asyncio.TimerHandle | None = None
        self._dropped: dict[int, int] = {}  # bytes, by worker
        self._grace_s = GRACE_S
        self._job: AgentJob | None = None
        self._common: dict[str, str] = {}  # the variables of all workers
        self._connection: LauncherConnection | None = None
        self._port_of_master: socket.socket | None = None
        self._cut = False
        self._stopping = False
        self._leftovers_signaled = False
        self._waits_for_background = False
        self._killing_until_s: float | None = None
        self._finished: asyncio.Future[None] = loop.create_future()
        loop.set_exception_handler(self._on_error)

    def run(self) -> None:
        """Runs until the job of this host is over."""
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._loop.add_signal_handler(signum, self._on_signal, signum)
        self._loop.add_signal_handler(signal.SIGCHLD, self._on_child)
        os.set_blocking(_STDIN, False)
        self._loop.add_reader(_STDIN, self._on_stdin)
        self._outbox.send(Kind.READY, payload=f"{os.getpid()} {horovod.__version__}".encode())
        self._loop.run_until_complete(self._finished)

    def _on_signal(self, signum: int) -> None:
        name = signal.Signals(signum).name
        passed_on = signal.SIGINT if signum == signal.SIGINT else signal.SIGTERM
        self.stop(Stop(passed_on, self._grace_s), f"the agent received {name}", passed_on)

    # -- the launcher

    def _on_stdin(self) -> None:
        try:
            data = os.read(_STDIN, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._on_launcher_gone()
            return
        try:
            for frame in self._inbox.feed(data):
                self._obey(frame)
        except FrameError:
            # What it was is not told: it may be a part of the job, with the secret in it.
            self.stop(
                reason="the agent received something other than a job; does a shell profile read "
                "stdin?"
            )

    def _obey(self, frame: Frame) -> None:
        if frame.kind is Kind.JOB:
            if self._job is None and not self._stopping:
                try:
                    self._job = AgentJob.from_json(frame.payload)
                except StartError:
                    raise FrameError("not a job") from None
                self._start(self._job)
        elif frame.kind is Kind.START_WORKER:
            try:
                worker = WorkerJob.from_json(frame.payload)
            except StartError:
                raise FrameError("not a worker") from None
            if self._job is not None and not self._stopping:
                self._start_worker(worker, self._job)
        elif frame.kind is Kind.END_WORKER:
            self._end_worker(frame.worker, Stop.from_bytes(frame.payload))
        elif frame.kind is Kind.INVITATION:
            if self._connection is None:
                try:
                    invitation = Invitation.from_json(frame.payload)
                except StartError:
                    raise FrameError("not an invitation") from None
                self._find_launcher(invitation)
        elif frame.kind is Kind.STOP:
            self.stop(Stop.from_bytes(frame.payload))
        elif frame.kind is Kind.TAKEN:
            self._outbox.taken(int(frame.payload))
        elif frame.kind is Kind.KILL:
            self.stop()
            self._kill()

    def _on_launcher_gone(self) -> None:
        self._loop.remove_reader(_STDIN)
        if self._workers and not self._stopping:
            self._tell_user()
        self.stop()

    def _tell_user(self) -> None:
        """Says why the job ends; nobody else is left to say it."""
        if self._console is None:
            return
        many = "1 rank" if len(self._workers) == 1 else f"{len(self._workers)} ranks"
        text = f"horovodrun: the launcher has died; its agent ends the {many} on this host\n"
        with contextlib.suppress(OSError):
            _, writable, _ = select.select([], [self._console], [], 0)
            if writable:  # nobody may read it
                os.write(self._console, text.encode())

    def _find_launcher(self, invitation: Invitation) -> None:
        wanted = invitation.network_interfaces
        if wanted and not set(wanted).intersection(known := this_machine.network_interfaces()):
            self.stop(
                reason=f"there is no network interface {' or '.join(map(repr, wanted))}; there are "
                f"{', '.join(known)}"
            )
            return
        self._connection = LauncherConnection(
            self._loop,
            invitation,
            on_reached=self._on_reached,
            on_given_up=lambda: self._outbox.send(Kind.TRIED),
            on_cut=self._on_cut,
        )

    def _on_reached(self, index: int, own_address: str) -> None:
        """Tell the launcher, and which port of this host is free for rank 0 if that is here."""
        if self._port_of_master is None:
            with contextlib.suppress(OSError):
                self._port_of_master = reserve_port()
        held = self._port_of_master
        port = 0 if held is None else held.getsockname()[1]
        self._outbox.send(Kind.REACHED, payload=Reached(index, own_address, port).to_bytes())

    def _on_cut(self) -> None:
        self._cut = True
        self._on_launcher_gone()

    def _interfaces(self, job: AgentJob) -> list[str]:
        """Those that lead to the other hosts; none in a job of one machine."""
        if self._connection is None:
            return []
        address, port = store_of(job)
        own = self._connection.keep(address, port)
        if job.network_interfaces:
            known = this_machine.network_interfaces()
            return [name for name in job.network_interfaces if name in known]
        return interfaces_of(own)

    def _watch_launcher(self, pid: int) -> None:
        """Notices the launcher's death also while a fork of it still holds our stdin open."""
        if not hasattr(os, "pidfd_open"):
            return  # the end of stdin has to do
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self._on_launcher_gone()
        except OSError:
            return  # a kernel without pidfd_open
        else:
            self._loop.add_reader(descriptor, self._on_launcher_dead, descriptor)

    def _on_launcher_dead(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        os.close(descriptor)
        self._on_launcher_gone()

    # -- the workers

    def _start(self, job: AgentJob) -> None:
        secret_file = write_secret(self._directory, job.secret)
        self._grace_s = job.grace_s
        if self._port_of_master is not None and all(worker.rank for worker in job.workers):
            self._port_of_master.close()  # rank 0 is on another host
        if job.launcher_pid:
            self._watch_launcher(job.launcher_pid)
        common = {
            **(only_own(inherited_environment()) if job.remote else {}),
            **job.env,
            **interface_environment(self._interfaces(job), job.env),
            **Assignment(secret_file=secret_file).variables(),
        }
        common.update(self._threads(common, max(1, job.slots, len(job.workers))))
        self._common = common
        for worker in job.workers:
            if self._stopping:
                break
            self._start_worker(worker, job)
        self._on_child()

    def _start_worker(self, job: WorkerJob, of: AgentJob) -> None:
        """Starts one worker; if that fails, the launcher decides what becomes of the others."""
        try:
            worker = start_worker(job, of, {**self._common, **job.env})
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            code, reason = explain_start_error(error, job.command, of.cwd)
            self._outbox.send(Kind.NOT_STARTED, job.worker, f"{code} {reason}".encode())
            return
        self._workers[worker.process.pid] = worker
        self._streams += worker.streams
        self._outbox.send(Kind.STARTED, worker.worker, b"%d" % worker.process.pid)
        if not self._paused:
            for stream in worker.streams:
                self._loop.add_reader(_open(stream), self._relay, stream)

    def _end_worker(self, identity: int, how: Stop) -> None:
        """Ends one worker with all of its session; the end of its process is told as any other."""
        for pid, worker in self._workers.items():
            if worker.worker == identity:
                descendants.signal_session(pid, how.signum)
                self._loop.call_later(how.grace_s, self._kill_session, pid, worker)

    def _kill_session(self, pid: int, worker: Worker) -> None:
        """Kills what is left of a worker, unless its pid is now that of another one."""
        if self._workers.get(pid, worker) is worker:
            descendants.signal_session(pid, signal.SIGKILL)

    def _threads(self, env: Mapping[str, str], num_ranks: int) -> dict[str, str]:
        """Return variables that divide this host's cores among its ranks; notify the launcher."""
        num_cores = computing_cores()
        variables = threads.thread_variables(env, num_cores, num_ranks)
        if line := threads.describe(variables, num_cores, num_ranks):
            self._outbox.send(Kind.NOTE, payload=line.encode())
        return variables

    def _relay(self, stream: Stream) -> int:
        """Passes on what can be read at once; returns the number of bytes."""
        if stream.pipe is None:
            return 0
        try:
            data = os.read(stream.pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return 0
        if data:
            self._outbox.relay(stream.kind, stream.worker, data)
        else:
            self._close(stream)
        return len(data)

    def _drain(self, stream: Stream) -> None:
        """Passes on what a process that has ended left in its pipe.

        At most what a pipe holds: a process that inherited the pipe may still be writing.
        """
        left = 1024 * 1024
        while left > 0 and (num_bytes := self._relay(stream)):
            left -= num_bytes

    def _set_paused(self, paused: bool) -> None:
        self._paused, self._dropping = paused, False
        if self._drop_timer is not None:
            self._drop_timer.cancel()
        for stream in self._streams:
            if paused:
                self._loop.remove_reader(_open(stream))
            else:
                self._loop.add_reader(_open(stream), self._relay, stream)
        if self._stopping:
            self._drop_soon()

    def _drop_soon(self) -> None:
        """Lets ranks end that wait for a console which takes nothing."""
        if self._paused:
            self._drop_timer = self._loop.call_later(DROP_AFTER_S, self._begin_to_drop)

    def _begin_to_drop(self) -> None:
        self._dropping = True
        for stream in self._streams:
            self._loop.add_reader(_open(stream), self._drop, stream)

    def _drop(self, stream: Stream) -> None:
        try:
            data = os.read(_open(stream).fileno(), _READ_BYTES)
        except BlockingIOError:
            return
        if data:
            self._dropped[stream.worker] = self._dropped.get(stream.worker, 0) + len(data)
        else:
            self._close(stream)

    def _close(self, stream: Stream) -> None:
        pipe = _open(stream)
        self._loop.remove_reader(pipe)
        pipe.close()
        stream.pipe = None
        self._streams.remove(stream)

    def _on_child(self) -> None:
        ended, any_left = processes.reap()
        for pid, code in ended.items():
            worker = self._workers.pop(pid, None)
            if worker is None:
                continue  # an orphan that a worker left to us
            worker.process.returncode = code
            for stream in worker.streams:
                self._drain(stream)
            self._outbox.send(Kind.EXITED, worker.worker, b"%d" % code)
            if self._stays:
                self._end_leftovers(pid, worker)
        if not any_left:
            if self._stopping or (self._job is not None and not self._stays):
                self._finish()
        elif not self._workers and self._job is not None and not self._stays:
            self._on_background()

    def _on_background(self) -> None:
        """Ends what the workers left running, after a moment in which it may end by itself."""
        if self._stopping:
            if not self._leftovers_signaled:
                self._signal(signal.SIGTERM)
        elif not self._waits_for_background:
            self._waits_for_background = True
            self._loop.call_later(BACKGROUND_S, self._stop_background)

    def _stop_background(self) -> None:
        if self._stopping or self._finished.done():
            return
        if found := descendants.describe_descendants():
            self._outbox.send(Kind.LEFT_RUNNING, payload=", ".join(found).encode())
        self.stop()
        if not self._leftovers_signaled:
            self._signal(signal.SIGTERM)

    @property
    def _stays(self) -> bool:
        """Whether further workers may come when none is left."""
        return self._job is not None and self._job.stays and not self._stopping

    def _end_leftovers(self, pid: int, worker: Worker) -> None:
        """Ends what one worker left running in the background, while others go on."""
        descendants.signal_session(pid, signal.SIGTERM)
        self._loop.call_later(GRACE_S, self._kill_session, pid, worker)

    # -- the end

    def stop(self, how: Stop = STOP_SOON, reason: str = "", received: int = 0) -> None:
        """Sends a signal to all processes of the job, and SIGKILL after the grace period.

        Args:
            how: which signal, and how long the processes may take.
            reason: told to the launcher, which did not ask for it; empty if it did.
            received: the signal that is the reason; told to the launcher, too.
        """
        if self._stopping:
            return
        self._stopping = True
        if reason:
            self._outbox.send(Kind.STOPPING, payload=f"{received:d} {reason}".encode())
        self._drop_soon()
        self._signal(how.signum)
        self._loop.call_later(how.grace_s, self._kill)
        self._loop.call_soon(self._on_child)

    def _signal(self, signum: int) -> None:
        """Signal the workers' process groups, as a terminal does; SIGTERM reaches daemons, too."""
        for pid in self._workers:
            with contextlib.suppress(PermissionError):  # it changed its user
                os.killpg(pid, signum)
        self._leftovers_signaled = signum == signal.SIGTERM
        if self._leftovers_signaled:
            # Those that left their group, or that outlived its leader.
            descendants.signal_others(signal.SIGTERM, self._workers)

    def _kill(self) -> None:
        if self._finished.done():
            return
        now_s = self._loop.time()
        if self._killing_until_s is None:
            self._killing_until_s = now_s + GIVE_UP_S
        elif now_s >= self._killing_until_s:
            self._finish()
            return
        descendants.signal_descendants(signal.SIGKILL)
        self._loop.call_later(descendants.KILL_INTERVAL_S, self._kill)

    def _finish(self) -> None:
        """Ends the agent once the launcher has taken what is left to say, or is gone."""
        if self._finished.done():
            return
        for stream in list(self._streams):
            self._drain(stream)
        self._stopping = True
        shutil.rmtree(self._directory, ignore_errors=True)
        for worker, num_bytes in self._dropped.items():
            self._outbox.send(Kind.DROPPED, worker, b"%d" % num_bytes)
        self._outbox.send(Kind.DONE)
        if self._cut:
            self._leave()  # sshd holds the pipe open for hours, and nobody reads it
        else:
            self._outbox.when_empty(self._leave)

    def _leave(self) -> None:
        if not self._finished.done():
            self._finished.set_result(None)

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        self.stop(reason=f"the agent failed: {context.get('exception') or context['message']}")


def _open(stream: Stream) -> IO[bytes]:
    assert stream.pipe is not None
    return stream.pipe


def main() -> int:
    """Forks into guard and agent; both return only when the job of this host is over."""
    processes.forbid_core_dumps()
    processes.become_subreaper()
    directory = Path(tempfile.mkdtemp(prefix="horovod-"))
    guard_pid = os.getpid()
    agent_pid = os.fork()
    if agent_pid == 0:
        processes.become_subreaper()
        processes.die_with_parent(signal.SIGTERM, guard_pid)
        console = int(sys.argv[1]) if len(sys.argv) > 1 else None
        Agent(directory, asyncio.new_event_loop(), console).run()
        return 0
    return _guard(agent_pid, directory)


def _guard(agent_pid: int, directory: Path) -> int:
    _watch_over(agent_pid, os.getppid())
    _, status = os.waitpid(agent_pid, 0)
    descendants.kill_descendants(GIVE_UP_S)
    shutil.rmtree(directory, ignore_errors=True)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _watch_over(agent_pid: int, launcher_pid: int) -> None:
    """Kills an agent that was stopped by a signal, once the launcher is gone, too."""

    def on_parent_end(signum: int, frame: FrameType | None) -> None:
        # The signal comes also when only the thread has ended that started this process.
        if signum == signal.SIGALRM and descendants.is_stopped(agent_pid):
            os.kill(agent_pid, signal.SIGKILL)
        elif os.getppid() != launcher_pid:
            signal.setitimer(signal.ITIMER_REAL, STOPPED_S)

    for signum in (signal.SIGUSR1, signal.SIGALRM):
        signal.signal(signum, on_parent_end)
    processes.die_with_parent(signal.SIGUSR1, launcher_pid)
