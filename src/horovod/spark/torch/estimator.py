"""TorchEstimator: trains a model of PyTorch on all rows of a DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod.errors import UsageError
from horovod.spark.common.description import described_module
from horovod.spark.common.estimator import HorovodEstimator
from horovod.spark.common.param_table import ParamRow, with_params
from horovod.spark.torch.datamodule import ParquetDataModule
from horovod.spark.torch.losses import check_loss_by_row
from horovod.spark.torch.model import TorchModel, TorchStage
from horovod.spark.torch.model_bytes import OptimizerRecord, model_bytes, model_of
from horovod.spark.torch.shaping import one_for_each
from horovod.spark.torch.training import TorchTask, checkpoint_of, train

if TYPE_CHECKING:
    from horovod.spark.common.runs import RunFolder
    from horovod.spark.common.training import TrainingData

__all__ = ["TorchEstimator"]


@with_params(
    ParamRow("data_module", "a class that feeds the ranks", ParquetDataModule),
    ParamRow("input_shapes", "a shape for each feature, with -1 for the batch"),
    ParamRow("loss_constructors", "in place of loss: what makes it on a rank, given keywords"),
    ParamRow("train_minibatch_fn", "in place of the step of the training"),
)
class TorchEstimator(TorchStage, HorovodEstimator):
    """Trains a model of PyTorch on DataFrames, with the ranks of Horovod in the tasks of Spark.

    ``fit(df)`` writes the columns to Parquet in the store, starts the ranks, and returns a
    :class:`TorchModel`. The learning rate is multiplied by the number of ranks, and is again what
    was given in the model that comes back.

    Features become tensors of the model's floating-point type, in ``input_shapes``. A label takes
    the shape of its output, or of ``label_shapes``.

    Args:
        params: Params by name, all optional for the constructor; ``fit`` needs ``model``,
            ``optimizer``, ``loss`` (or ``loss_constructors``), ``store``, ``feature_cols`` and
            ``label_cols``.

    Raises:
        TypeError: there is no such Param, or a value has the wrong type.
        ValueError: a value is out of range.

    Example:
        >>> estimator = TorchEstimator(
        ...     num_proc=2, store=Store.create("/shared/runs"), model=model,
        ...     optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        ...     loss=torch.nn.functional.cross_entropy, input_shapes=[[-1, 64]],
        ...     feature_cols=["pixels"], label_cols=["digit"], batch_size=32, epochs=5,
        ... )
        >>> predictions = estimator.fit(train).transform(test)
    """

    _run_prefix = "pytorch"

    def _check_params(self) -> None:
        super()._check_params()
        has_loss = self.value("loss") is not None
        if has_loss == (self.value("loss_constructors") is not None):
            raise UsageError("TorchEstimator: give either loss or loss_constructors")
        if self.value("optimizer") is None:
            raise UsageError("TorchEstimator: give optimizer, made with model.parameters()")
        weights = self.value("loss_weights")
        labels = self.value("label_cols")
        if weights is not None:
            one_for_each(weights, len(labels), "loss_weights")
        if has_loss:
            losses = one_for_each(self.value("loss"), len(labels), "loss")
            for loss in losses if self.value("sample_weight_col") else ():
                check_loss_by_row(loss)

    def _described_model(self) -> Any:
        return described_module(self.value("model"), with_values=False)

    def _described_optimizer(self) -> Any:
        return OptimizerRecord.of(self.value("optimizer"), self.value("model")).described()

    def _train(self, backend: Any, data: TrainingData, run: RunFolder) -> TorchModel:
        model, optimizer = self.value("model"), self.value("optimizer")
        record = OptimizerRecord.of(optimizer, model)
        task = TorchTask(
            data=data,
            run=run,
            model=model_bytes(model),
            optimizer=record,
            loss=self.value("loss"),
            loss_constructors=self.value("loss_constructors"),
            loss_weights=self.value("loss_weights"),
            metrics=self.value("metrics"),
            input_shapes=self.value("input_shapes"),
            label_shapes=self.value("label_shapes"),
            compression=self.value("gradient_compression"),
            passes=self.value("backward_passes_per_step"),
            epochs=self.value("epochs"),
            minibatch=self.value("train_minibatch_fn"),
        )
        results = backend.run(train, args=(task,))
        return self._model_of(task, results[0])

    def _model_of(self, task: TorchTask, checkpoint: bytes) -> TorchModel:
        state = checkpoint_of(checkpoint)
        # Not the user's own, which stays as it is.
        model = model_of(task.model)
        model.load_state_dict(state["model"])
        optimizer = task.optimizer.bound_to(model)
        optimizer.load_state_dict(state["optimizer"])
        return TorchModel(
            history=state["history"],
            model=model.eval(),
            input_shapes=self.value("input_shapes"),
            optimizer=optimizer,
            loss=self.value("loss"),
            loss_constructors=self.value("loss_constructors"),
            **self._params_of_model(task.data, task.run),
        )
