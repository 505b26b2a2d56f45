"""``horovodrun``: starts a command once per rank, or tells what would become of it.

Exit codes: 0 if all ranks ended with 0; that of the rank that failed first; 128 + number if that
rank was killed by a signal, or the launcher was stopped by one; 126 or 127 if the command cannot be
executed or found; 2 for a wrong command line; 1 for anything else.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import horovod
from horovod._settings.config import inherited_environment
from horovod._settings.foreign_launchers import find_foreign_launcher
from horovod.errors import StartError, UsageError
from horovod.runner.cli.options import EXAMPLE, SHORT_HELP, completion_of, parse
from horovod.runner.output.console import Console
from horovod.runner.placing.hosts import Host, assign, parse_hostfile, parse_hosts
from horovod.runner.placing.plan import JobSettings
from horovod.runner.settings.flags import variables_of
from horovod.runner.starting.before_start import check_settings
from horovod.runner.starting.controller import Launcher, Surroundings, choose, request_of
from horovod.runner.starting.elastic_options import Asked, elastic_options
from horovod.runner.starting.launch import LaunchOptions, grace_s_of, launch, say
from horovod.runner.starting.ssh import SshOptions
from horovod.runner.supervision.startup import StartWatch
from horovod.runner.system import processes
from horovod.runner.system.signals import caught_signals

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from horovod.runner.experiment.job_file import Experiment
    from horovod.runner.experiment.lines import Launch
    from horovod.runner.placing.hosts import Slot
    from horovod.runner.supervision.outcome import Outcome

DEFAULT_CHECK_TIMEOUT_S = 30.0
MAX_GRACE_S = 1e6
_ELASTIC_FLAGS = {
    "min_num_proc": "--min-np",
    "max_num_proc": "--max-np",
    "slots": "--slots-per-host",
    "elastic_timeout": "--elastic-timeout",
    "reset_limit": "--reset-limit",
    "cooldown_range": "--blacklist-cooldown-range",
    "worker_timeout": "--worker-timeout",
    "host_discovery_script": "--host-discovery-script",
    "join_file": "--join-file",
}


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
    except BrokenPipeError:  # nobody reads on: a pager was left, or head has enough
        _drop_stdout()
        return 128 + signal.SIGPIPE


def _run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    if words and words[0] == "doctor":
        from horovod.runner.doctor.command import examine

        return examine(words[1:], environ, sys.stdout)
    if words and words[0] == "experiment":
        from horovod.runner.experiment.command import manage

        return manage(words[1:], lambda more: _run(more, environ), sys.stdout)
    options, command = parse(words)
    if options.version:
        print(horovod.__version__)
        return 0
    if options.print_completion:
        print(completion_of(options.print_completion), end="")
        return 0
    if options.check_build:
        return _check_build(options)
    if options.check:
        return _check(options, environ)
    if not words:
        print(SHORT_HELP, file=sys.stderr)
        return 2
    if options.join is not None:
        return _join(options, command, environ)
    if options.job_file is not None:
        return _train(options, command, environ)
    if options.detach or options.resume is not None or options.backend is not None:
        raise UsageError("-d, --resume and --backend are for job files: horovodrun -f FILE")
    if not command:
        raise UsageError(f"no command was given: write it after the options, {EXAMPLE!r} for one")
    if options.node_rank is not None or options.num_nodes is not None or options.rendezvous:
        return _launch_node(options, command, environ)
    _refuse_to_multiply(environ)
    asked = _asked(options)
    asked.check_unused(_ELASTIC_FLAGS)
    if asked.is_elastic:
        return _launch_elastic(options, asked, command, environ)
    slots = _slots(options, environ)
    settings, launcher = _settings(options, command, environ)
    if launcher is not Launcher.AGENTS:
        if options.stdin_rank is not None:
            raise UsageError(
                "--stdin-rank goes together with neither --mpi nor --jsrun, which have options of "
                "their own: see --mpi-args"
            )
        return _start_by_mpi(options, slots, settings, launcher)
    if options.dry_run:
        from horovod.runner.cli.dry_run import describe_job

        print(describe_job(slots, settings))
        return 0
    return _launch(options, slots, settings)


def _refuse_to_multiply(environ: Mapping[str, str]) -> None:
    """horovodrun below srun or mpirun would start a whole job in the place of each rank."""
    found = find_foreign_launcher(environ)
    if found is None or not environ.get(found[1][1], "").isdigit():
        return
    launcher, (_, size), _ = found
    if int(environ[size]) > 1:
        raise UsageError(
            f"{launcher.name} started horovodrun {environ[size]} times ({size}): let it start the "
            "script itself, which finds its ranks, or give --node-rank"
        )


def _finish(outcome: Outcome, console: Console) -> int:
    cause = outcome.message if outcome.details_are_above else outcome.report
    for text in (outcome.summary, cause):  # the cause comes last, where it is seen
        if text:
            console.say(text)
    if outcome.exit_code == 128 + signal.SIGPIPE:
        _drop_stdout()
    return outcome.exit_code


# What a job does not need is imported only where it is used: a job shall start soon.


def _check_build(options: argparse.Namespace) -> int:
    from horovod.runner.checks.check_build import build_report

    print(build_report(options.verbose))
    return 0


def _check(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from horovod.runner.checks.check_hosts import check_hosts
    from horovod.runner.checks.run_on import launcher

    timeout_s = DEFAULT_CHECK_TIMEOUT_S if options.start_timeout is None else options.start_timeout
    start = launcher(environ, _ssh(options))
    return check_hosts(_hosts(options, environ), start, timeout_s, sys.stdout, _interfaces(options))


def _settings(
    options: argparse.Namespace, command: Sequence[str], environ: Mapping[str, str]
) -> tuple[JobSettings, Launcher]:
    """What to run, and who starts it; says that if the user asked for it."""
    values, controller = vars(options), ""
    if options.config_file is not None:
        from horovod.runner.settings.config_file import read_config_file

        config = read_config_file(options.config_file)
        for line in config.advice:
            say(sys.stderr, line)
        given = {name: value for name, value in values.items() if value is not None}
        values, controller = {**config.values, **given}, config.controller
    launcher = _choose_launcher(options, controller, environ)
    variables = _variables(options, values)
    settings = JobSettings(
        command=tuple(command),
        cwd=_working_directory(),
        environ=environ,
        variables=variables,
        network_interfaces=_interfaces(options),
        grace_s=grace_s_of({**environ, **variables}),
        stdin_rank=options.stdin_rank,
    )
    check_settings(settings, is_elastic=_asked(options).is_elastic)
    return settings, launcher


def _choose_launcher(
    options: argparse.Namespace, controller: str, environ: Mapping[str, str]
) -> Launcher:
    flags = {name: getattr(options, name) for name in ("gloo", "mpi", "jsrun")}
    request = request_of(flags, controller)
    path = environ.get("PATH", os.defpath)
    found = Surroundings(
        mpirun=shutil.which("mpirun", path=path) is not None,
        jsrun=shutil.which("jsrun", path=path) is not None,
        lsf="LSB_JOBID" in environ,
    )
    choice = choose(request, found)
    if options.verbose or choice.launcher is not Launcher.AGENTS:
        say(sys.stderr, choice.line)
    return choice.launcher


def _start_by_mpi(
    options: argparse.Namespace, slots: Sequence[Slot], settings: JobSettings, launcher: Launcher
) -> int:
    from horovod.runner.starting import by_mpi
    from horovod.runner.starting.mpirun import MpiJob

    job = MpiJob(
        slots=slots,
        command=settings.command,
        environ=by_mpi.environment(settings, slots),
        ssh=_ssh(options),
        network_interfaces=settings.network_interfaces,
        output_filename=options.output_filename or "",
        timestamps=options.prefix_timestamp,
        binding_args=options.binding_args,
        mpi_args=options.mpi_args,
        as_root=os.geteuid() == 0,
    )
    return by_mpi.start(job, launcher, dry_run=options.dry_run, verbose=options.verbose)


def _launch_node(
    options: argparse.Namespace, command: Sequence[str], environ: Mapping[str, str]
) -> int:
    from horovod.runner.starting.nodes import NodeOptions, launch_node

    if options.node_rank is None or options.num_nodes is None or not options.rendezvous:
        raise UsageError("--node-rank, --num-nodes and --rendezvous go together: give all three")
    asked = _asked(options)
    asked.check_unused(_ELASTIC_FLAGS)
    if asked.is_elastic:
        raise UsageError(
            "--node-rank starts jobs whose ranks stay: start an elastic job with one horovodrun, "
            "which reaches the hosts by ssh (-H, --host-discovery-script)"
        )
    if options.num_proc is None:
        raise UsageError("-np is missing: say how many ranks to start on all nodes together")
    hosts = _hosts(options, {})
    if len(hosts) > 1:
        raise UsageError("with --node-rank, -H says the ranks of this host only: -H localhost:N")
    node = NodeOptions(
        options.node_rank,
        options.num_nodes,
        options.rendezvous,
        options.num_proc,
        hosts[0].slots,
    )
    settings, launcher = _settings(options, command, environ)
    if options.stdin_rank is not None:
        raise UsageError("--stdin-rank does not go together with --node-rank")
    if launcher is not Launcher.AGENTS or options.dry_run:
        raise UsageError("--node-rank goes together with neither --mpi, --jsrun nor --dry-run")
    with caught_signals() as interrupts, Console(sys.stdout, sys.stderr) as console:
        launch_options = _launch_options(options, console, interrupts)
        return _finish(launch_node(node, settings, launch_options, console.say), console)


def _launch_options(
    options: argparse.Namespace, console: Console, interrupts: int
) -> LaunchOptions:
    return LaunchOptions(
        console,
        output_filename=options.output_filename,
        prefix_timestamp=options.prefix_timestamp,
        start_timeout_s=options.start_timeout,
        verbose=options.verbose,
        interrupts=interrupts,
        ssh=_ssh(options),
    )


def _asked(options: argparse.Namespace) -> Asked:
    return Asked(**{name: getattr(options, name) for name in _ELASTIC_FLAGS})


def _launch_elastic(
    options: argparse.Namespace, asked: Asked, command: Sequence[str], environ: Mapping[str, str]
) -> int:
    if options.num_proc is None:
        raise UsageError("-np is missing: say with how many ranks to start")
    settings, launcher = _settings(options, command, environ)
    for flag, is_given in (
        ("--mpi and --jsrun", launcher is not Launcher.AGENTS),
        ("--stdin-rank", options.stdin_rank is not None),
        ("--dry-run", options.dry_run),
    ):
        if is_given:
            raise UsageError(f"{flag}: not for elastic jobs (--min-np, --host-discovery-script)")
    named = options.hosts is not None or options.hostfile is not None
    discovers = bool(asked.host_discovery_script) and not named
    hosts = [] if discovers else _hosts(options, environ)
    given = {**environ, **settings.variables}
    elastic = elastic_options(asked, options.num_proc, hosts, given, settings.grace_s)
    # Not for every job: it takes its time to load.
    from horovod.runner.starting.elastic import launch_elastic

    with caught_signals() as interrupts, Console(sys.stdout, sys.stderr) as console:
        launch_options = _launch_options(options, console, interrupts)
        return _finish(launch_elastic(elastic, settings, launch_options), console)


def _join(options: argparse.Namespace, command: Sequence[str], environ: Mapping[str, str]) -> int:
    from horovod.runner.starting.joining import JoinOptions, join, read_invitation

    if command:
        raise UsageError("--join takes no command: this host runs that of the job")
    given = [flag for name, flag in _ELASTIC_FLAGS.items() if getattr(options, name) is not None]
    if given or options.num_proc is not None:
        raise UsageError(
            f"{(given or ['-np'])[0]} does not go together with --join: the job has its own, and "
            "-H localhost:N says how many ranks this host may take"
        )
    hosts = _hosts(options, {})
    if len(hosts) != 1 or hosts[0].slots is None:
        raise UsageError("--join: say how many ranks this host may take: -H localhost:N")
    name = hosts[0].name if hosts[0].name != "localhost" else socket.gethostname()
    join_options = JoinOptions(options.join, name, hosts[0].slots, environ, _working_directory())
    invitation = read_invitation(options.join, environ, sys.stdin)
    with caught_signals() as interrupts:
        reason = join(join_options, invitation, interrupts, lambda line: say(sys.stderr, line))
    say(sys.stderr, reason)
    return 0


def _train(options: argparse.Namespace, command: Sequence[str], environ: Mapping[str, str]) -> int:
    from horovod.runner.experiment.job_file import read_job_file
    from horovod.runner.experiment.plan import check_gpus, lanes_of, plan_text

    _refuse_to_multiply(environ)
    for is_given, what in (
        (bool(command), "a command"),
        (options.num_proc is not None, "-np"),
        (options.node_rank is not None or bool(options.rendezvous), "--node-rank"),
        (options.output_filename is not None, "--output-filename"),
        (options.stdin_rank is not None, "--stdin-rank"),
        (options.min_num_proc is not None, "--min-np"),
        (options.max_num_proc is not None, "--max-np"),
        (options.join_file is not None, "--join-file"),
    ):
        if is_given:
            raise UsageError(
                f"{what} does not go together with -f: the file says what to run, and on how many "
                "ranks"
            )
    experiment = read_job_file(options.job_file)
    for line in experiment.warnings:
        say(sys.stderr, line)
    hosts = _job_file_hosts(options, experiment, environ)
    check_gpus(experiment, hosts)
    lanes = lanes_of(experiment, hosts)
    settings, launcher = _settings(options, ("bash",), environ)
    if launcher is not Launcher.AGENTS:
        raise UsageError("-f goes together with neither --mpi nor --jsrun")
    if options.dry_run:
        _launch_of(options, experiment, settings)
        print(plan_text(experiment, lanes))
        return 0
    return _begin(options, experiment, lanes, settings)


def _job_file_hosts(
    options: argparse.Namespace, experiment: Experiment, environ: Mapping[str, str]
) -> list[Host]:
    """The hosts of an experiment; none if a discovery will tell them."""
    from horovod.runner.experiment.plan import CLUSTER

    asked = _asked(options)
    named = options.hosts is not None or options.hostfile is not None
    if options.backend == "ray":
        if named or asked.host_discovery_script:
            raise UsageError("--backend ray: name no hosts, since Ray knows those of its cluster")
        return [Host(CLUSTER, None)]
    if experiment.sizes is None:
        if asked.is_elastic:
            raise UsageError(
                "--host-discovery-script is for elastic jobs: write 'elastic: {min: N}' under "
                f"train in {experiment.path}"
            )
        asked.check_unused(_ELASTIC_FLAGS)
    return [] if asked.host_discovery_script and not named else _hosts(options, environ)


def _launch_of(
    options: argparse.Namespace, experiment: Experiment, settings: JobSettings
) -> Launch:
    from horovod.runner.experiment.launches import launch_of, launch_on_ray

    if options.backend == "ray":
        return launch_on_ray(experiment)
    hosts = _job_file_hosts(options, experiment, settings.environ)
    given = {**settings.environ, **settings.variables}
    return launch_of(experiment, _asked(options), hosts, given, settings.grace_s)


def _begin(
    options: argparse.Namespace,
    experiment: Experiment,
    lanes: Sequence[Sequence[Slot]],
    settings: JobSettings,
) -> int:
    from horovod.runner.experiment import record
    from horovod.runner.experiment.background import detach, resumed
    from horovod.runner.experiment.launches import connect_to_ray
    from horovod.runner.experiment.ownership import owning
    from horovod.runner.experiment.plan import lanes_of
    from horovod.runner.experiment.side_by_side import Lane
    from horovod.runner.experiment.training import Training, new_folder

    root = record.root_of(settings.cwd, experiment.file.project)
    with ExitStack() as stack:
        if options.resume is not None:
            folder = root / str(options.resume)
            stack.enter_context(owning(folder, partial(say, sys.stderr)))
            experiment = resumed(folder)
            lanes = lanes_of(experiment, _job_file_hosts(options, experiment, settings.environ))
        launch_line = _launch_of(options, experiment, settings)
        if options.resume is None:
            folder = new_folder(root, options.job_file)
            stack.enter_context(owning(folder, partial(say, sys.stderr)))
        if options.detach and not detach(folder, lambda: record.begin(folder, experiment.runs)):
            say(
                sys.stderr,
                f"experiment {folder.name} runs in the background; its output is in {folder}; "
                f"'horovodrun experiment status {folder.name}' says how far it is",
            )
            return 0
        own = record.begin(folder, experiment.runs)
        if options.backend == "ray":
            connect_to_ray()
        interrupts = stack.enter_context(caught_signals())
        console = stack.enter_context(Console(sys.stdout, sys.stderr))
        launch_options = _launch_options(options, console, interrupts)
        finish = partial(_finish, console=console)
        own_lanes = [Lane(slots, launch_options) for slots in lanes]
        return Training(experiment, own_lanes, settings, launch_line, finish).run(own)


def _launch(options: argparse.Namespace, slots: Sequence[Slot], settings: JobSettings) -> int:
    with caught_signals() as interrupts, Console(sys.stdout, sys.stderr) as console:
        launch_options = _launch_options(options, console, interrupts)
        watch = StartWatch(
            [slot.hostname for slot in slots],
            console.say,
            time.monotonic(),
            verbose=options.verbose,
        )
        return _finish(launch(slots, settings, launch_options, watch.using), console)


def _slots(options: argparse.Namespace, environ: Mapping[str, str]) -> list[Slot]:
    hosts = _hosts(options, environ)
    num_proc = options.num_proc
    if num_proc is None:
        if options.hosts is not None or options.hostfile is not None or hosts[0].slots is None:
            raise UsageError("-np is missing: say how many ranks to start")
        num_proc = sum(host.slots or 1 for host in hosts)
    return assign(hosts, num_proc)


def _hosts(options: argparse.Namespace, environ: Mapping[str, str]) -> list[Host]:
    if options.hosts is not None:
        return parse_hosts(options.hosts)
    if options.hostfile is None:
        from horovod.runner.placing.allocation import allocated_hosts

        return allocated_hosts(environ) or [Host("localhost", None)]
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
    if options.grace is not None:
        if not 0 <= options.grace <= MAX_GRACE_S:
            raise UsageError(
                f"--grace is {options.grace:g}, but must be from 0 to {MAX_GRACE_S:g} seconds"
            )
        variables["HOROVOD_GRACE_SECONDS"] = f"{options.grace:g}"
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


def _drop_stdout() -> None:
    """Keeps Python from complaining at its end that nobody reads its stdout any more."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
