"""The simple way of elastic training with TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import tensorflow as tf

from horovod._keras.accumulating import check_accumulates
from horovod._keras.reducing_optimizer import ReducingOptimizer
from horovod._rank import context
from horovod._train.elastic.loop import ElasticLoop
from horovod.errors import UsageError
from horovod.tensorflow.elastic.run import engine_errors
from horovod.tensorflow.elastic.samples import makes_batches, report_unused_epoch_end, samples_of
from horovod.tensorflow.elastic.state import TensorFlowKerasState
from horovod.tensorflow.elastic.step_aggregation import StepAggregation
from horovod.tensorflow.gradient_reducer import GradientReducer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from horovod._train.elastic.ledger import Ledger, Share
    from horovod.tensorflow.interface_types import Model, Optimizer

__all__ = ["Training"]

TapeT = TypeVar("TapeT", bound=tf.GradientTape)


class Training(ElasticLoop):
    """Makes a plain training loop elastic: it goes on when ranks come or go.

    The loops are those of any script. Between two batches, ranks come and leave without loss of a
    step. If a rank is lost, ``with training.guard()`` ends silently where a collective of the step
    fails; the body of the loop runs to its end, and at the next batch model, optimizer and all else
    given here go back to the last commit, and so do the batches. **What is repeated** is the body
    of the loop, for the steps since the last commit, and nothing else: the program is never sent
    back behind the beginning of a loop. What else the body changes should be given to
    :meth:`track`, or bear to be done again. A newcomer runs the program from its start, without the
    batches that are done. Functions that ``tf.function`` has compiled stay.

    Commits are in memory: at the beginning and the end of each loop and epoch, and
    ``commit_every_s`` after the last one.

    - Code between the loops runs once on each rank that was there. It must not communicate.
    - What communicates in the body, the step above all, stands in ``with training.guard():``.
    - One batch is one step of the optimizer, unless ``batches(global_batch=...)`` says how many
      samples a step has. Then ``apply_gradients()`` of a ``hvd.DistributedOptimizer`` does nothing
      until the batch with which a step ends, where ``ends_step`` is true.
    - Make the training before the first step: what is compiled weighs the gradients by it.

    Args:
        model: of Keras with its weights, a ``tf.Module``, or None.
        optimizer: a ``hvd.DistributedOptimizer``, or a plain one beside a tape that :meth:`weigh`
            was given; that of the model if None.
        commit_every_s: how old the last commit may be when a step ends, in seconds; 0 commits
            after each step.
        kwargs: what else has a state: variables, lists of them, models, optimizers; or plain
            values, which :meth:`track` is for.

    Raises:
        UsageError: the model has no weights yet, an optimizer takes a step of several batches, an
            argument is wrong, or eager execution is disabled.

    Example:
        >>> training = hvd.elastic.Training(model=model, optimizer=optimizer)
        >>> for epoch in training.epochs(10):
        ...     for images, labels in training.batches((images, labels), batch_size=32):
        ...         with training.guard():
        ...             step(images, labels)
    """

    def __init__(
        self,
        model: Model | None = None,
        optimizer: Optimizer | None = None,
        *,
        commit_every_s: float = 10.0,
        **kwargs: object,
    ) -> None:
        if not tf.executing_eagerly():
            raise UsageError("Training needs eager execution; with sessions use hvd.elastic.run")
        with tf.device("CPU:0"):
            self._weight = tf.Variable(1.0, False, dtype=tf.float64, name="weight_of_rank")
        self._weighs = False
        self._weighs_tape = False
        self._aggregations: list[StepAggregation] = []
        self._reported: set[type] = set()
        state = _TrainingState(model, optimizer, **kwargs)
        super().__init__(state, commit_every_s, engine_errors)
        self._owners = [state.optimizer, *kwargs.values()]
        for each in self._owners:
            weigh(each, self._weight)

    def weigh(self, tape: TapeT) -> TapeT:
        """Lets the average of a tape weigh each rank by its samples; optimizers need no such call.

        Args:
            tape: a ``hvd.DistributedGradientTape``.

        Returns:
            The tape.

        Raises:
            UsageError: it reduces no gradients.
        """
        if not weigh(tape, self._weight):
            raise UsageError(f"weigh({type(tape).__name__}): give a hvd.DistributedGradientTape")
        self._weighs_tape = True
        return tape

    def _check_accumulates(self, dataset: Any) -> None:
        if makes_batches(dataset):
            raise UsageError(
                f"global_batch of {type(dataset).__name__}, which makes batches of its own: a "
                "global batch counts samples; leave global_batch out"
            )
        if self._weighs_tape:
            raise UsageError(
                "global_batch with a DistributedGradientTape, which reduces the gradients of each "
                "batch: compute them with a plain tape, and apply them with a "
                "hvd.DistributedOptimizer that Training was given"
            )
        if not self._aggregations:
            self._aggregations = aggregations_of(self._owners)

    def _begin_aggregations(self, share: Share | None) -> None:
        for aggregation in self._aggregations:
            aggregation.begin(share)

    def _end_pass(self, loop: str, share: Share) -> bool:
        if self._step_samples is not None and self._loss is None:
            for aggregation in self._aggregations:
                aggregation.check_used()
        return super()._end_pass(loop, share)

    def _end_passes(self) -> None:
        super()._end_passes()
        self._begin_aggregations(None)

    def _length_of(self, dataset: Any) -> int:
        return len(samples_of(dataset))

    def _batch_size_of(self, dataset: Any, batch_size: int | None) -> int:
        if batch_size is None and makes_batches(dataset):
            if type(dataset) not in self._reported:
                report_unused_epoch_end(dataset)
                self._reported.add(type(dataset))
            return 1
        if batch_size is None or batch_size < 1 or makes_batches(dataset):
            raise UsageError(
                f"batch_size={batch_size} of {type(dataset).__name__}: say how many samples a rank "
                "has in a step, except where the data is made of batches"
            )
        return batch_size

    def _read(
        self, dataset: Any, ledger: Ledger, rank: int, size: int, batch_size: int
    ) -> Iterator[tuple[Share, Any]]:
        steps = (share.indices for share in ledger.shares(rank, size, batch_size))
        batches = samples_of(dataset).read(steps, batch_size)
        return zip(ledger.shares(rank, size, batch_size), batches, strict=True)

    def _before_step(self, share: Share) -> None:
        self._begin_aggregations(None if self._step_samples is None else share)
        if share.is_full and not self._weighs:
            return
        self._weighs = not share.is_full
        self._weight.assign(share.of_step * context.size() / share.total if self._weighs else 1.0)


def weigh(owner: Any, weight: tf.Variable) -> bool:
    """Weigh what an owner reduces; return whether it reduces gradients.

    Args:
        owner: an optimizer, a tape, or anything else.
        weight: of this rank's gradients.

    Raises:
        UsageError: it takes a step of several batches.
    """
    if owner is None:
        return False
    # Of a LossScaleOptimizer, the inner one does.
    found = weigh(getattr(owner, "inner_optimizer", None), weight)
    reducer = vars(owner).get("_reducer") if hasattr(owner, "__dict__") else None
    if hasattr(owner, "get_outer_state"):
        raise UsageError(
            "LocalSGD and DiLoCo: Training weighs the gradients of ranks that have fewer samples, "
            "but with local steps no gradients are averaged; use hvd.elastic.KerasState"
        )
    if not isinstance(reducer, GradientReducer):
        return found
    wrapping = getattr(owner, "wrapping", None)
    if wrapping is not None and wrapping.passes > 1:
        raise UsageError("backward_passes_per_step: Training takes a step per batch")
    reducer.weight = weight
    return True


def aggregations_of(owners: Iterable[Any]) -> list[StepAggregation]:
    """Let the distributed optimizers among some values take a step for several passes.

    Returns:
        What says to each of them which pass it is.

    Raises:
        UsageError: there is none, or one cannot.
    """
    optimizers = [each for each in owners if isinstance(each, ReducingOptimizer)]
    if not optimizers:
        raise UsageError(
            "global_batch without a hvd.DistributedOptimizer: give Training the one that takes the "
            "steps, by itself or as that of the model"
        )
    for optimizer in optimizers:
        check_accumulates(optimizer)
    for optimizer in optimizers:
        if not isinstance(optimizer._agg_helper, StepAggregation):
            reducer: Any = optimizer._reducer
            settings = optimizer.wrapping.settings
            optimizer._agg_helper = StepAggregation(reducer.reduce, settings.sparse_as_dense)
    return [each._agg_helper for each in optimizers]


class _TrainingState(TensorFlowKerasState):
    """A model may be missing."""

    def _trained_by(self, optimizer: Any) -> list[Any] | None:
        return None if self.model is None else super()._trained_by(optimizer)
