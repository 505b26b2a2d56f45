"""Finds replicas that have diverged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import mxnet as mx

from horovod._train import sync_check
from horovod._train.call_site import call_site
from horovod._train.process_set import ProcessSet, global_process_set, group_of
from horovod._train.sync_check import Array
from horovod.errors import UsageError
from horovod.mxnet.tensors import dtype_name


def check_in_sync(values: Any, process_set: ProcessSet = global_process_set) -> None:
    """Checks that arrays have the same bits on all ranks, and says which do not, and where.

    Every byte is read; one small operation compares all arrays. All ranks of the set must call it.

    Args:
        values: a gluon Block, a ParameterDict, a dict of arrays or parameters, or pairs of name and
            array.
        process_set: the ranks that compare.

    Raises:
        ReplicasDivergedError: on all ranks, if an array differs in bits, dtype or shape, or is
            missing on some; it names the first arrays and the ranks that differ from the majority.
        UsageError: ``values`` is something else.
        HorovodInternalError: the job failed.
    """
    site = call_site()
    arrays = [_array(name, array) for name, array in _named_arrays(values)]
    sync_check.check_in_sync(group_of(process_set), arrays, site)


def _named_arrays(values: Any) -> Iterator[tuple[str, mx.nd.NDArray]]:
    if isinstance(values, mx.gluon.Block):
        values = values.collect_params()
    if isinstance(values, (Mapping, mx.gluon.ParameterDict)):
        values = values.items()
    if not isinstance(values, Iterable):
        raise UsageError(f"check_in_sync cannot take a {type(values).__name__}; give a Block")
    for name, value in values:
        array = value.data() if isinstance(value, mx.gluon.Parameter) else value
        if not isinstance(array, mx.nd.NDArray):
            raise UsageError(f"{name!r} is a {type(array).__name__}, neither array nor parameter")
        yield str(name), array


def _array(name: str, array: mx.nd.NDArray) -> Array:
    num_bytes = array.size * array.dtype().itemsize
    layout = f"{dtype_name(array)} {array.shape}"
    return Array(name, layout, num_bytes, lambda: array.asnumpy().reshape(-1).view("uint8").data)
