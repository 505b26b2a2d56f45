"""``horovodrun``: starts a command once per rank, or tells what would become of it.

Exit codes: 0 if all ranks ended with 0; that of the rank that failed first; 128 + number if that
rank was killed by a signal, or the launcher was stopped by one; 126 or 127 if the command cannot be
executed or found; 2 for a wrong command line; 1 for anything else.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import horovod
from horovod.config import inherited_environment
from horovod.errors import StartError, UsageError
from horovod.runner.controller import Starter, Surroundings, choose, request_of
from horovod.runner.flags import variables_of
from horovod.runner.hosts import Host, assign, parse_hostfile, parse_hosts
from horovod.runner.launch import LaunchOptions, launch, say
from horovod.runner.options import parse
from horovod.runner.plan import JobSettings
from horovod.runner.ssh import SshOptions
from horovod.runner.startup import StartWatch

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType

    from horovod.runner.hosts import Slot
    from horovod.runner.job import Outcome

DEFAULT_CHECK_TIMEOUT_S = 30.0

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(words: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Runs ``horovodrun``.

    Args:
        words: the command line without the program's name; that of this process if None.
        environ: the variables that the ranks inherit; those of this process if None.

    Returns:
        The exit code.
    """
    words = sys.argv[1:] if words is None else words
    environ = inherited_environment() if environ is None else environ
    try:
        return _run(words, environ)
    except UsageError as error:
        say(sys.stderr, str(error))
        return 2
    except StartError as error:
        say(sys.stderr, str(error))
        return 1


def _run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    if words and words[0] == "doctor":
        return _doctor(words[1:], environ)
    options, command = parse(words)
    if options.version:
        print(horovod.__version__)
        return 0
    if options.check_build:
        return _check_build(options)
    if options.check:
        return _check(options, environ)
    if options.num_proc is None:
        raise UsageError("-np is missing: say how many ranks to start")
    if not command:
        raise UsageError("no command was given: write it after the options")
    slots = assign(_hosts(options), options.num_proc)
    settings = _settings(options, command, environ)
    if options.dry_run:
        from horovod.runner.dry_run import describe_job

        print(describe_job(slots, settings))
        return 0
    outcome = _launch(options, slots, settings)
    for text in (outcome.summary, outcome.message):  # the cause comes last, where it is seen
        if text:
            say(sys.stderr, text)
    if outcome.exit_code == 128 + signal.SIGPIPE:
        _drop_stdout()
    return outcome.exit_code


# What a job does not need is imported only where it is used: a job shall start soon.


def _check_build(options: argparse.Namespace) -> int:
    from horovod.runner.check_build import build_report

    print(build_report(options.verbose))
    return 0


def _check(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from horovod.runner.check_hosts import check_hosts
    from horovod.runner.run_on import starter

    timeout_s = DEFAULT_CHECK_TIMEOUT_S if options.start_timeout is None else options.start_timeout
    start = starter(environ, _ssh(options))
    return check_hosts(_hosts(options), start, timeout_s, sys.stdout, _interfaces(options))


def _doctor(paths: Sequence[str], environ: Mapping[str, str]) -> int:
    from horovod.runner.doctor import examine_environment, examine_script, report

    if not paths or paths[0].startswith("-"):
        raise UsageError("doctor: name the scripts to examine, as in 'horovodrun doctor train.py'")
    remarks = examine_environment(environ)
    for path in paths:
        try:
            text = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read the script {path}: {error}") from None
        remarks += examine_script(text, path)
    text, code = report(remarks)
    print(text)
    return code


def _settings(
    options: argparse.Namespace, command: Sequence[str], environ: Mapping[str, str]
) -> JobSettings:
    """What to run; says who starts it if the user asked for that."""
    values, controller = vars(options), ""
    if options.config_file is not None:
        from horovod.runner.config_file import read_config_file

        config = read_config_file(options.config_file)
        for line in config.advice:
            say(sys.stderr, line)
        given = {name: value for name, value in values.items() if value is not None}
        values, controller = {**config.values, **given}, config.controller
    _choose_starter(options, controller, environ)
    return JobSettings(
        command=tuple(command),
        cwd=_working_directory(),
        environ=environ,
        variables=_variables(options, values),
        network_interfaces=_interfaces(options),
    )


def _choose_starter(
    options: argparse.Namespace, controller: str, environ: Mapping[str, str]
) -> None:
    flags = {name: getattr(options, name) for name in ("gloo", "mpi", "jsrun")}
    request = request_of(flags, controller)
    path = environ.get("PATH", os.defpath)
    found = Surroundings(
        mpirun=shutil.which("mpirun", path=path) is not None,
        jsrun=shutil.which("jsrun", path=path) is not None,
        lsf="LSB_JOBID" in environ,
    )
    choice = choose(request, found)
    if choice.starter is not Starter.AGENTS:
        raise UsageError(
            f"starting through {choice.starter.value} is not supported in this version"
        )
    if request or options.verbose:
        say(sys.stderr, choice.line)


def _launch(options: argparse.Namespace, slots: Sequence[Slot], settings: JobSettings) -> Outcome:
    with _caught_signals() as interrupts:
        launch_options = LaunchOptions(
            stdout=sys.stdout,
            stderr=sys.stderr,
            output_filename=options.output_filename,
            prefix_timestamp=options.prefix_timestamp,
            start_timeout_s=options.start_timeout,
            verbose=options.verbose,
            interrupts=interrupts,
            ssh=_ssh(options),
        )
        watch = StartWatch(
            [slot.hostname for slot in slots], partial(say, sys.stderr), time.monotonic()
        )
        return launch(slots, settings, launch_options, watch.using)


def _hosts(options: argparse.Namespace) -> list[Host]:
    if options.hosts is not None:
        return parse_hosts(options.hosts)
    if options.hostfile is None:
        return [Host("localhost", None)]
    try:
        text = Path(options.hostfile).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the hostfile {options.hostfile}: {error}") from None
    return parse_hostfile(text, options.hostfile)


def _variables(options: argparse.Namespace, values: Mapping[str, Any]) -> dict[str, str]:
    variables = variables_of(values)
    if options.tcp:
        variables["NCCL_IB_DISABLE"] = "1"
    if options.start_timeout is not None:
        if options.start_timeout < 1:
            raise UsageError(f"--start-timeout is {options.start_timeout}, but must be at least 1")
        variables["HOROVOD_START_TIMEOUT"] = str(options.start_timeout)
    return variables


def _ssh(options: argparse.Namespace) -> SshOptions:
    return SshOptions(options.ssh_port, options.ssh_identity_file or "")


def _interfaces(options: argparse.Namespace) -> tuple[str, ...]:
    lists = options.network_interfaces or []
    names = [name.strip() for names in lists for name in names.split(",")]
    return tuple(dict.fromkeys(name for name in names if name))


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise UsageError(f"the working directory is gone: {error.strerror}") from None


@contextlib.contextmanager
def _caught_signals() -> Iterator[int]:
    """Turns signals into bytes on a descriptor, which the launcher's loop can wait for.

    A signal that is ignored, as nohup and background jobs of a shell do, stays ignored.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)

    def forward(signum: int, frame: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(write_end, bytes([signum]))

    ignored = [each for each in _SIGNALS if signal.getsignal(each) is signal.SIG_IGN]
    previous = {each: signal.signal(each, forward) for each in _SIGNALS if each not in ignored}
    try:
        yield read_end
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)
        os.close(read_end)
        os.close(write_end)


def _drop_stdout() -> None:
    """Keeps Python from complaining at its end that nobody reads its stdout any more."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


if __name__ == "__main__":
    sys.exit(main())
