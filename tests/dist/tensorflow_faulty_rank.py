"""A rank that reduces until rank 1 dies: run by test_tensorflow_faults.py on every rank of a job.

Arguments: the mode ("eager", "function", "session") and the fault ("kill", "exit_early").
Every other rank prints the error that it got, and when.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import tensorflow as tf

import horovod.tensorflow as hvd


def runner(mode: str) -> Any:
    """A function that reduces once, in many operations at a time."""

    def reduce(x: Any) -> Any:
        return [hvd.allreduce(x, op=hvd.Sum, name=f"gradient_{i}") for i in range(20)]

    if mode == "eager":
        return lambda: reduce(tf.ones(1000))
    if mode == "function":
        function = tf.function(reduce)
        return lambda: function(tf.ones(1000))
    with tf.Graph().as_default() as graph:
        total = reduce(tf.ones(1000))
    session = tf.compat.v1.Session(graph=graph)
    return lambda: session.run(total)


def main(mode: str, fault: str) -> None:
    tf.config.threading.set_inter_op_parallelism_threads(1)
    hvd.init()
    step = runner(mode)
    for _ in range(5):
        step()
    if hvd.rank() == 1:
        print(f"fault {time.time()}", flush=True)
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return
    try:
        while True:
            step()
    except tf.errors.OpError as error:
        text = error.message.replace("\n", " ")
        print(f"error {time.time()} {type(error).__name__}: {text}", flush=True)
        raise


main(sys.argv[1], sys.argv[2])
