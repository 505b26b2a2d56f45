"""``horovodrun``: starts a command once per rank, on this machine.

Exit codes: 0 if all ranks ended with 0; that of the rank that failed first; 128 + number if that
rank was killed by a signal, or the launcher was stopped by one; 126 or 127 if the command cannot be
executed or found; 2 for a wrong command line; 1 for anything else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import horovod
from horovod.config import inherited_environment
from horovod.errors import StartError, UsageError
from horovod.runner import processes
from horovod.runner.check_build import build_report
from horovod.runner.flags import variables_of
from horovod.runner.hosts import Host, assign, parse_hostfile, parse_hosts
from horovod.runner.launch import LaunchOptions, launch, say
from horovod.runner.options import parse
from horovod.runner.plan import JobSettings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence
    from types import FrameType

    from horovod.runner.job import Outcome

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main(words: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Runs ``horovodrun``.

    Args:
        words: the command line without the program's name; that of this process if None.
        environ: the variables that the ranks inherit; those of this process if None.

    Returns:
        The exit code.
    """
    if words is None:  # this process is the launcher, and nothing else
        processes.forbid_core_dumps()
        words = sys.argv[1:]
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
    options, command = parse(words)
    if options.version:
        print(horovod.__version__)
        return 0
    if options.check_build:
        print(build_report())
        return 0
    if options.num_proc is None:
        raise UsageError("-np is missing: say how many ranks to start")
    if not command:
        raise UsageError("no command was given: write it after the options")
    outcome = _launch(options, command, environ)
    if outcome.message:
        say(sys.stderr, outcome.message)
    if outcome.exit_code == 128 + signal.SIGPIPE:
        _drop_stdout()
    return outcome.exit_code


def _launch(
    options: argparse.Namespace, command: Sequence[str], environ: Mapping[str, str]
) -> Outcome:
    slots = assign(_hosts(options), options.num_proc)
    settings = JobSettings(
        command=tuple(command),
        cwd=_working_directory(),
        environ=environ,
        variables=_variables(options),
        network_interfaces=_interfaces(options),
    )
    with _caught_signals() as interrupts:
        launch_options = LaunchOptions(
            stdout=sys.stdout,
            stderr=sys.stderr,
            output_filename=options.output_filename,
            prefix_timestamp=options.prefix_timestamp,
            start_timeout_s=options.start_timeout,
            verbose=options.verbose,
            interrupts=interrupts,
        )
        return launch(slots, settings, launch_options)


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


def _variables(options: argparse.Namespace) -> dict[str, str]:
    variables = variables_of(vars(options))
    if options.tcp:
        variables["NCCL_IB_DISABLE"] = "1"
    if options.start_timeout is not None:
        if options.start_timeout < 1:
            raise UsageError(f"--start-timeout is {options.start_timeout}, but must be at least 1")
        variables["HOROVOD_START_TIMEOUT"] = str(options.start_timeout)
    return variables


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
