"""Trials of Ray Tune that train on several ranks.

Example:
    >>> from ray import tune
    >>> from horovod.ray.tune import DistributedTrainableCreator, report
    >>> def train(config):
    ...     hvd.init()
    ...     ...
    ...     report({"loss": loss})
    >>> trainable = DistributedTrainableCreator(train, num_workers=2)
    >>> tune.Tuner(trainable, param_space={"lr": tune.grid_search([0.01, 0.1])}).fit()
"""

from __future__ import annotations

import atexit
import io
import tempfile
import zipfile
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod._rank import context
from horovod.errors import UsageError
from horovod.ray import ray_logger
from horovod.ray.executor import RayExecutor
from horovod.ray.settings import create_settings, gpus_of, renamed

try:
    from ray import tune
except ImportError as error:
    raise ImportError(
        f"horovod.ray.tune needs Ray Tune: pip install 'ray[tune]' ({error})"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["DistributedTrainableCreator", "get_checkpoint", "report"]


@dataclass(frozen=True)
class _Workers:
    """The needs of the ranks of each trial."""

    num_workers: int
    num_hosts: int | None
    cpus_per_worker: float
    gpus_per_worker: float
    timeout_s: int

    def resources(self) -> Any:
        """Resources of a trial: none for its controller, the rest for its ranks."""
        each = {"CPU": self.cpus_per_worker, "GPU": self.gpus_per_worker}
        per_bundle = self.num_workers if self.num_hosts else 1
        bundle = {name: amount * per_bundle for name, amount in each.items() if amount}
        bundles = [bundle] * (self.num_hosts or self.num_workers)
        strategy = "STRICT_SPREAD" if self.num_hosts else "PACK"
        return tune.PlacementGroupFactory([{}, *bundles], strategy=strategy)

    def executor(self) -> RayExecutor:
        """In the placement group of the trial in which it is called."""
        return RayExecutor(
            create_settings(timeout_s=self.timeout_s),
            num_workers=None if self.num_hosts else self.num_workers,
            num_hosts=self.num_hosts,
            num_workers_per_host=self.num_workers,
            cpus_per_worker=self.cpus_per_worker,
            use_gpu=self.gpus_per_worker > 0,
            gpus_per_worker=self.gpus_per_worker or None,
        )


def DistributedTrainableCreator(
    func: Callable[[dict[str, Any]], object],
    use_gpu: bool = False,
    num_hosts: int | None = None,
    num_workers: int = 1,
    num_cpus_per_worker: float = 1,
    num_gpus_per_worker: float | None = None,
    timeout_s: int = 30,
    replicate_pem: bool = False,
    *,
    num_slots: int | None = None,
    num_cpus_per_slot: float | None = None,
) -> Callable[[dict[str, Any]], Any]:
    """Makes a trainable for ``tune.Tuner`` or ``tune.run``: each trial runs ``func`` on all ranks.

    A trial reserves the resources of its ranks and nothing else. If a rank fails, the trial fails;
    Tune repeats it from its last checkpoint as often as ``FailureConfig(max_failures=…)`` says.

    Args:
        func: is called with the configuration of the trial on each rank. It calls ``hvd.init()``
            and, usually once per epoch, :func:`report`.
        use_gpu, num_gpus_per_worker: whether ranks need GPUs, and how many each; 1 if not given.
        num_hosts: on how many nodes; None for as few as there is room on.
        num_workers: how many ranks; with ``num_hosts``, how many on each of them.
        num_cpus_per_worker: CPUs of Ray for each rank.
        timeout_s: seconds to wait for the workers, and for the ranks to find one another.
        replicate_pem: not needed, since Ray starts the workers.
        num_slots, num_cpus_per_slot: what ``num_workers`` and ``num_cpus_per_worker`` were once
            called.

    Returns:
        A trainable with its resources.

    Raises:
        UsageError: there is no worker or no host.
    """
    num_workers = int(renamed("num_slots", num_slots, "num_workers", num_workers) or 1)
    cpus = renamed(
        "num_cpus_per_slot", num_cpus_per_slot, "num_cpus_per_worker", num_cpus_per_worker
    )
    if num_workers < 1 or (num_hosts is not None and num_hosts < 1):
        raise UsageError(f"num_workers={num_workers}, num_hosts={num_hosts}: must be at least 1")
    gpus = gpus_of(use_gpu, num_gpus_per_worker)
    workers = _Workers(num_workers, num_hosts, cpus or 0, gpus, timeout_s)
    trainable: Callable[[dict[str, Any]], Any] = tune.with_resources(
        partial(_run_trial, func, workers), workers.resources()
    )
    return trainable


def report(metrics: Mapping[str, object], checkpoint: object = None) -> None:
    """Gives metrics of this trial to Tune; returns when it has them.

    All ranks call it; those of rank 0 count.

    Args:
        metrics: names and values, which can be pickled.
        checkpoint: a ``ray.tune.Checkpoint`` of a folder; its files are copied.

    Raises:
        UsageError: the process is not a rank of a trial.
        NotInitializedError: ``hvd.init()`` was not called.
        Exception: what Tune has raised, for example because of a tensor among the metrics.
    """
    trial = _trial_of("report")
    if context.rank() != 0:
        return
    ray_logger.log({"metrics": dict(metrics), "files": _packed(checkpoint)})
    error = trial.accepted.get()
    if error is not None:
        raise error


def get_checkpoint() -> Any:
    """The last checkpoint of this trial, from which it goes on; None at its first beginning.

    Returns:
        A ``ray.tune.Checkpoint`` whose folder each rank has for itself.

    Raises:
        UsageError: the process is not a rank of a trial.
    """
    trial = _trial_of("get_checkpoint")
    if trial.restored is None:
        return None
    folder = tempfile.TemporaryDirectory(prefix="horovod-trial-")
    atexit.register(folder.cleanup)
    return _unpacked(trial.restored, folder.name)


@dataclass(frozen=True)
class _Trial:
    """A rank's view of its trial.

    Attributes:
        accepted: a queue with an item for each report: None, or the error that it has met.
        restored: the files of the checkpoint from which the trial goes on.
    """

    accepted: Any
    restored: bytes | None


# Of this process, which is a rank.
_trial: _Trial | None = None


def _trial_of(function: str) -> _Trial:
    if _trial is None:
        raise UsageError(
            f"{function}() of horovod.ray.tune is for functions that DistributedTrainableCreator "
            "runs: this process is not a rank of a trial"
        )
    return _trial


# -- in the process of the trial


def _run_trial(
    func: Callable[[dict[str, Any]], Any], workers: _Workers, config: dict[str, Any]
) -> None:
    accepted = ray_logger.queue_here()
    restored = _packed(tune.get_checkpoint())
    try:
        with workers.executor() as executor:
            forward = partial(_forward, accepted)
            executor.run(_train, [func, config, accepted, restored], callbacks=[forward])
    finally:
        accepted.shutdown(force=True)


def _forward(accepted: Any, item: dict[str, Any]) -> None:
    """Gives a report of rank 0 to Tune, which may take as long as it stores a checkpoint."""
    error: BaseException | None = RuntimeError("Ray Tune has stopped the trial")
    try:
        with _temporarily_unpacked(item["files"]) as checkpoint:
            tune.report(item["metrics"], checkpoint=checkpoint)
        error = None
    except Exception as raised:
        error = raised
    finally:  # if Tune stops the trial, it does so with a SystemExit
        accepted.put(error)


# -- in a rank


def _train(
    func: Callable[[dict[str, Any]], Any],
    config: dict[str, Any],
    accepted: Any,
    restored: bytes | None,
) -> None:
    global _trial
    _trial = _Trial(accepted, restored)
    func(config)


# -- checkpoints on their way between nodes


def _packed(checkpoint: Any) -> bytes | None:
    """All files of a checkpoint, as a zip archive without compression."""
    if checkpoint is None:
        return None
    archive = io.BytesIO()
    with checkpoint.as_directory() as folder, zipfile.ZipFile(archive, "w") as files:
        for path in sorted(Path(folder).rglob("*")):
            files.write(path, path.relative_to(folder))
    return archive.getvalue()


def _unpacked(archive: bytes, folder: str) -> Any:
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        files.extractall(folder)
    return tune.Checkpoint.from_directory(folder)


@contextmanager
def _temporarily_unpacked(archive: bytes | None) -> Iterator[Any]:
    if archive is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="horovod-trial-") as folder:
        yield _unpacked(archive, folder)
