"""How the ranks of a line are started: those of a job whose size stays, or of an elastic one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from horovod.errors import UsageError
from horovod.runner.starting.launch import launch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod.runner.experiment.grid import Line
    from horovod.runner.experiment.job_file import Experiment
    from horovod.runner.experiment.lines import Launch, StoreUser
    from horovod.runner.placing.hosts import Host, Slot
    from horovod.runner.placing.plan import JobSettings
    from horovod.runner.starting.elastic_options import Asked
    from horovod.runner.starting.launch import LaunchOptions
    from horovod.runner.supervision.outcome import Outcome


def launch_on_ray(experiment: Experiment) -> Launch:
    """What starts the ranks of each line on a Ray cluster.

    Raises:
        UsageError: Ray is not installed, or cannot do what the file asks for.
    """
    if experiment.sizes is not None:
        raise UsageError(
            f"{experiment.path} is elastic, which goes together with hosts only: leave out "
            "train.elastic, or --backend ray"
        )
    try:
        from horovod.ray import job_lines
    except ModuleNotFoundError as error:
        raise UsageError(f"--backend ray: {error}") from None
    resources = experiment.file.train.resources
    return job_lines.launch_on_ray(experiment.workers, resources.cpus, resources.gpus)


def connect_to_ray() -> None:
    """Connects this process to a cluster; Ray wants to do that in the main thread."""
    from horovod.ray import job_lines

    job_lines.connect()


def launch_of(
    experiment: Experiment,
    asked: Asked,
    hosts: Sequence[Host],
    environ: Mapping[str, str],
    grace_s: float,
) -> Launch:
    """What starts the ranks of each line of a job file.

    Args:
        experiment: what to run.
        asked: what the command line says of elastic jobs.
        hosts: those that stay; empty with a discovery.
        environ: has the defaults of the timeouts.
        grace_s: between a signal that stops a job and SIGKILL.

    Raises:
        UsageError: the command line and the file do not go together.
        StartError: a timeout of the environment makes no sense.
    """
    if experiment.sizes is None:
        return _launch
    # Not for every job: they take their time to load.
    from horovod.runner.starting.elastic import launch_elastic
    from horovod.runner.starting.elastic_options import elastic_options

    fewest, most = experiment.sizes
    asked = replace(asked, min_num_proc=fewest, max_num_proc=most)
    elastic = elastic_options(asked, experiment.size, hosts, environ, grace_s)
    on_some = any(line.on != "all" for run in experiment.runs for line in run.lines)
    if not hosts and (on_some or experiment.install):
        what = "lines for some ranks (on)" if on_some else "commands to install"
        raise UsageError(
            f"{experiment.path} has {what}, which need hosts that stay: name them with -H in place "
            "of --host-discovery-script"
        )

    def launch_line(
        line: Line,
        slots: Sequence[Slot],
        settings: JobSettings,
        options: LaunchOptions,
        store_user: StoreUser,
    ) -> Outcome:
        if line.on != "all":  # workers of an elastic job have no rank yet when they begin
            return launch(slots, settings, options, store_user)
        return launch_elastic(elastic, settings, options, store_user)

    return launch_line


def _launch(
    line: Line,
    slots: Sequence[Slot],
    settings: JobSettings,
    options: LaunchOptions,
    store_user: StoreUser,
) -> Outcome:
    return launch(slots, settings, options, store_user)
