"""What ``model.compile`` does when it is given a distributed optimizer."""

from __future__ import annotations

import functools
import inspect
import threading
from typing import Any

import keras

from horovod._keras.optimizer import ReducingOptimizer, with_loss_scale
from horovod.errors import UsageError
from horovod.tensorflow.xla import REFUSAL

_lock = threading.Lock()
_done: set[type] = set()


def prepare_compile() -> None:
    """Makes ``model.compile`` choose what works with a distributed optimizer.

    Keras asks the layers of a model whether XLA can compile it, never its optimizer. And for mixed
    precision it scales the loss by an optimizer around the given one, which would decide by the
    gradients of one rank. Models with other optimizers are compiled as ever.
    """
    owner = next(kind for kind in keras.Model.__mro__ if "compile" in vars(kind))
    with _lock:
        if owner not in _done:
            # In place, not on keras.Model: a model whose compile() is not that of this class counts
            # as one with a compile() of its own, and is not compiled when it is loaded.
            owner.compile = _choosing(owner.compile)
            _done.add(owner)


def _choosing(plain: Any) -> Any:
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        if isinstance(given.arguments["optimizer"], ReducingOptimizer):
            _choose(self, given.arguments)
        return plain(*given.args, **given.kwargs)

    return compile


def _choose(model: Any, arguments: dict[str, Any]) -> None:
    if arguments["jit_compile"] is True and not arguments["run_eagerly"]:
        raise UsageError(REFUSAL)
    arguments["jit_compile"] = False
    optimizer = arguments["optimizer"]
    scales = arguments.get("auto_scale_loss") and model.dtype_policy.name == "mixed_float16"
    if scales and not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        arguments["optimizer"] = with_loss_scale(optimizer)
