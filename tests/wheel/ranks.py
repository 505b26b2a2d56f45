"""A job with nothing but what the wheel brings, which ends while daemon threads submit."""

from __future__ import annotations

import array
import importlib
import pkgutil
import threading

import horovod
from horovod._native import Buffer
from horovod._rank import context
from horovod.errors import MismatchError


def reduce(name: str, values: array.array[float]) -> None:
    buffer = Buffer(values.buffer_info()[0], "float32", (len(values),))
    context.global_group().allreduce([buffer], [buffer], name=name, keep=values).wait()


def submit_for_ever(name: str) -> None:
    while True:
        reduce(name, array.array("f", [1.0] * 10))
        going.release()


# What an extra installs, or the user.
LEFT_OUT = ("torch", "tensorflow", "keras", "mxnet", "jax", "numpy", "ray", "pyspark", "uvicorn")
for module in pkgutil.walk_packages(horovod.__path__, "horovod.", onerror=lambda _: None):
    try:
        if not module.name.split(".")[-1].startswith(("__main__", "libhorovod_")):
            importlib.import_module(module.name)
    except ImportError as error:
        if error.name not in LEFT_OUT:
            raise

context.init()
values = array.array("f", [1.0 + context.rank()] * 1000)
reduce("values", values)
assert values[0] == values[-1] == 1.5, values[0]

# An exception of the native code arrives as one of Python.
try:
    reduce("lengths", array.array("f", [0.0] * (10 + context.rank())))
    raise AssertionError("lengths differ")
except MismatchError as error:
    if "lengths" not in str(error):
        raise

# Python before 3.14 ends such threads with pthread_exit, which unwinds frames of the native code.
threading.excepthook = lambda _: None
going = threading.Semaphore(0)
for number in range(8):
    threading.Thread(target=submit_for_ever, args=(f"daemon{number}",), daemon=True).start()
for _ in range(100):
    going.acquire()
reduce("end", array.array("f", [1.0]))
print(f"rank {context.rank()} of {context.size()} has its results", flush=True)
