"""TorchEstimator of Lightning: trains a module on all rows of a DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.ml.param import TypeConverters

from horovod.errors import UsageError
from horovod.spark.common.datamodule import ParquetDataModule
from horovod.spark.common.description import described_module
from horovod.spark.common.estimator import HorovodEstimator
from horovod.spark.common.param_table import ParamRow, whole_number, with_params
from horovod.spark.lightning.library import is_module
from horovod.spark.lightning.model import TorchModel
from horovod.spark.lightning.training import LightningTask, train
from horovod.spark.torch.losses import check_loss_by_row
from horovod.spark.torch.model import TorchStage
from horovod.spark.torch.model_bytes import OptimizerRecord, model_bytes, model_of
from horovod.spark.torch.plain import loaded
from horovod.spark.torch.shaping import one_for_each

if TYPE_CHECKING:
    from horovod.spark.common.runs import RunFolder
    from horovod.spark.common.training import TrainingData

__all__ = ["TorchEstimator"]


@with_params(
    ParamRow("input_shapes", "a shape for each feature, with -1 for the batch"),
    ParamRow("loss_constructors", "accepted, no effect"),
    ParamRow("train_minibatch_fn", "accepted, no effect"),
    ParamRow("num_gpus", "accepted: each rank has one GPU, or none", stems=("NumGPUs",)),
    ParamRow("logger", "of the Trainer; None for none"),
    ParamRow("log_every_n_steps", "of the Trainer", 50, whole_number(1)),
    ParamRow(
        "data_module", "a class that feeds the ranks, of LightningDataModule", ParquetDataModule
    ),
    ParamRow("loader_num_epochs", "accepted, no effect: readers go on as long as needed"),
    ParamRow("terminate_on_nan", "stop at the first NaN", False, TypeConverters.toBoolean),
    ParamRow("profiler", "of the Trainer"),
    ParamRow("trainer_args", "arguments of the Trainer, which count more than all others"),
    ParamRow("debug_data_loader", "accepted, no effect", False, TypeConverters.toBoolean),
    ParamRow("train_async_data_loader_queue_size", "accepted, no effect: readers read ahead"),
    ParamRow("val_async_data_loader_queue_size", "accepted, no effect: readers read ahead"),
)
class TorchEstimator(TorchStage, HorovodEstimator):
    """Trains a LightningModule on DataFrames, with the ranks of Horovod in the tasks of Spark.

    The steps of the module get batches that are dicts: the name of a column and a tensor. Numbers
    that are not integers have the floating-point type of the model. A plain model of PyTorch works,
    too, if ``optimizer`` and ``loss`` are given. Learning rates are multiplied by the number of
    ranks.

    Args:
        params: Params by name, all optional for the constructor; ``fit`` needs ``model``,
            ``store``, ``feature_cols`` and ``label_cols``.

    Raises:
        TypeError: there is no such Param, or a value has the wrong type.
        ValueError: a value is out of range.

    Example:
        >>> estimator = TorchEstimator(
        ...     num_proc=2, store=Store.create("/shared/runs"), model=Digits(),
        ...     input_shapes=[[-1, 64]], feature_cols=["pixels"], label_cols=["digit"], epochs=5,
        ... )
        >>> predictions = estimator.fit(train).transform(test)
    """

    _run_prefix = "pytorch"

    def _check_params(self) -> None:
        super()._check_params()
        names = ("optimizer", "loss", "loss_weights")
        given = [name for name in names if self.value(name) is not None]
        if is_module(self.value("model")):
            if given:
                raise UsageError(f"TorchEstimator: a LightningModule has its own {given[0]}")
        elif missing := [name for name in names[:2] if name not in given]:
            raise UsageError(f"TorchEstimator: a plain model of PyTorch needs {missing[0]}")
        else:
            losses = one_for_each(self.value("loss"), len(self.value("label_cols")), "loss")
            for loss in losses if self.value("sample_weight_col") else ():
                check_loss_by_row(loss)

    def _described_model(self) -> Any:
        return described_module(self.value("model"), with_values=False)

    def _described_optimizer(self) -> Any:
        optimizer = self.value("optimizer")
        if optimizer is None:  # the module makes it
            return None
        return OptimizerRecord.of(optimizer, self.value("model")).described()

    def _train(self, backend: Any, data: TrainingData, run: RunFolder) -> TorchModel:
        model, optimizer = self.value("model"), self.value("optimizer")
        task = LightningTask(
            data=data,
            run=run,
            model=model_bytes(model),
            optimizer=None if optimizer is None else OptimizerRecord.of(optimizer, model),
            loss=self.value("loss"),
            loss_weights=self.value("loss_weights"),
            callbacks=self.value("callbacks"),
            input_shapes=self.value("input_shapes"),
            label_shapes=self.value("label_shapes"),
            compression=self.value("gradient_compression"),
            passes=self.value("backward_passes_per_step"),
            epochs=self.value("epochs"),
            options=self._trainer_options(),
        )
        results = backend.run(train, args=(task,))
        state = loaded(results[0], "TorchEstimator of Lightning")
        trained = model_of(task.model)
        trained.load_state_dict(state["model"])
        return TorchModel(
            history=state["metrics"],
            model=trained.eval(),
            input_shapes=self.value("input_shapes"),
            **self._params_of_model(task.data, task.run),
        )

    def _trainer_options(self) -> dict[str, Any]:
        steps = {
            "limit_train_batches": self.value("train_steps_per_epoch"),
            "limit_val_batches": self.value("validation_steps_per_epoch"),
        }
        return {
            **{name: value for name, value in steps.items() if value is not None},
            "logger": self.value("logger") or False,
            "log_every_n_steps": self.value("log_every_n_steps"),
            "detect_anomaly": self.value("terminate_on_nan"),
            "profiler": self.value("profiler"),
            **(self.value("trainer_args") or {}),
        }
