"""One rank of test_jax_faults.py: what is named happens. Numbers are of 32 bits here."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax_copied import copy_all_arrays

import horovod.jax as hvd
from horovod.errors import PeerLostError
from horovod.jax import host_copy, native_ops

if TYPE_CHECKING:
    from collections.abc import Callable

# Jitted: a small one, which runs on the calling thread; one that XLA runs on threads of its own.
small = jax.jit(lambda x: hvd.allreduce(x, name="small") + 1)


@jax.jit
def large(x: Any) -> Any:
    parts = [jnp.tanh(x * i) @ x for i in range(4)]
    return hvd.allreduce([part.sum(axis=0) for part in parts], name="large")


# As in tests/dist/test_faults.py.
OF_A_DEATH_WITHIN_S = 2.0
OF_A_STALL_WITHIN_S = 20.0


def _error_of(run: Callable[[], Any], within_s: float = OF_A_STALL_WITHIN_S) -> BaseException:
    began_s = time.monotonic()
    try:
        jax.block_until_ready(run())
    except (jax.errors.JaxRuntimeError, ValueError, hvd.HorovodInternalError) as error:
        told = error
    else:
        raise AssertionError("the rank is not missed")
    assert time.monotonic() - began_s < within_s, told
    return told


def dies_in_a_jitted_step() -> None:
    x = jnp.ones((300, 300))
    assert x.dtype == jnp.float32
    assert float(hvd.allreduce(0.5, weight=1 + hvd.rank())) == 0.5
    jax.block_until_ready((small(jnp.ones(3)), large(x)))
    # Rank 0 has these results when rank 1 dies, which may happen before rank 0 leaves the barrier.
    with suppress(hvd.HorovodInternalError):
        hvd.barrier()
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for run, name in ((lambda: large(x), "large"), (lambda: small(jnp.ones(3)), "small")):
        error = _error_of(run, OF_A_DEATH_WITHIN_S)
        assert "PeerLostError" in str(error), error
        assert "rank 1 " in str(error), error
        assert name in str(error), error
    error = _error_of(lambda: hvd.synchronize(hvd.allreduce(jnp.ones(3))), OF_A_DEATH_WITHIN_S)
    assert isinstance(error, PeerLostError)
    print("told", flush=True)
    hvd.shutdown()
    assert float(jnp.ones(3).sum()) == 3.0  # has nothing to do with it


def is_interrupted_while_it_waits() -> None:
    small(jnp.ones(3)).block_until_ready()
    if hvd.rank() == 1:  # waits for something else
        assert "Ctrl-C" in str(_error_of(lambda: hvd.allreduce(jnp.ones(3), name="other")))
        return
    x = jnp.ones(3)
    threading.Thread(target=_interrupt_what_waits, daemon=True).start()
    try:
        error = _error_of(lambda: small(x))
        assert "interrupted by Ctrl-C" in str(error), error
        threading.Event().wait(60)
    except KeyboardInterrupt:
        print("interrupted", flush=True)


def is_interrupted_in_a_callback() -> None:
    """Of a program on copies; JAX makes its own error of what a callback raises."""
    small(jnp.ones(3)).block_until_ready()
    if hvd.rank() == 1:  # waits for something else
        assert "rank 0 " in str(_error_of(lambda: hvd.allreduce(jnp.ones(3), name="other")))
        return
    threading.Thread(target=_interrupt_what_waits, daemon=True).start()
    assert "KeyboardInterrupt" in str(_error_of(lambda: small(jnp.ones(3))))
    print("interrupted", flush=True)


def _interrupt_what_waits() -> None:
    pause = threading.Event()
    while not (native_ops.is_in_flight() or host_copy.is_in_flight()):
        pause.wait(0.01)
    os.kill(os.getpid(), signal.SIGINT)


def leaves_work_behind() -> None:
    """The process ends with a computation in flight that nobody else takes part in."""
    jax.block_until_ready(large(jnp.ones((300, 300))))
    hvd.barrier()
    if hvd.rank() == 0:
        threading.Thread(target=large, args=(jnp.ones((300, 300)),), daemon=True).start()
        large(jnp.ones((200, 200)))
    print("left", flush=True)


def comes_back_after_a_job() -> None:
    """Compiled programs outlive a job."""
    for _ in range(2):
        assert small(jnp.ones(3)).tolist() == [2.0] * 3
        hvd.shutdown()
        assert "hvd.init()" in str(_error_of(lambda: small(jnp.ones(3))))
        hvd.init()
    hvd.shutdown()
    print("came back", flush=True)


if __name__ == "__main__":
    if sys.argv[2:] == ["copied"]:
        copy_all_arrays()
    hvd.init()
    globals()[sys.argv[1]]()
