"""A job with PyTorch and TensorFlow, which were not there when the wheel was built."""

from __future__ import annotations

import sys
from pathlib import Path

import tensorflow as tf
import torch

import horovod
import horovod.tensorflow as hvd_tf
import horovod.torch as hvd

assert Path(horovod.__file__).is_relative_to(sys.prefix), "not from the wheel"

hvd.init()
size, rank = hvd.size(), hvd.rank()
assert hvd.allreduce(torch.full((5,), float(rank)), op=hvd.Sum).tolist() == [1.0] * 5

assert hvd_tf.allreduce(tf.fill([5], float(rank)), op=hvd_tf.Sum).numpy().tolist() == [1.0] * 5


@tf.function
def sums(value: tf.Tensor) -> tf.Tensor:
    return hvd_tf.allreduce(value, op=hvd_tf.Sum) + hvd_tf.allreduce(2 * value, op=hvd_tf.Sum)


assert sums(tf.fill([5], float(rank))).numpy().tolist() == [3.0] * 5
try:
    hvd_tf.allreduce(tf.zeros([5 + rank]), name="lengths")
    raise AssertionError("lengths differ")
except tf.errors.OpError as error:
    if "lengths" not in error.message:
        raise
print(f"rank {rank} of {size} has its results", flush=True)
