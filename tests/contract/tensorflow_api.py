"""The contract suite's view of horovod.tensorflow, in its three ways to run an operation."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from checks import CHECKS

import horovod.tensorflow as hvd
from horovod.errors import HorovodInternalError, UsageError
from horovod.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager
from horovod.tensorflow.gradient_reducer import GradientReducer
from horovod.tensorflow.reduction_settings import make_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MODES = ("eager", "function", "session")

_NO_HANDLES = "TensorFlow's interface has no handles"
_NO_ORDER = "starts operations without a name, and threads have no order"
_NO_WEIGHT = "TensorFlow's functions take no weight"

LACKING = {
    "a_handle_says_when_its_operation_is_done": _NO_HANDLES,
    "a_handle_is_used_up_by_synchronize": _NO_HANDLES,
    "a_failed_operation_is_done_and_raises_once": _NO_HANDLES,
    "handles_can_be_awaited_in_any_order": _NO_HANDLES,
    "each_operation_returns_its_kind": _NO_HANDLES,
    "a_name_in_flight_is_refused_and_the_first_goes_on": _NO_HANDLES,
    "operations_in_place_return_the_tensor_itself": "TensorFlow's tensors cannot change",
    "groups_may_hold_anything_but_nothing": "an empty list is returned as it is",
    "operations_of_all_kinds_run_together": _NO_ORDER,
    "sets_come_and_go_while_operations_are_in_flight": _NO_ORDER,
    "a_device_that_is_not_there_is_passed_over": "join() has no argument for it",
    "averages_can_divide_by_those_that_have_not_joined": "join() has no argument for it",
    "weights_count_as_often_as_they_say": _NO_WEIGHT,
    "a_weight_may_be_zero_but_not_all": _NO_WEIGHT,
    "large_halves_do_not_overflow_on_the_way": _NO_WEIGHT,
    "weights_that_make_no_sense_are_refused": _NO_WEIGHT,
    "weighted_averages_leave_out_the_joined": _NO_WEIGHT,
}
"""What the interface lacks, and so is not run, with the reason."""

_PLAIN = ("add_process_set", "remove_process_set")


class TensorFlowApi:
    """See :class:`collectives.Api`. Tensors are eager; modes differ in how a function is run.

    Args:
        mode: by itself, in a tf.function of its own, or in a session over a graph of its own.
    """

    def __init__(self, mode: str) -> None:
        self._run = getattr(self, f"_run_{mode}")
        self._mode = mode

    interface = hvd
    abilities = ("complex", "passes", "mean of passes", "weights")

    def tensor(self, values: Any, dtype: str) -> Any:
        return tf.cast(tf.constant(np.asarray(values)), dtype)

    def values(self, tensor: Any) -> Any:
        tensor = tf.convert_to_tensor(tensor)
        return tf.cast(tensor, tf.float64 if tensor.dtype.is_floating else tf.int64).numpy()

    def dtype(self, tensor: Any) -> str:
        return str(tensor.dtype.name)

    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any:
        public = getattr(hvd, function)
        if function in _PLAIN or not tf.executing_eagerly():
            return public(*args, **kwargs)
        try:
            result = self._run(public, args, kwargs)
        except (tf.errors.InvalidArgumentError, ValueError) as error:  # the latter of a graph
            raise UsageError(str(error)) from error
        except (
            tf.errors.FailedPreconditionError,
            tf.errors.UnknownError,
            tf.errors.AbortedError,
        ) as error:
            raise HorovodInternalError(str(error)) from error
        return int(result) if function == "join" else result

    def start(self, function: str, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()

        def body() -> None:
            try:
                done.set_result(self.call(function, *args, **kwargs))
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=body, daemon=True).start()
        return done

    def finish(self, handle: Future[Any]) -> Any:
        return handle.result(timeout=60)

    def gradient(
        self, function: Callable[[Any], Any], values: Any, weight: Callable[[Any], Any]
    ) -> Any:
        if self._mode == "session":
            return self._gradient_in_session(function, values, weight)
        x = tf.constant(values, tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
            total = tf.reduce_sum(tf.constant(weight(self.values(y)), y.dtype) * y)
        return tape.gradient(total, x).numpy()

    def _gradient_in_session(
        self, function: Callable[[Any], Any], values: Any, weight: Callable[[Any], Any]
    ) -> Any:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            x = tf.compat.v1.placeholder(tf.float32, np.shape(values))
            y = function(x)
            factor = tf.compat.v1.placeholder(y.dtype)
            (gradient,) = tf.gradients(tf.reduce_sum(factor * y), x)
            result = session.run(y, {x: values})
            return session.run(gradient, {x: values, factor: weight(result)})

    def reduced(
        self, passes: list[dict[str, Any]], weights: list[float] | None, is_mean: bool
    ) -> dict[str, Any]:
        """As optimizers of Keras do; in eager mode and functions, as sessions have no such."""
        reducer = GradientReducer(make_settings("contract"), numbered=True)
        if weights is not None:  # as hvd.elastic.Training does
            own = tf.constant(weights[0], tf.float64)
            reducer.weight = tf.Variable(own / hvd.allreduce(own, op=hvd.Average, name="mean"))
        helper = LocalGradientAggregationHelperEager(
            len(passes), reducer.reduce, average_aggregated_gradients=is_mean
        )
        variables = [tf.Variable(tf.zeros_like(values)) for values in passes[0].values()]

        def add(gradients: list[Any]) -> Any:
            if len(passes) == 1:
                return reducer.reduce(gradients, variables)
            return helper.compute_gradients(gradients, variables)

        step = tf.function(add, autograph=False) if self._mode == "function" else add
        for tree in passes:
            reached = step([tf.constant(values) for values in tree.values()])
        return {name: value.numpy() for name, value in zip(passes[0], reached, strict=True)}

    def _run_eager(self, public: Any, args: Any, kwargs: Any) -> Any:
        return public(*args, **kwargs)

    def _run_function(self, public: Any, args: Any, kwargs: Any) -> Any:
        given = tf.nest.flatten((args, kwargs))
        places = [i for i, each in enumerate(given) if tf.is_tensor(each)]

        def body(*tensors: Any) -> Any:
            again_args, again_kwargs = _packed((args, kwargs), given, places, tensors)
            result = public(*again_args, **again_kwargs)
            return None if isinstance(result, tf.Operation) else result  # a barrier

        return tf.function(body, autograph=False)(*(given[i] for i in places))

    def _run_session(self, public: Any, args: Any, kwargs: Any) -> Any:
        given = tf.nest.flatten((args, kwargs))
        places = [i for i, each in enumerate(given) if tf.is_tensor(each)]
        values = [given[i].numpy() for i in places]
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            tensors = [tf.compat.v1.placeholder(given[i].dtype, None) for i in places]
            again_args, again_kwargs = _packed((args, kwargs), given, places, tensors)
            result = public(*again_args, **again_kwargs)
            got = session.run(result, dict(zip(tensors, values, strict=True)))
        return tf.nest.map_structure(tf.convert_to_tensor, got) if got is not None else None


def _packed(structure: Any, given: list[Any], places: list[int], tensors: Any) -> Any:
    """The arguments with other tensors in the places of those that were given."""
    again = list(given)
    for place, tensor in zip(places, tensors, strict=True):
        again[place] = tensor
    return tf.nest.pack_sequence_as(structure, again)


def run_checks(modes: Sequence[str] = MODES) -> dict[str, list[str]]:
    """Run every check in each mode, each mode in a job of its own; return their names.

    Called on each rank. TensorFlow is loaded once for all modes: that takes longer than the checks.
    """
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    return {mode: _run_checks_in(mode) for mode in modes}


def _run_checks_in(mode: str) -> list[str]:
    hvd.init()
    done = []
    for check in CHECKS:
        if check.__name__ in LACKING:
            continue
        check(TensorFlowApi(mode), hvd.rank(), hvd.size())
        done.append(check.__name__)
    hvd.shutdown()
    return done
