"""One rank of test_mxnet_faults.py: rank 1 dies in the way that is named."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import mxnet as mx

import horovod.mxnet as hvd

if TYPE_CHECKING:
    from collections.abc import Callable


def _expect_error(read: Callable[[], Any], *words: str) -> None:
    try:
        read()
    except mx.base.MXNetError as error:
        caught = error
    else:
        raise AssertionError("garbage was read")
    assert isinstance(caught, hvd.HorovodInternalError)
    missing = [word for word in words if word not in str(caught)]
    assert not missing, f"{missing} not in {caught}"


def _kill_rank_1() -> None:
    """End rank 1 when no other rank waits for an operation from before."""
    with suppress(hvd.HorovodInternalError):  # rank 1 may die before the others leave the barrier
        hvd.barrier()
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def dies_while_arrays_are_reduced() -> None:
    """What was pushed, and all that depends on it, tells of the dead rank each time it is read."""
    hvd.allreduce(mx.nd.ones(3), name="before").wait_to_read()
    weight = mx.nd.ones(1000)
    _kill_rank_1()
    gradient = hvd.allreduce(mx.nd.ones(1000), name="gradient")
    later = gradient * 2
    mx.nd.sgd_update(weight, gradient, out=weight, lr=0.1)
    words = ("rank 1 ", "gradient")
    for read in (
        gradient.asnumpy,
        later.asnumpy,
        later.wait_to_read,
        weight.asnumpy,
        mx.nd.waitall,
        later.asnumpy,
        gradient.asnumpy,
        lambda: later.sum().asscalar(),
        lambda: hvd.allgather(later),
    ):
        _expect_error(read, *words)
    _expect_error(lambda: hvd.allreduce(mx.nd.ones(3), name="after"), "rank 1 ")
    assert (mx.nd.ones(3) + 1).asnumpy().tolist() == [2.0] * 3  # has nothing to do with it
    hvd.shutdown()
    print("told", flush=True)


def dies_while_others_gather() -> None:
    _kill_rank_1()
    for _ in range(2):  # the second time the loss is known before
        _expect_error(lambda: hvd.allgather(mx.nd.ones(3), name="rows"), "rank 1 ")
    print("told", flush=True)


def leaves_work_behind() -> None:
    """The process ends with operations in flight that nobody else submits."""
    for number in range(10):
        hvd.allreduce(mx.nd.ones(1000), name=f"of_rank_{hvd.rank()}.{number}")
    hvd.barrier()
    print("told", flush=True)


def disagrees() -> None:
    """One operation fails on all ranks, all others go on."""
    wrong = hvd.allreduce(mx.nd.ones(3 + hvd.rank()), name="wrong")
    depends = wrong.sum() + mx.nd.ones(1)
    fine = hvd.allreduce(mx.nd.ones(3), name="fine")
    for _ in range(3):
        _expect_error(depends.asnumpy, "wrong", "float32 [3]", "float32 [4]", "rank 1 ")
        _expect_error(wrong.asnumpy, "wrong")
        assert fine.asnumpy().tolist() == [1.0] * 3
    again = hvd.allreduce(mx.nd.ones(2), name="wrong")
    assert again.asnumpy().tolist() == [1.0] * 2
    hvd.shutdown()
    hvd.init()
    mx.nd.ones(3).wait_to_read()
    assert hvd.allreduce(mx.nd.ones(3), op=hvd.Sum).asnumpy().tolist() == [hvd.size()] * 3
    hvd.shutdown()
    print("told", flush=True)


if __name__ == "__main__":
    hvd.init()
    globals()[sys.argv[1]]()
