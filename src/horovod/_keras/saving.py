"""Saves a model of whose optimizer's state each rank has its share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod._keras.seam import seam_of
from horovod._keras.sharding.whole import is_sharding, whole_state
from horovod._keras.which import keras_of
from horovod._rank import context
from horovod._train.objects import agree
from horovod.errors import UsageError

if TYPE_CHECKING:
    import os


def save_model(
    model: Any, filepath: str | os.PathLike[str], root_rank: int = 0, **options: Any
) -> None:
    """Save a model by one rank; collective, whatever its optimizer is.

    Of an optimizer with ``shard_state=True``, the state is gathered in the host memory of all
    ranks. The file is the same as without Horovod: Keras loads it, and :func:`load_model` at any
    number of ranks.

    Args:
        model: of Keras 3, the same on all ranks.
        filepath: as for ``model.save``; it counts on the root.
        root_rank: the rank that writes.
        options: further arguments of ``model.save``.

    Raises:
        UsageError: ``root_rank`` is no rank.
        MismatchError: the root could not save the model; on all ranks, with its error.
        HorovodInternalError: the job failed.

    Example:
        >>> hvd.save_model(model, "checkpoint.keras")
    """
    group = context.global_group()
    if not 0 <= root_rank < group.size:
        raise UsageError(f"root_rank={root_rank}, but there are ranks 0 to {group.size - 1}")
    seam_of(keras_of(type(model))).fetch_state(model)
    optimizer = getattr(model, "optimizer", None)
    problem = ""
    with whole_state(optimizer if is_sharding(optimizer) else None):
        if group.rank == root_rank:
            try:
                model.save(filepath, **options)
            except Exception as error:  # of Keras, of the file system: the others wait
                problem = f"{type(error).__name__}: {error}"
    agree(group, problem, "hvd.save_model")
