"""hvd.DistributedOptimizer takes optimizers of Keras and of tf.compat.v1."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.errors import UsageError


def test_keras_optimizers_get_all_arguments() -> None:
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.5),
        "mine",
        op=hvd.Sum,
        groups=2,
        sparse_as_dense=True,
        backward_passes_per_step=3,
        average_aggregated_gradients=True,
    )
    settings = optimizer.wrapping.settings
    assert type(optimizer).__module__ == "horovod._keras"
    assert (settings.name, settings.op, settings.groups) == ("mine", hvd.Sum, 2)
    assert settings.sparse_as_dense
    assert (optimizer.wrapping.passes, optimizer.wrapping.average_aggregated_gradients) == (3, True)


def test_v1_optimizers_stay_such() -> None:
    plain = tf.compat.v1.train.GradientDescentOptimizer(0.5)
    optimizer = hvd.DistributedOptimizer(plain)
    assert isinstance(optimizer, tf.compat.v1.train.Optimizer)
    assert optimizer.get_name() == "DistributedGradientDescentOptimizer"


def test_what_is_refused() -> None:
    with pytest.raises(UsageError, match="op=Adasum is not possible with Keras"):
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.5), op=hvd.Adasum)
    with pytest.raises(UsageError, match=r"builtins\.str is an optimizer neither of Keras nor of"):
        hvd.DistributedOptimizer("sgd")


def test_warnings_point_here() -> None:
    for plain in (keras.optimizers.SGD(0.5), tf.compat.v1.train.GradientDescentOptimizer(0.5)):
        with pytest.warns(DeprecationWarning, match="use groups") as caught:
            hvd.DistributedOptimizer(plain, num_groups=2)
        assert caught[0].filename == __file__
