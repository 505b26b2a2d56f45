"""The functions of ``ray.train`` for the function of an elastic run, in a worker's process."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.train import Checkpoint
from ray.train.v2._internal.execution.train_fn_utils import TrainFnUtils, set_train_fn_utils
from ray.train.v2.api.context import TrainContext
from ray.train.v2.api.report_config import CheckpointConsistencyMode, CheckpointUploadMode
from ray.train.v2.api.reported_checkpoint import ReportedCheckpoint, ReportedCheckpointStatus

from horovod._rank import context
from horovod._settings.config import inherited_environment
from horovod._train import objects
from horovod.errors import UnsupportedError, UsageError
from horovod.ray import ray_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ray.data import DataIterator
    from ray.train.v2._internal.data_integration.interfaces import DatasetShardMetadata
    from ray.train.v2._internal.execution.storage import StorageContext
    from ray.train.v2.api.validation_config import ValidationTaskConfig

    from horovod._rank.group import Group

_REPORT = "ray.train.report"


@dataclass(frozen=True)
class Table:
    """A dataset whose rows are in the object store of Ray.

    Attributes:
        blocks: references to Arrow tables.
        num_rows: of each.
        is_split: whether each rank gets a share of the rows, or all of them.
    """

    blocks: Sequence[Any]
    num_rows: Sequence[int]
    is_split: bool

    def rows_of(self, rank: int, size: int) -> tuple[int, int]:
        """The first row of a rank, and the one after its last: equally many for each rank. Pure."""
        total = sum(self.num_rows)
        if not self.is_split:
            return 0, total
        return rank * (total // size), (rank + 1) * (total // size)


def pieces_of(num_rows: Sequence[int], first: int, end: int) -> list[tuple[int, int, int]]:
    """Which rows of which blocks a range of rows is: block, first row in it, how many. Pure."""
    pieces = []
    start = 0
    for block, count in enumerate(num_rows):
        low, high = max(first, start), min(end, start + count)
        if low < high:
            pieces.append((block, low - start, high - low))
        start += count
    return pieces


@dataclass(frozen=True)
class Run:
    """The facts of a run that its workers need.

    Attributes:
        storage: where checkpoints go.
        checkpoint: from which training goes on; None at the first beginning.
        tables: the datasets of the trainer, by name.
    """

    storage: StorageContext
    checkpoint: Checkpoint | None
    tables: Mapping[str, Table]

    def train(self, function: Callable[[], object]) -> Any:
        """Calls the training function in the process of a worker."""
        if inherited_environment().get("RAY_CHDIR_TO_TRIAL_DIR", "1") != "0":
            folder = self.storage.local_working_directory
            os.makedirs(folder, exist_ok=True)
            os.chdir(folder)
        set_train_fn_utils(ElasticTrainFunctions(self))
        try:
            return function()
        finally:
            set_train_fn_utils(None)


class ElasticContext(TrainContext):  # type: ignore[misc]
    """The current place of this rank, for ``ray.train.get_context()``.

    Args:
        storage: of the run.
    """

    def __init__(self, storage: StorageContext) -> None:
        self._storage = storage

    def get_experiment_name(self) -> str:
        """The name of the run."""
        return str(self._storage.experiment_dir_name)

    def get_world_size(self) -> int:
        """Return ``hvd.size()``."""
        return context.size()

    def get_world_rank(self) -> int:
        """Return ``hvd.rank()``."""
        return context.rank()

    def get_local_rank(self) -> int:
        """Return ``hvd.local_rank()``."""
        return context.local_rank()

    def get_local_world_size(self) -> int:
        """Return ``hvd.local_size()``."""
        return context.local_size()

    def get_node_rank(self) -> int:
        """Return ``hvd.cross_rank()``."""
        return context.cross_rank()

    def get_storage(self) -> StorageContext:
        """Return the storage of checkpoints."""
        return self._storage


@dataclass(frozen=True)
class _Reported:
    """A rank's message to the others in ``report``."""

    metrics: dict[str, Any]
    path: str = ""
    problem: str = ""


class ElasticTrainFunctions(TrainFnUtils):  # type: ignore[misc]
    """Behind ``ray.train.report`` and its like, in a worker of an elastic run.

    Args:
        run: to which it belongs.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._context = ElasticContext(run.storage)
        self._latest = run.checkpoint
        self._reported: list[ReportedCheckpoint] = []

    def report(
        self,
        metrics: dict[str, Any],
        checkpoint: Checkpoint | None = None,
        checkpoint_dir_name: str | None = None,
        checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
        delete_local_checkpoint_after_upload: bool | None = None,
        checkpoint_upload_fn: Callable[[Checkpoint, str], Checkpoint] | None = None,
        validation: bool | ValidationTaskConfig = False,
    ) -> None:
        """All ranks call it; the files of all go into one checkpoint, the metrics of rank 0 count.

        Args:
            metrics: names and values, which can be pickled.
            checkpoint: a folder whose files are copied to the storage of the run.
            checkpoint_dir_name: its name there; that of rank 0 counts.
            checkpoint_upload_mode: ``ASYNC`` is as ``SYNC``.
            delete_local_checkpoint_after_upload: whether the folder is removed then.
            checkpoint_upload_fn: copies it instead, to the folder of this name.
            validation: not there.

        Raises:
            UnsupportedError: validation was asked for.
            MismatchError: a rank could not store its files; all are told.
            HorovodInternalError: a rank was lost; training goes on from the last commit.
        """
        if validation:
            raise UnsupportedError(
                "report(validation=…) is not there in a run with num_workers=(min, max): validate "
                "in the training function, or give a fixed number of workers"
            )
        group = context.global_group()
        name = checkpoint_dir_name or self._run.storage.make_default_checkpoint_dir_name()
        name = objects.broadcast_object(group, name, 0, f"{_REPORT}.name", _REPORT)
        mine = _Reported(dict(metrics))
        if checkpoint is not None:
            upload = checkpoint_upload_fn or self._run.storage.persist_current_checkpoint
            if checkpoint_upload_mode is CheckpointUploadMode.NO_UPLOAD:
                upload = _as_it_is
            mine = _stored(mine.metrics, checkpoint, name, upload)
        everyone = _agreed(group, mine)
        stored = next((each.path for each in everyone if each.path), "")
        if stored:
            self._remember(Checkpoint(stored, self._run.storage.storage_filesystem), metrics)
        if group.rank == 0:
            ray_logger.log({"metrics": [each.metrics for each in everyone], "checkpoint": stored})
        deletes = delete_local_checkpoint_after_upload
        if deletes is None:
            deletes = checkpoint_upload_mode.default_delete_local_checkpoint_after_upload()
        if deletes and checkpoint is not None:
            shutil.rmtree(checkpoint.path, ignore_errors=True)

    def _remember(self, checkpoint: Checkpoint, metrics: dict[str, Any]) -> None:
        self._latest = checkpoint
        status = ReportedCheckpointStatus.COMMITTED
        self._reported.append(ReportedCheckpoint(checkpoint, dict(metrics), status))

    def get_checkpoint(self) -> Checkpoint | None:
        """The last one that was reported, or from which the run goes on."""
        return self._latest

    def get_all_reported_checkpoints(
        self,
        consistency_mode: CheckpointConsistencyMode = CheckpointConsistencyMode.VALIDATED,
        timeout_s: float | None = None,
    ) -> list[ReportedCheckpoint]:
        """Those in whose report this worker took part, with its own metrics."""
        return list(self._reported)

    def get_dataset_shard(self, dataset_info: DatasetShardMetadata) -> DataIterator:
        """The share of this rank in the job as it is now; call it again after a change.

        Raises:
            UsageError: the trainer has no such dataset.
        """
        import ray
        import ray.data

        name = dataset_info.dataset_name
        table = self._run.tables.get(name)
        if table is None:
            raise UsageError(
                f"get_dataset_shard({name!r}): the datasets of this trainer are "
                f"{', '.join(map(repr, self._run.tables)) or 'none'}"
            )
        rows = table.rows_of(context.rank(), context.size())
        pieces = pieces_of(table.num_rows, *rows) or [(0, 0, 0)]  # which still has the columns
        blocks = ray.get([table.blocks[block] for block, _, _ in pieces])
        cut = [
            block.slice(first, count)
            for block, (_, first, count) in zip(blocks, pieces, strict=True)
        ]
        return ray.data.from_arrow(cut).iterator()

    def get_context(self) -> ElasticContext:
        """The place of this rank."""
        return self._context

    def get_preemption_info(self) -> None:
        """Nothing: workers of a node that is about to go leave at the next commit."""

    def is_distributed(self) -> bool:
        """Yes."""
        return True

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        objects.allgather_object(context.global_group(), None, "ray.train.barrier")

    def broadcast_from_rank_zero(self, data: object) -> Any:
        """Returns what rank 0 gave, on all ranks."""
        return objects.broadcast_object(context.global_group(), data, 0, "ray.train.broadcast")


def _as_it_is(checkpoint: Checkpoint, _: str) -> Checkpoint:
    return checkpoint


def _stored(
    metrics: dict[str, Any],
    checkpoint: Checkpoint,
    name: str,
    upload: Callable[[Checkpoint, str], Checkpoint],
) -> _Reported:
    """Store this rank's files, and return its message to the others, also of a failure."""
    try:
        path = str(upload(checkpoint, name).path)
    except Exception as error:  # of any file system; all ranks learn of it
        problem = f"cannot store the checkpoint {Path(str(checkpoint.path))}: {error}"
        return _Reported(metrics, problem=problem)
    return _Reported(metrics, path)


def _agreed(group: Group, mine: _Reported) -> list[_Reported]:
    """Return the messages of all ranks, once all of them have stored their files."""
    everyone = objects.allgather_object(group, mine, f"{_REPORT}.all", _REPORT)
    if any(each.problem for each in everyone):
        objects.agree(group, mine.problem, _REPORT, _REPORT)
    return everyone
