"""The options of an executor, and the refusal of those that are not valid."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from horovod._settings.config import inherited_environment
from horovod.runner.starting.elastic_options import worker_timeout_s_of
from horovod.runner.starting.launch import config_of
from horovod.runner.supervision.elastic.rules import Rules, Words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WORDS = Words(
    np="min_workers",
    min_np="min_workers",
    max_np="max_workers",
    elastic_timeout="elastic_timeout",
    worker_timeout="HOROVOD_WORKER_TIMEOUT",
    reset_limit="reset_limit",
    slow_worker="HOROVOD_SLOW_WORKER",
)


@dataclass
class MiniSettings:
    """The timeouts and networks of an executor.

    Attributes:
        timeout_s: seconds for all ranks to connect in ``hvd.init()``.
        placement_group_timeout_s: seconds to wait for the resources of the workers.
        nics: names of network interfaces, of which the first one that a name is given for is used
            between hosts; None for the one that leads to the node of rank 0.
        verbose: not needed; the log level of ``horovod`` says how much is told.
        discovery: of an elastic job whose executor does not override it: an object with
            ``find_available_hosts_and_slots()``.
    """

    timeout_s: float = 300.0
    placement_group_timeout_s: float = 100.0
    nics: set[str] | None = None
    verbose: int = 1
    discovery: Any = None


def create_settings(
    timeout_s: float = 30.0,
    ssh_identity_file: str | None = None,
    ssh_str: str | None = None,
    placement_group_timeout_s: float = 100.0,
    nics: set[str] | None = None,
    verbose: int = 1,
) -> MiniSettings:
    """Settings for an executor; see :class:`MiniSettings`.

    Args:
        timeout_s, placement_group_timeout_s, nics, verbose: see there.
        ssh_identity_file, ssh_str: not needed, since Ray starts the workers.
    """
    if ssh_identity_file is not None or ssh_str is not None:
        warnings.warn(
            "ssh_identity_file and ssh_str do nothing: Ray starts the workers",
            DeprecationWarning,
            stacklevel=3,
        )
    return MiniSettings(timeout_s, placement_group_timeout_s, nics, verbose)


@dataclass(frozen=True)
class Wanted:
    """Which workers an executor was asked for.

    Attributes:
        num_workers: how many, wherever there is room; None for so many on each of some nodes.
        num_hosts, num_workers_per_host: on how many nodes how many each, if ``num_workers`` is
            None.
        cpus_per_worker, gpus_per_worker: as Ray counts them.
        use_current_placement_group: whether to use that of the caller, if it has one.
    """

    num_workers: int | None
    num_hosts: int | None
    num_workers_per_host: int
    cpus_per_worker: float
    gpus_per_worker: float
    use_current_placement_group: bool

    @property
    def size(self) -> int:
        """The number of workers."""
        return self.num_workers or (self.num_hosts or 0) * self.num_workers_per_host


@dataclass(frozen=True)
class Limits:
    """Which workers an elastic executor was asked for.

    Attributes:
        rules: how many, and how long to wait for them.
        cpus_per_worker, gpus_per_worker: as Ray counts them.
        override_discovery: whether the nodes of the cluster count, and not ``settings.discovery``.
    """

    rules: Rules
    cpus_per_worker: float
    gpus_per_worker: float
    override_discovery: bool

    @property
    def resources(self) -> dict[str, float]:
        """Return the resources of one worker."""
        each = {"CPU": self.cpus_per_worker, "GPU": self.gpus_per_worker}
        return {name: amount for name, amount in each.items() if amount}

    def rules_in(self, env_vars: Mapping[str, str]) -> Rules:
        """The rules with what variables of the environment say.

        Args:
            env_vars: those for the workers, which are stronger than those of this process.

        Raises:
            StartError: a variable makes no sense.
        """
        environ = {**inherited_environment(), **env_vars}
        timeout_s = worker_timeout_s_of(environ)
        mode = config_of("HOROVOD_SLOW_WORKER", environ).slow_worker
        return replace(self.rules, worker_timeout_s=timeout_s, slow_worker=mode)


def rules_of(
    min_workers: int,
    max_workers: int | None,
    reset_limit: int | None,
    cooldown_range: Sequence[float] | None,
    elastic_timeout: float,
) -> Rules:
    """The rules of an elastic executor.

    Raises:
        ValueError: they contradict one another.
    """
    if not 0 < elastic_timeout < float("inf"):
        raise ValueError(f"elastic_timeout={elastic_timeout} must be more than 0 seconds")
    if cooldown_range is not None and len(cooldown_range) != 2:
        raise ValueError(f"cooldown_range={cooldown_range} must be two numbers of seconds")
    if reset_limit is not None and reset_limit < 0:
        raise ValueError(f"reset_limit={reset_limit} must be at least 0")
    return Rules(
        min_workers,
        max_np=max_workers,
        elastic_timeout_s=elastic_timeout,
        reset_limit=reset_limit,
        cooldown_range=None if cooldown_range is None else (cooldown_range[0], cooldown_range[1]),
        words=_WORDS,
    )


def check_mode(
    num_workers: int | None,
    num_hosts: int | None,
    min_workers: int | None,
    max_workers: int | None,
) -> None:
    """Checks that exactly one way to count workers was chosen.

    Raises:
        ValueError: it was none, or several.
    """
    if max_workers is not None and min_workers is None:
        raise ValueError(f"max_workers={max_workers} needs min_workers, at least 1")
    if min_workers is not None and num_workers is not None:
        raise ValueError(
            "Both `min_workers` and `num_workers` provided. Give num_workers for a job whose size "
            "stays, min_workers for one whose size may change"
        )
    if min_workers is not None:
        return
    if num_workers is None and num_hosts is None:
        raise ValueError(
            "give num_workers, or num_hosts and num_workers_per_host, or min_workers for an "
            "elastic job"
        )
    if num_workers is not None and num_hosts is not None:
        raise ValueError(
            f"num_workers={num_workers} and num_hosts={num_hosts} are both given: give one of them"
        )


def check_amounts(
    counts: Mapping[str, float | None], cpus_per_worker: float | None, gpus_per_worker: float
) -> None:
    """Check numbers of workers and nodes, and what each worker needs.

    Args:
        counts: by the name of the argument; None if it was not given.
        cpus_per_worker, gpus_per_worker: as Ray counts them; None and 0 for no CPU.

    Raises:
        ValueError: a count is not a whole number above 0, or a worker needs nothing, so that Ray
            could not place it.
    """
    for name, count in counts.items():
        if count is not None and (isinstance(count, bool) or count != int(count) or count < 1):
            raise ValueError(f"{name}={count} must be a whole number, at least 1")
    if cpus_per_worker is not None and not 0 <= cpus_per_worker < float("inf"):
        raise ValueError(f"cpus_per_worker={cpus_per_worker} must be more than 0")
    if not cpus_per_worker and not gpus_per_worker:
        raise ValueError(
            f"cpus_per_worker={cpus_per_worker} must be more than 0 for workers without GPUs: Ray "
            "places them by what they need"
        )


def gpus_of(use_gpu: bool, gpus_per_worker: float | None) -> float:
    """Return how many GPUs each worker gets.

    Raises:
        ValueError: the two contradict one another.
    """
    if gpus_per_worker and not use_gpu:
        raise ValueError(f"gpus_per_worker={gpus_per_worker} needs use_gpu=True")
    if use_gpu and gpus_per_worker is not None and gpus_per_worker < 1:
        raise ValueError(f"gpus_per_worker={gpus_per_worker} must be at least 1")
    return (gpus_per_worker or 1) if use_gpu else 0


def renamed(old: str, given: float | None, new: str, value: float | None) -> float | None:
    """The value of an argument that had another name before 0.24."""
    if given is None:
        return value
    warnings.warn(f"{old} is called {new} now", DeprecationWarning, stacklevel=3)
    return given
