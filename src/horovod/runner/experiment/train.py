"""Runs a job file: chooses how its lines are launched, and executes all its runs."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from horovod.errors import UsageError
from horovod.runner.experiment import record
from horovod.runner.experiment.background import detach, resumed
from horovod.runner.experiment.clusters import MODULES, load_cluster
from horovod.runner.experiment.job_file import read_job_file
from horovod.runner.experiment.ownership import owning
from horovod.runner.experiment.plan import CLUSTER, check_gpus, lanes_of, plan_text
from horovod.runner.experiment.side_by_side import Lane
from horovod.runner.experiment.training import ExperimentRun, new_folder
from horovod.runner.output.console import Console, say
from horovod.runner.placing.hosts import Host
from horovod.runner.starting.launch import start
from horovod.runner.starting.modes import Mode, check_options
from horovod.runner.starting.requests import Caller
from horovod.runner.starting.run_job import finish
from horovod.runner.system.signals import caught_signals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod.runner.experiment.grid import Line
    from horovod.runner.experiment.job_file import Experiment
    from horovod.runner.experiment.lines import Launch
    from horovod.runner.placing.hosts import Slot
    from horovod.runner.starting.requests import FixedRequest, JobFileRequest
    from horovod.runner.supervision.outcome import Outcome


def run(request: JobFileRequest) -> int:
    """Run a job file, or what has not finished of it, or print what would run.

    Returns:
        The exit code.

    Raises:
        UsageError: something is wrong with the file, or options do not fit it.
        StartError: a timeout of the environment is not a number.
    """
    experiment = read_job_file(request.path)
    for line in experiment.warnings:
        say(sys.stderr, line)
    hosts = _hosts_of(request, experiment)
    check_gpus(experiment, hosts)
    lanes = lanes_of(experiment, hosts)
    if request.dry_run:
        _launch_of(request, experiment)
        print(plan_text(experiment, lanes))
        return 0
    return _begin(request, experiment, lanes)


def _begin(request: JobFileRequest, experiment: Experiment, lanes: Sequence[Sequence[Slot]]) -> int:
    root = record.root_of(request.settings.cwd, experiment.file.project)
    with ExitStack() as stack:
        if request.resume is not None:
            folder = root / str(request.resume)
            stack.enter_context(owning(folder, partial(say, sys.stderr)))
            experiment = resumed(folder)
            lanes = lanes_of(experiment, _hosts_of(request, experiment))
        launch_line = _launch_of(request, experiment)
        if request.resume is None:
            folder = new_folder(root, request.path)
            stack.enter_context(owning(folder, partial(say, sys.stderr)))
        if request.detach and not detach(folder, lambda: record.begin(folder, experiment.runs)):
            say(
                sys.stderr,
                f"experiment {folder.name} runs in the background; its output is in {folder}; "
                f"'horovodrun experiment status {folder.name}' shows its progress",
            )
            return 0
        own = record.begin(folder, experiment.runs)
        if request.backend in MODULES:
            load_cluster(request.backend).connect()
        interrupts = stack.enter_context(caught_signals())
        console = stack.enter_context(Console(sys.stdout, sys.stderr))
        own_lanes = [Lane(slots, Caller(console, interrupts)) for slots in lanes]
        finish_line = partial(finish, console=console)
        return ExperimentRun(experiment, own_lanes, request, launch_line, finish_line).run(own)


def _hosts_of(request: JobFileRequest, experiment: Experiment) -> Sequence[Host]:
    """Return the hosts of an experiment; none if a discovery will list them."""
    if request.backend in MODULES:
        if request.hosts or request.asked.host_discovery_script:
            raise UsageError("--backend ray: name no hosts, since Ray knows those of its cluster")
        return [Host(CLUSTER, None)]
    if experiment.sizes is None:
        how = {Mode.ELASTIC: f"'elastic: {{min: N}}' under train in {experiment.path}"}
        check_options(dict.fromkeys(request.for_elastic, Mode.ELASTIC), Mode.FIXED, how)
    return request.hosts


def _launch_of(request: JobFileRequest, experiment: Experiment) -> Launch:
    """Return what starts the ranks of each line.

    Raises:
        UsageError: the command line and the file do not go together, or Ray is not installed.
        StartError: a timeout of the environment is not a number.
    """
    if request.backend in MODULES:
        return _launch_on_cluster(experiment, request.backend)
    if experiment.sizes is None:
        return lambda line, job, caller: start(job, caller)
    # Not for every job: it takes its time to load.
    from horovod.runner.starting.elastic_options import elastic_request

    fewest, most = experiment.sizes
    hosts = _hosts_of(request, experiment)
    asked = replace(request.asked, min_num_proc=fewest, max_num_proc=most)
    elastic = elastic_request(asked, experiment.size, hosts, request.settings, request.options)
    on_some = any(line.on != "all" for run in experiment.runs for line in run.lines)
    if not hosts and (on_some or experiment.install):
        what = "lines for some ranks (on)" if on_some else "commands to install"
        raise UsageError(
            f"{experiment.path} has {what}, which need hosts that stay: name them with -H in place "
            "of --host-discovery-script"
        )

    def launch_line(line: Line, job: FixedRequest, caller: Caller) -> Outcome:
        if line.on != "all":  # workers of an elastic job have no rank yet when they begin
            return start(job, caller)
        return start(replace(elastic, settings=job.settings, options=job.options), caller)

    return launch_line


def _launch_on_cluster(experiment: Experiment, backend: str) -> Launch:
    if experiment.sizes is not None:
        raise UsageError(
            f"{experiment.path} is elastic, which needs hosts: leave out "
            f"train.elastic, or --backend {backend}"
        )
    resources = experiment.file.train.resources
    cluster = load_cluster(backend)
    return cluster.make_launch(experiment.workers, resources.cpus, resources.gpus)
