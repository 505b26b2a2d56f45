"""The contract suite's view of horovod.mxnet."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np
from mxnet_lacking import lacking

import horovod.mxnet as hvd
from horovod.mxnet.native_ops import IS_NAIVE

if TYPE_CHECKING:
    from collections.abc import Callable

# MXNet runs them; the others wait where they are called.
_LAZY = ("allreduce", "broadcast")


class MXNetApi:
    """See :class:`collectives.Api`."""

    interface = hvd
    abilities = ()

    lacking_dtypes = ("bfloat16", "int16", "uint16", "uint32", "uint64")

    def tensor(self, values: Any, dtype: str) -> Any:
        return mx.nd.array(np.asarray(values).astype(dtype), dtype=dtype)

    def values(self, tensor: Any) -> Any:
        values = tensor.asnumpy()
        return values.astype("float64" if values.dtype.kind == "f" else "int64")

    def dtype(self, tensor: Any) -> str:
        return str(np.dtype(tensor.dtype))

    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any:
        return _awaited(getattr(hvd, function)(*args, **kwargs))

    def start(self, function: str, /, *args: Any, **kwargs: Any) -> Any:
        if function in _LAZY and not IS_NAIVE:
            return getattr(hvd, function)(*args, **kwargs)
        done: Future[Any] = Future()

        def body() -> None:
            try:
                done.set_result(self.call(function, *args, **kwargs))
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=body, daemon=True).start()
        return done

    def finish(self, handle: Any) -> Any:
        return handle.result(timeout=60) if isinstance(handle, Future) else _awaited(handle)

    def gradient(
        self, function: Callable[[Any], Any], values: Any, weight: Callable[[Any], Any]
    ) -> Any:
        raise NotImplementedError

    def reduced(
        self, passes: list[dict[str, Any]], weights: list[float] | None, is_mean: bool
    ) -> dict[str, Any]:
        optimizer = hvd.DistributedOptimizer(mx.optimizer.SGD(learning_rate=1.0))
        found = {}
        for number, (name, values) in enumerate(passes[0].items()):
            gradient = self.tensor(values, values.dtype.name)
            weight = mx.nd.zeros_like(gradient)
            optimizer.update(number, weight, gradient, None)
            found[name] = -weight.asnumpy()
        return found


def _awaited(result: Any) -> Any:
    for each in result if isinstance(result, (list, tuple)) else (result,):
        if isinstance(each, mx.nd.NDArray):
            each.wait_to_read()
    return result


def run_all_checks() -> list[str]:
    """Joins the job and runs every check; returns their names. Runs on each rank of a job."""
    from checks import CHECKS

    mx.util.set_np_shape(True)  # shapes may be empty, or hold zeros
    hvd.init()
    done = []
    for check in CHECKS:
        if check.__name__ not in lacking(IS_NAIVE):
            check(MXNetApi(), hvd.rank(), hvd.size())
            done.append(check.__name__)
    hvd.shutdown()
    return done
