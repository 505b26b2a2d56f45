"""Clusters on which the lines of a job file can run, in place of hosts.

A cluster is a module above the launcher, which is loaded by its name if somebody asks for it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Protocol, cast

from horovod.errors import UsageError

if TYPE_CHECKING:
    from horovod.runner.experiment.lines import Launch

MODULES = {"ray": "horovod.ray.job_lines"}


class Cluster(Protocol):
    """What the module of a cluster defines."""

    def connect(self) -> None:
        """Connect this process to the cluster; called in the main thread.

        Raises:
            StartError: there is none.
        """
        ...

    def make_launch(self, workers: int, cpus: float | None, gpus: int) -> Launch:
        """Return what runs each line of a job file.

        Args:
            workers: how many processes of the cluster run the ranks.
            cpus, gpus: of each of them; one CPU if None.
        """
        ...


def load_cluster(backend: str) -> Cluster:
    """Return the cluster of a ``--backend``.

    Raises:
        UsageError: its library is not installed.
    """
    try:
        return cast("Cluster", importlib.import_module(MODULES[backend]))
    except ModuleNotFoundError as error:
        raise UsageError(f"--backend {backend}: {error}") from None
