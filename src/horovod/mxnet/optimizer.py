"""An optimizer that averages gradients first, for the Module interface."""

from __future__ import annotations

import copy
from typing import Any

import mxnet as mx

from horovod._train.optimizer_options import warn_of_plain_copy
from horovod._train.process_set import ProcessSet, global_process_set
from horovod.errors import UsageError
from horovod.mxnet.gradient_reducer import Gradient, GradientReducer

_OWN = ("_optimizer", "_reducer")


class DistributedOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc]
    """Averages gradients over the ranks before another optimizer uses them.

    What it has not itself is read from, and written to, the wrapped optimizer. Scripts for Modules
    give ``rescale_grad=1 / batch_size`` to that one, and ``kvstore=None`` to ``init_optimizer``.

    Args:
        optimizer: any optimizer of MXNet.
        gradient_predivide_factor: gradients are divided by it before the sum over the ranks, and by
            size / factor after it.
        num_groups: in how many operations the gradients of one update are reduced; 0 for one each.
        process_set: the ranks that average; others update with their own gradients.

    Raises:
        UsageError: ``optimizer`` is something else; the factor is 0; a negative number of groups.

    Example:
        >>> optimizer = mx.optimizer.create("sgd", rescale_grad=1.0 / batch_size)
        >>> module.init_optimizer(kvstore=None, optimizer=hvd.DistributedOptimizer(optimizer))
    """

    def __init__(
        self,
        optimizer: mx.optimizer.Optimizer,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        # Without the constructor of the base class, whose attributes would hide the wrapped ones.
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise UsageError(f"optimizer is a {type(optimizer).__name__}; mx.optimizer.create(...)")
        self._optimizer = optimizer
        self._reducer = GradientReducer(process_set, gradient_predivide_factor, num_groups, "")

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # while it is unpickled
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            super().__setattr__(name, value)
        else:
            setattr(self._optimizer, name, value)

    def __getstate__(self) -> Any:
        """Return what `dump_optimizer` writes: the wrapped optimizer, which any program can
        read.
        """
        return self._optimizer.__getstate__()

    def __deepcopy__(self, memo: Any) -> Any:
        copied = type(self).__new__(type(self))
        copied._optimizer = copy.deepcopy(self._optimizer, memo)
        copied._reducer = self._reducer.copied()
        return copied

    def __reduce__(self) -> Any:
        warn_of_plain_copy(self._reducer.process_set, stacklevel=3)
        return object.__new__, (type(self._optimizer),), self.__getstate__()

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the wrapped optimizer."""
        return self._optimizer.learning_rate

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Averages gradients in place, then updates weights; all of it later, by MXNet's engine.

        Args:
            index: of the parameter, or a list.
            weight, grad, state: of the parameter, or lists.
        """
        self._reduce(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Do the same as :meth:`update`, with float32 copies of the weights if the optimizer has
        them.
        """
        self._reduce(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def create_state(self, index: Any, weight: Any) -> Any:
        """The state of a parameter, of the wrapped optimizer."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """The state of a parameter, of the wrapped optimizer."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def set_learning_rate(self, lr: float) -> None:
        """Sets the learning rate of the wrapped optimizer."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        """Sets the multipliers of the learning rate, by parameter."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        """Sets the multipliers of the weight decay, by parameter."""
        self._optimizer.set_wd_mult(args_wd_mult)

    def _set_current_context(self, device_id: int) -> None:
        self._optimizer._set_current_context(device_id)

    def _reduce(self, index: Any, grad: Any) -> None:
        if isinstance(index, (list, tuple)):
            pairs = zip(index, grad, strict=True)
            self._reducer.reduce([Gradient(str(number), array) for number, array in pairs])
        else:
            self._reducer.reduce([Gradient(str(index), grad)])
