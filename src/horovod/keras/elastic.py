"""Elastic training with ``model.fit``; see :mod:`horovod.tensorflow.keras.elastic`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horovod.tensorflow.keras.elastic import (
        CommitStateCallback,
        KerasState,
        MappedIndices,
        ObjectState,
        State,
        Training,
        UpdateBatchStateCallback,
        UpdateEpochStateCallback,
        generation,
        run,
    )
else:
    from horovod.keras.backend import backend

    CommitStateCallback = backend.elastic.CommitStateCallback
    KerasState = backend.elastic.KerasState
    MappedIndices = backend.elastic.MappedIndices
    ObjectState = backend.elastic.ObjectState
    State = backend.elastic.State
    Training = backend.elastic.Training
    UpdateBatchStateCallback = backend.elastic.UpdateBatchStateCallback
    UpdateEpochStateCallback = backend.elastic.UpdateEpochStateCallback
    generation = backend.elastic.generation
    run = backend.elastic.run

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "MappedIndices",
    "ObjectState",
    "State",
    "Training",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "generation",
    "run",
]
