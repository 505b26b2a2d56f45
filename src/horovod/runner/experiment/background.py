"""Experiments that run in the background, and what can be asked of them."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]

from horovod._base import files
from horovod.errors import UsageError
from horovod.runner.experiment import record
from horovod.runner.experiment.job_file import parse_job_file
from horovod.runner.experiment.trusted import read_trusted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import TextIO

    from horovod.runner.experiment.job_file import Experiment
    from horovod.runner.experiment.record import Record

# Longer than ranks have to end after a signal, by default.
KILL_PATIENCE_S = 60.0


def detach(folder: Path, prepare: Callable[[], object]) -> bool:
    """Goes on in a process of its own, without a terminal, whose output is a file in ``folder``.

    Args:
        folder: of the experiment.
        prepare: called in the new process before this one hears of it.

    Returns:
        Whether this is that process; the other one has nothing more to do.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        console = files.open_to_append(folder / record.CONSOLE)
    except OSError as error:
        raise record.unwritable(folder / record.CONSOLE, error) from None
    sys.stdout.flush()
    sys.stderr.flush()
    read_end, write_end = os.pipe()
    if os.fork() != 0:
        for each in (console, write_end):
            os.close(each)
        os.read(read_end, 1)  # ends when the other process has closed its end, or has ended
        os.close(read_end)
        return False
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (console, 1), (console, 2)):
        os.dup2(source, target)
    for each in (null, console, read_end):
        os.close(each)
    prepare()
    os.close(write_end)
    return True


def resumed(folder: Path) -> Experiment:
    """The job file of an experiment that was begun, as it was then.

    Raises:
        UsageError: there is no such experiment, or it still runs.
    """
    known = record.read(folder)
    if known.is_running():
        raise UsageError(
            f"experiment {known.number} is still running, as process {known.pid}: "
            f"'horovodrun experiment kill {known.number}' ends it"
        )
    return job_file_of(known)


def job_file_of(known: Record) -> Experiment:
    """The copy of its job file, which only this user may have written.

    Raises:
        UsageError: it is not to be trusted, or something is wrong with it.
    """
    path = known.folder / record.JOB_FILE
    try:
        return parse_job_file(read_trusted(path), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the job file {path}: {error}") from None


def status(root: Path, name: str | None, stdout: TextIO) -> int:
    """Prints the experiments of a project, or the runs of one.

    Raises:
        UsageError: there is no such experiment.
    """
    if name is not None:
        known = record.read(root / name)
        metrics = job_file_of(known).file.train.metrics
        lines = record.table(known.run_records(is_running=known.may_run()), metrics)
    else:
        rows = [("experiment", "state", "runs")]
        known_here, refused = record.all_and_refused(root)
        for each in known_here:
            is_running = each.may_run()
            states = [run.state for run in each.run_records(is_running=is_running)]
            done = f"{states.count('finished')} of {len(states)} finished"
            rows.append((str(each.number), _state(states, is_running=is_running), done))
        lines = [*record.aligned(rows), *refused]
    print("\n".join(lines), file=stdout)
    return 0


def _state(states: list[str], *, is_running: bool) -> str:
    """Return one state for several runs. Pure."""
    if is_running:
        return "running"
    for state in ("killed", "lost", "failed"):
        if state in states:
            return state
    return "lost" if "pending" in states else "finished"


def kill(root: Path, name: str, stdout: TextIO) -> int:
    """Ends an experiment, and waits until it has ended.

    Raises:
        UsageError: there is none, it is on another host, or does not end.
    """
    known = record.read(root / name)
    if not known.is_running():
        print(f"experiment {known.number} is not running", file=stdout)
        return 0
    process = psutil.Process(known.pid)
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(KILL_PATIENCE_S)
    except psutil.TimeoutExpired:
        raise UsageError(
            f"experiment {known.number} (process {known.pid}) has not ended within "
            f"{KILL_PATIENCE_S:g} s: its ranks still have time to end (--grace)"
        ) from None
    print(f"experiment {known.number} was killed", file=stdout)
    return 0
