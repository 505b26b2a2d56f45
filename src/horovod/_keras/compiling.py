"""The extension of ``model.compile`` of Keras 3 for distributed optimizers."""

from __future__ import annotations

import functools
import inspect
import threading
import warnings
from typing import Any

from horovod._keras.loss_scale import with_loss_scale
from horovod._keras.reducing_optimizer import ReducingOptimizer
from horovod._keras.seam import seam_of
from horovod._keras.which import generation_of, keras_of

OBSOLETE = "experimental_run_tf_function"

_lock = threading.Lock()
_done: set[type] = set()


def prepare_compile(keras: Any) -> None:
    """Makes ``model.compile`` choose what works with a distributed optimizer.

    Keras asks the layers of a model whether XLA can compile it, never its optimizer. And for mixed
    precision it scales the loss by an optimizer around the given one, which would decide by the
    gradients of one rank. Models with other optimizers are compiled as ever. Keras 2 does neither.

    Args:
        keras: whose models.
    """
    if generation_of(keras) < 3:
        return
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
        if OBSOLETE in kwargs:
            del kwargs[OBSOLETE]
            _warn_of_obsolete()
        try:
            given = signature.bind(self, *args, **kwargs)
        except TypeError:
            given = None
        if given is None:
            return plain(self, *args, **kwargs)  # which says what is wrong
        given.apply_defaults()
        if isinstance(given.arguments["optimizer"], ReducingOptimizer):
            _choose(self, given.arguments)
        return plain(*given.args, **given.kwargs)

    return compile


@functools.cache
def _warn_of_obsolete() -> None:
    warnings.warn(
        f"model.compile({OBSOLETE}=...) has no effect and no longer exists in Keras 3; leave it "
        "out",
        stacklevel=3,
    )


def _choose(model: Any, arguments: dict[str, Any]) -> None:
    optimizer = arguments["optimizer"]
    keras = keras_of(type(optimizer))
    seam_of(keras).choose_compiler(arguments)
    scales = arguments.get("auto_scale_loss") and model.dtype_policy.name == "mixed_float16"
    if scales and not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        arguments["optimizer"] = with_loss_scale(optimizer)
