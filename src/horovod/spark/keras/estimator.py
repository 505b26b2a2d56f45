"""KerasEstimator: trains a model of Keras on all rows of a DataFrame."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import keras

from horovod.errors import UsageError
from horovod.spark.common.estimator import HorovodEstimator
from horovod.spark.common.param_table import ParamRow, whole_number, with_params
from horovod.spark.keras.datamodule import ParquetDataModule
from horovod.spark.keras.model import CUSTOM_OBJECTS, KerasModel, KerasStage
from horovod.spark.keras.model_bytes import (
    OptimizerRecord,
    described_model,
    model_bytes,
    model_of,
    state_in,
    suffix_of,
)
from horovod.spark.keras.training import KerasTask, train

if TYPE_CHECKING:
    from horovod.spark.common.runs import RunFolder
    from horovod.spark.common.training import TrainingData

__all__ = ["KerasEstimator"]


@with_params(
    CUSTOM_OBJECTS,
    ParamRow("checkpoint_callback", "in place of keras.callbacks.ModelCheckpoint"),
    ParamRow("data_module", "a class that feeds the ranks", ParquetDataModule),
    ParamRow("backend_env", "variables of the ranks", {"LIBHDFS_OPTS": "-Xms2048m -Xmx2048m"}),
    ParamRow(
        "tensorflow_dataset_prefetch_buffer_size",
        "batches that TensorFlow keeps ready; 0: it chooses",
        0,
        whole_number(0),
    ),
)
class KerasEstimator(KerasStage, HorovodEstimator):
    """Trains a model of Keras 3 on DataFrames, with the ranks of Horovod in the tasks of Spark.

    ``fit(df)`` writes the columns to Parquet in the store, starts the ranks, and returns a
    :class:`KerasModel`; the given model stays as it is. The learning rate is multiplied by the
    number of ranks, and is again what was given in the model that comes back. If a
    ``checkpoint_callback`` saves only the best model, the best one comes back.

    Args:
        params: Params by name, all optional for the constructor; ``fit`` needs ``model``, ``loss``,
            ``store``, ``feature_cols`` and ``label_cols``, and ``optimizer`` if the model is not
            compiled.

    Raises:
        TypeError: there is no such Param, or a value has the wrong type.
        ValueError: a value is out of range.

    Example:
        >>> estimator = KerasEstimator(
        ...     num_proc=2, store=Store.create("/shared/runs"), model=model,
        ...     optimizer=keras.optimizers.SGD(0.1), loss="sparse_categorical_crossentropy",
        ...     feature_cols=["pixels"], label_cols=["digit"], batch_size=32, epochs=5,
        ... )
        >>> predictions = estimator.fit(train).transform(test)
    """

    _run_prefix = "keras"

    def _check_params(self) -> None:
        super()._check_params()
        if not isinstance(self.value("model"), keras.Model):
            raise UsageError(
                f"KerasEstimator: model is a {type(self.value('model')).__name__}, not a model of "
                "Keras 3"
            )
        if self.value("loss") is None:
            raise UsageError("KerasEstimator: give loss")
        if self._optimizer() is None:
            raise UsageError("KerasEstimator: give optimizer, or compile the model")

    def _optimizer(self) -> Any:
        return self.value("optimizer") or getattr(self.value("model"), "optimizer", None)

    def _input_shapes(self) -> list[list[int]] | None:
        inputs = getattr(self.value("model"), "inputs", None)
        if inputs is None:
            return None
        return [[-1 if size is None else size for size in each.shape] for each in inputs]

    def _described_model(self) -> Any:
        return described_model(self.value("model"))

    def _described_optimizer(self) -> Any:
        return OptimizerRecord.of(self._optimizer()).described()

    def _train(self, backend: Any, data: TrainingData, run: RunFolder) -> KerasModel:
        compiling = {name: self.value(name) for name in ("loss", "loss_weights", "metrics")}
        task = KerasTask(
            data=data,
            run=run,
            model=model_bytes(self.value("model")),
            optimizer=OptimizerRecord.of(self._optimizer()),
            compiling=compiling,
            callbacks=self.value("callbacks"),
            checkpoint_callback=self.value("checkpoint_callback"),
            custom_objects=self.value("custom_objects"),
            compression=self.value("gradient_compression"),
            passes=self.value("backward_passes_per_step"),
            label_shapes=self.value("label_shapes"),
            prefetch=self.value("tensorflow_dataset_prefetch_buffer_size"),
            epochs=self.value("epochs"),
            floatx=keras.config.floatx(),
        )
        results = backend.run(train, args=(task,), env=dict(self.value("backend_env")))
        return self._model_of(task, results[0])

    def _model_of(self, task: KerasTask, checkpoint: bytes) -> KerasModel:
        model = model_of(task.model, task.custom_objects, compiled=False)
        # Copies: losses and metrics of Keras belong to the model that is compiled with them.
        compiling = cloudpickle.loads(cloudpickle.dumps(task.compiling))
        model.compile(optimizer=task.optimizer.made(task.custom_objects), **compiling)
        model.optimizer.build(model.trainable_variables)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"checkpoint{suffix_of(checkpoint)}")
            path.write_bytes(checkpoint)
            state = state_in(path)
            model.load_weights(path)
        if state["learning_rate"] is not None:
            model.optimizer.learning_rate = state["learning_rate"]
        return KerasModel(
            history=state["history"],
            model=model,
            custom_objects=self.value("custom_objects"),
            _floatx=task.floatx,
            **self._params_of_model(task.data, task.run),
        )
