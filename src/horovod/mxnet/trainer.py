"""A gluon.Trainer that averages gradients over the ranks."""

from __future__ import annotations

import warnings
from typing import Any

import mxnet as mx

from horovod._train.process_set import ProcessSet, global_process_set
from horovod.errors import UsageError
from horovod.mxnet.compression import Compression
from horovod.mxnet.gradient_reducer import Gradient, GradientReducer
from horovod.mxnet.optimizer import DistributedOptimizer


class DistributedTrainer(mx.gluon.Trainer):  # type: ignore[misc]
    """Averages gradients over the ranks in each step, then updates parameters.

    ``step(batch_size)`` divides gradients by the batch size of one rank. To accumulate gradients of
    several batches, use ``grad_req="add"``, and take a step after the last of them.

    Args:
        params: a ParameterDict, a dict, or a list of parameters, in the same order on all ranks.
        optimizer: its name, or an optimizer of MXNet.
        optimizer_params: of an optimizer that is given by name.
        compression: how gradients travel, Compression.none or fp16, your own; or in 8
            bits between hosts (docs/compression.md): int8, fp8, fp8_e5m2.
        gradient_predivide_factor: gradients are divided by it before the sum over the ranks, and by
            size / factor after it.
        prefix: of the names of gradients; a second trainer in a job has one of its own.
        num_groups: in how many operations the gradients are reduced; 0 for one each.
        process_set: the ranks that average; others use their own gradients.

    Raises:
        UsageError: the arguments are wrong.

    Example:
        >>> trainer = hvd.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        >>> trainer.step(batch_size)
    """

    def __init__(
        self,
        params: Any,
        optimizer: Any,
        optimizer_params: dict[str, Any] | None = None,
        compression: Any = Compression.none,
        gradient_predivide_factor: float = 1.0,
        prefix: str | None = None,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        if not isinstance(prefix, (str, type(None))):
            raise UsageError(f"prefix={prefix!r} is no text")
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn(
                "DistributedTrainer averages gradients itself; give it the optimizer that "
                "DistributedOptimizer wraps",
                stacklevel=2,
            )
            optimizer = optimizer._optimizer
        self._reducer = GradientReducer(
            process_set, gradient_predivide_factor, num_groups, prefix or "", compression
        )
        super().__init__(params, optimizer, optimizer_params=optimizer_params, kvstore=None)

    def _allreduce_grads(self) -> None:
        self._reducer.reduce(
            [
                Gradient(str(number), _gradient_of(param))
                for number, param in enumerate(self._params)
                if param.grad_req != "null"
            ]
        )


def _gradient_of(param: Any) -> mx.nd.NDArray:
    gradients = param.list_grad()
    if len(gradients) != 1:
        raise UsageError(
            f"the parameter {param.name!r} is on {len(gradients)} contexts; start a rank for each, "
            "and initialize parameters on one context"
        )
    return gradients[0]
