"""Traced functions that outlive their job, on each of two ranks that were alone before."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.gradient_reducer import GradientReducer
from horovod.tensorflow.reduction_settings import make_settings

_PLACES = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")


def _step(process_set: hvd.ProcessSet, name: str) -> Any:
    shared, local = tf.Variable(1.0, name="shared"), tf.Variable(1.0, name="local")
    reducer = GradientReducer(make_settings(name, process_set=process_set), numbered=True)
    reducer.register_local(local)

    @tf.function
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with hvd.DistributedGradientTape(tf.GradientTape(), process_set=process_set) as tape:
            y = shared * x
        taped = tape.gradient(y, [shared])
        return [*taped, *reducer.reduce([x, x], [shared, local])]

    return step


def _normalization(process_set: hvd.ProcessSet) -> Any:
    layer = hvd.SyncBatchNormalization(center=False, scale=False, process_set=process_set)

    @tf.function
    def normalize(x: tf.Tensor) -> tf.Tensor:
        return layer(tf.reshape(x, (1, 1)), training=True)[0, 0]

    return normalize


def _aggregation() -> tuple[Any, Any]:
    """A session's graph that divides the gradient of a local variable in every second pass."""
    graph = tf.Graph()
    with graph.as_default():
        variable = tf.compat.v1.get_variable("v", (), use_resource=True)
        helper = LocalGradientAggregationHelper(
            2, lambda grads, _: grads, False, True, 0, "optimizer_type_legacy"
        )
        helper.register_local_var(variable)
        (gradient,) = helper.compute_gradients([tf.constant(12.0)], [variable])
        session = tf.compat.v1.Session(graph=graph)
        session.run(tf.compat.v1.local_variables_initializer())
    return session, gradient


def run_before_and_after() -> list[dict[str, list[float]]]:
    """Traces alone, goes on with two ranks, which then change places, and is alone again.

    Returns:
        For each of the four jobs, what the functions gave.
    """
    own = {f"HOROVOD_{place}": os.environ[f"HOROVOD_{place}"] for place in _PLACES}
    alone = {name: "1" if name.endswith("SIZE") else "0" for name in own}
    other = str(1 - int(own["HOROVOD_RANK"]))
    swapped = {**own, "HOROVOD_RANK": other, "HOROVOD_LOCAL_RANK": other}
    first = hvd.ProcessSet([0])
    x = tf.constant(2.0 + 4.0 * int(own["HOROVOD_RANK"]))
    step, normalize = _step(hvd.global_process_set, "Every"), _normalization(hvd.global_process_set)
    session, gradient = _aggregation()
    some: Any = None
    found = []
    for environment in (alone, own, swapped, alone):
        os.environ.update(environment)
        hvd.init()
        job = {
            "every": [float(value) for value in step(x)],
            "normalized": [float(normalize(x))],
            "aggregated": [float(session.run(gradient)) for _ in range(2)][1:],
        }
        if hvd.size() > 1:
            hvd.add_process_set(first)
            some = some or (_step(first, "Some"), _normalization(first))
            job["some"] = [float(value) for value in some[0](x)]
            job["some normalized"] = [float(some[1](x))]
        found.append(job)
        hvd.shutdown()
    os.environ.update(own)
    return found
