"""``horovodrun experiment export``: a job file for Slurm and Kubernetes.

Each line stays a barrier: all ranks of a line have ended before the next one begins, and the first
that fails ends the job.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from horovod._base import files
from horovod.errors import UsageError
from horovod.runner.experiment.job_file import read_job_file
from horovod.runner.experiment.kubernetes import Wishes, index_job, mpi_job, train_job
from horovod.runner.experiment.slurm import sbatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TextIO

    from horovod.runner.experiment.job_file import Experiment

FORMATS: dict[str, Callable[[Experiment, Wishes], str]] = {
    "sbatch": lambda experiment, _: sbatch(experiment),
    "job": index_job,
    "trainjob": train_job,
    "mpijob": mpi_job,
}
"""A script of Slurm, an Indexed Job of Kubernetes, a TrainJob and an MPIJob of Kubeflow."""


def export(path: str, words: Sequence[str], stdout: TextIO, stderr: TextIO) -> int:
    """Writes a job file in the language of another system.

    Args:
        path: of the job file.
        words: options behind ``horovodrun experiment export``.
        stdout: where it goes without ``-o``.
        stderr: for warnings.

    Returns:
        The exit code.

    Raises:
        UsageError: something is wrong with the file or the options.
    """
    options = _parser().parse_args(list(words))
    experiment = read_job_file(path)
    for line in experiment.warnings:
        if options.format == "sbatch" or ": train.image: " not in line:
            print(f"# {line}", file=stderr)
    train = experiment.file.train
    for key, is_lost, what in (
        ("restarts", bool(train.restarts), "failed runs are not retried"),
        (
            "search",
            train.search and train.search.method == "asha",
            "all runs continue to their end",
        ),
        ("elastic", train.elastic is not None, "the number of ranks is fixed"),
    ):
        if is_lost:
            print(f"# {path}: train.{key}: not exported: {what}", file=stderr)
    wishes = Wishes(options.image, options.output_claim, options.data_claim)
    text = FORMATS[options.format](experiment, wishes)
    if options.o is None:
        stdout.write(text)
        return 0
    try:
        with files.writing_whole(options.o) as file:
            file.write(text.encode())
    except OSError as error:
        raise UsageError(f"cannot write {options.o}: {error.strerror}") from None
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("horovodrun experiment export", allow_abbrev=False)
    add = parser.add_argument
    add("--format", choices=FORMATS, required=True, help="which system it is for")
    add("--image", default="", help="container image; overrides that of the file")
    add("--output-claim", default="", metavar="NAME", help="volume claim for /output")
    add(
        "--data-claim", default="", metavar="NAME", help="volume claim for /data, mounted read-only"
    )
    add("-o", metavar="PATH", help="file to write; stdout if it is left out")
    return parser
