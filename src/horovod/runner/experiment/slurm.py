"""A job file as a script for Slurm. Pure.

Each line is a step of srun, under which ranks find each other by themselves.
"""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING

from horovod.runner.experiment.schema import mebibytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horovod.runner.experiment.grid import Run
    from horovod.runner.experiment.job_file import Experiment


def sbatch(experiment: Experiment) -> str:
    """A script for sbatch; the runs of a grid are an array."""
    train, project = experiment.file.train, experiment.file.project
    processes = experiment.processes
    cpus = math.ceil((train.resources.cpus or 1) / processes)
    options = {
        "job-name": project,
        "ntasks": experiment.size,
        "cpus-per-task": cpus,
        "output": f"{project}-%A_%a.out" if len(experiment.runs) > 1 else f"{project}-%j.out",
    }
    if train.resources.mem is not None:
        options["mem-per-cpu"] = f"{math.ceil(mebibytes(train.resources.mem) / processes / cpus)}M"
    if train.resources.gpus:
        options["gpus-per-task"] = max(1, train.resources.gpus // processes)
    if experiment.timeout_s is not None:
        options["time"] = math.ceil(experiment.timeout_s / 60)  # minutes
    if len(experiment.runs) > 1:
        options["array"] = f"1-{len(experiment.runs)}%{train.concurrency}"
    lines = ["#!/bin/bash", f"# {experiment.path}: {experiment.size} ranks"]
    lines += [f"#SBATCH --{name}={value}" for name, value in options.items()]
    lines += [
        "set -euo pipefail",
        "export EXPERIMENT_ID=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}"
        "${SLURM_ARRAY_TASK_ID:+.$SLURM_ARRAY_TASK_ID}",
        f"export OUTPUT_DIR=$PWD/output/{project}/$EXPERIMENT_ID",
        "export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$SLURM_CPUS_PER_TASK}",
        *_exports(train.env),
        'mkdir -p "$OUTPUT_DIR"',
        *_installing(experiment),
        "",
        "# All tasks of a step end before the next one begins; the first that fails ends all.",
        "line() {",
        '  srun --kill-on-bad-exit=1 --gpu-bind=none "$@"',
        "}",
        "",
    ]
    if len(experiment.runs) == 1:
        return "\n".join([*lines, *_steps(experiment.runs[0])]) + "\n"
    lines.append("case $SLURM_ARRAY_TASK_ID in")
    for number, run in enumerate(experiment.runs, 1):
        lines += [f"{number})", *(f"  {step}" for step in _steps(run)), "  ;;"]
    return "\n".join([*lines, "esac"]) + "\n"


def _installing(experiment: Experiment) -> list[str]:
    if not experiment.install:
        return []
    command = shlex.join([*experiment.shell, "\n".join(["set -e", *experiment.install])])
    return [f"srun --ntasks-per-node=1 --ntasks=$SLURM_NNODES {command}"]


def _steps(run: Run) -> list[str]:
    return [*_exports(run.variables), *(f"line {shlex.join(line.command)}" for line in run.lines)]


def _exports(variables: Mapping[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(text)}" for name, text in variables.items()]
