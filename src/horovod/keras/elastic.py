"""Elastic training with ``model.fit``; see :mod:`horovod.tensorflow.keras.elastic`."""

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
