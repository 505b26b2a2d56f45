"""Lines of job files on a Ray cluster: each worker is an actor, in which horovodrun is a node.

So ranks start, end and fail there as they do on other hosts. All that Ray does is to find room.
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

import ray
import ray.util

from horovod._job.environment import python_command
from horovod._job.python_path import with_horovod_on_path
from horovod._rendezvous.secret import make_secret
from horovod._settings.config import inherited_environment
from horovod.errors import StartError
from horovod.ray import ray_logger
from horovod.ray.executor import RayExecutor
from horovod.runner.supervision.outcome import FILES_INCOMPLETE, Outcome, stopped_by

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from horovod.runner.experiment.grid import Line
    from horovod.runner.experiment.lines import Launch
    from horovod.runner.output.console import Console
    from horovod.runner.starting.requests import Caller, FixedRequest

START_TIMEOUT_S = 100
_JOIN_S = 10.0
_PR_SET_PDEATHSIG = 1
# What an actor has of its own job, in which horovodrun has no part.
_OF_HOROVOD = re.compile(r"_?HOROVOD_.*")
# Each line has a secret of its own.
_SECRETS = ("HOROVOD_SECRET_KEY", "HOROVOD_SECRET_FILE")
_LOOPBACK = "127.0.0.1"
_STREAMS = ("stdout", "stderr")
_INCOMPLETE = f"horovodrun: {FILES_INCOMPLETE}".encode()


def connect() -> None:
    """Connects this process to the cluster of RAY_ADDRESS, or to one that it starts here.

    Raises:
        StartError: there is none, and none could be started.
    """
    if ray.is_initialized():
        return
    try:
        ray.init(log_to_driver=False, logging_level="warning")
    except Exception as error:
        raise StartError(
            f"there is no Ray cluster to run on: {_last_line(error)}; RAY_ADDRESS says where it is"
        ) from None


def make_launch(workers: int, cpus: float | None, gpus: int) -> Launch:
    """Return a launch that runs each line of a job file in actors, one for each worker.

    Args:
        workers: how many.
        cpus, gpus: of each of them; one CPU if the file says nothing.
    """

    def launch_line(line: Line, request: FixedRequest, caller: Caller) -> Outcome:
        settings, options = request.settings, request.options
        timeout_s = options.start_timeout_s or START_TIMEOUT_S
        executor = RayExecutor(
            RayExecutor.create_settings(placement_group_timeout_s=timeout_s),
            num_workers=workers,
            cpus_per_worker=1 if cpus is None else cpus,
            use_gpu=gpus > 0,
            gpus_per_worker=gpus or None,
        )
        words = ["-np", str(len(request.slots)), "--num-nodes", str(workers)]
        words += ["--start-timeout", f"{timeout_s:g}"]
        if options.output_filename is not None:
            words += ["--output-filename", options.output_filename]
        variables = {
            **{
                name: text
                for name, text in settings.environ.items()
                if _OF_HOROVOD.fullmatch(name) and name not in _SECRETS
            },
            **settings.variables,
            "HOROVOD_GRACE_SECONDS": f"{settings.grace_s:g}",
        }
        node = _Node(words, settings.command, settings.cwd, variables)
        return _Execution(executor, node, caller).run()

    return launch_line


class _Execution:
    """One line, on a thread that Ray may keep waiting."""

    def __init__(self, executor: RayExecutor, node: _Node, caller: Caller) -> None:
        self._executor = executor
        self._node = node
        self._caller = caller
        self._outcome = Outcome(1, "the line was stopped")
        self._is_stopped = threading.Event()

    def run(self) -> Outcome:
        """Waits for the end of all nodes, or for what ends them."""
        done = os.eventfd(0, os.EFD_CLOEXEC)

        def work() -> None:
            try:
                self._outcome = self._execute()
            finally:
                self._executor.shutdown()
                os.eventfd_write(done, 1)

        thread = threading.Thread(target=work, name="horovod-ray-line", daemon=True)
        thread.start()
        interrupts, alarm = self._caller.interrupts, self._caller.alarm
        descriptors = [done]
        descriptors += [] if interrupts is None else [interrupts]
        descriptors += [] if alarm is None else [alarm.descriptor]
        ready, _, _ = select.select(descriptors, [], [])
        if done in ready:
            thread.join()
            os.close(done)
            return self._outcome
        if interrupts is not None and interrupts in ready:
            stopped = stopped_by(os.read(interrupts, 1)[0])
        else:
            assert alarm is not None
            stopped = alarm.cause()
        self._is_stopped.set()
        self._executor.shutdown()  # each horovodrun ends with its actor
        thread.join(_JOIN_S)
        return stopped

    def _execute(self) -> Outcome:
        try:
            self._executor.start()
            if self._is_stopped.is_set():
                return self._outcome
            self._node.address = self._executor.execute_single(lambda _: _free_address())
            ends = self._executor.run(self._node, callbacks=[_printer(self._caller.console)])
        except Exception as error:
            return Outcome(1, f"Ray could not run the line: {_last_line(error)}")
        code = next((code for code, _ in ends if code), 0)
        report = f"a rank on the cluster ended with code {code}" if code else ""
        files_error = next((error for _, error in ends if error), "")
        return Outcome(code, report, files_error=files_error)


def _last_line(error: Exception) -> str:
    """Return the last line of an error of Ray, which a stack may precede."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def _printer(console: Console) -> Any:
    def write(item: Mapping[str, Any]) -> None:
        console.put(item["stream"], item["line"].decode(errors="replace").encode())

    return write


class _Node:
    """The horovodrun in each actor, as a node of the job.

    Args:
        words: its options.
        command: of each rank.
        cwd: the working directory.
        variables: beside those that the actor has.
    """

    def __init__(
        self, words: Sequence[str], command: Sequence[str], cwd: str, variables: Mapping[str, str]
    ) -> None:
        self.address = ""
        self._words = list(words)
        self._command = list(command)
        self._cwd = cwd
        self._variables = dict(variables)
        self._secret = make_secret()

    def __call__(self) -> tuple[int, str]:
        """Run to the end; return the exit code, and why files of the output are not complete."""
        inherited = inherited_environment()
        environ = {
            name: text for name, text in inherited.items() if not _OF_HOROVOD.fullmatch(name)
        }
        if gpus := ray.get_gpu_ids():  # of this worker, not those of all workers of the node
            environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
        place = ["--node-rank", inherited["HOROVOD_RANK"], "--rendezvous", self.address]
        command = [*python_command("horovod.runner.cli"), *self._words, *place, *self._command]
        with _as_file(self._secret) as secret:
            told = {"HOROVOD_SECRET_FILE": f"/proc/self/fd/{secret}"}
            process = subprocess.Popen(
                _dying_with(os.getpid(), command),
                cwd=self._cwd,
                env=with_horovod_on_path({**environ, **self._variables, **told}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[secret],
            )
        files_errors: list[str] = []
        with process:  # closes the pipes
            threads = [
                threading.Thread(target=_copy, args=(name, pipe, files_errors))
                for name, pipe in zip(_STREAMS, (process.stdout, process.stderr), strict=True)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return process.returncode, "".join(files_errors[:1])


@contextmanager
def _as_file(secret: bytes) -> Iterator[int]:
    """Lend a descriptor of a private file with the secret; it is in memory, so none stays behind.

    In the environment of the process it could be read by all that the process starts.
    """
    descriptor = os.memfd_create("horovod-secret", os.MFD_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o600)
        os.write(descriptor, secret)
        yield descriptor
    finally:
        os.close(descriptor)


def _dying_with(pid: int, command: Sequence[str]) -> list[str]:
    """A command that becomes another one, which gets SIGTERM when this process ends."""
    prepare = (
        f"import ctypes, os, sys; ctypes.CDLL(None).prctl({_PR_SET_PDEATHSIG}, {signal.SIGTERM:d});"
        f" os.getppid() == {pid} or sys.exit(1); os.execv(sys.argv[1], sys.argv[1:])"
    )
    return [sys.executable, "-c", prepare, *command]


def _copy(name: str, pipe: IO[bytes], files_errors: list[str]) -> None:
    """Pass lines on, and note what the launcher says of files; lines of ranks begin otherwise."""
    for line in pipe:
        if line.startswith(_INCOMPLETE):
            files_errors.append(line.removeprefix(_INCOMPLETE).decode(errors="replace").strip())
        ray_logger.log({"stream": name, "line": line})


def _free_address() -> str:
    """An address of this node, with a port at which nobody listens."""
    address = str(ray.util.get_node_ip_address())
    if address.startswith("127."):  # the whole cluster is on this machine
        address = _LOOPBACK
    with socket.socket() as listener:
        listener.bind(("", 0))
        return f"{address}:{listener.getsockname()[1]}"
