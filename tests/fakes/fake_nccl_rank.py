"""A process that is one rank of a communicator of the fake NCCL: one allreduce of one number.

Arguments: rank, size. Reads the unique id from its input, in hexadecimal digits. Prints the sum, or
``error N`` if the communicator says so; ends then, and if its input ends meanwhile, by an abort.
"""

from __future__ import annotations

import ctypes
import select
import sys
import time

from fake_gpu import FakeCuda, FakeNccl

IN_PROGRESS = 7
FLOAT32 = 7
SUM = 0


class UniqueId(ctypes.Structure):
    """ncclUniqueId"""

    _fields_ = (("internal", ctypes.c_ubyte * 128),)


def make_unique_id(nccl: FakeNccl) -> str:
    """What the ranks of a new communicator read."""
    made = UniqueId()
    assert nccl.functions.ncclGetUniqueId(ctypes.byref(made)) == 0
    return bytes(made.internal).hex()


class Rank:
    """A rank with a device and a stream.

    Args:
        rank: also the number of its device.
        size: of the communicator.
        unique_id: what :func:`make_unique_id` gave.
    """

    def __init__(self, rank: int, size: int, unique_id: str) -> None:
        self.cuda = FakeCuda().functions
        self.nccl = FakeNccl().functions
        self.context, self.stream, self.comm = (ctypes.c_void_p() for _ in range(3))
        assert self.cuda.cuInit(0) == 0
        assert self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), rank) == 0
        assert self.cuda.cuCtxPushCurrent_v2(self.context) == 0
        assert self.cuda.cuStreamCreate(ctypes.byref(self.stream), 1) == 0
        made = UniqueId.from_buffer_copy(bytes.fromhex(unique_id))
        result = self.nccl.ncclCommInitRank(ctypes.byref(self.comm), size, made, rank)
        if result != 0:
            raise SystemExit(f"error {result}")

    def allreduce(self, value: float) -> str:
        """The sum as text, ``error N``, or ``input ended``."""
        given, taken = ctypes.c_float(value), ctypes.c_float()
        result = self.nccl.ncclAllReduce(
            *(ctypes.byref(given), ctypes.byref(taken), ctypes.c_size_t(1)),
            *(FLOAT32, SUM, self.comm, self.stream),
        )
        assert result == 0
        state = ctypes.c_int()
        while self.cuda.cuStreamQuery(self.stream) != 0:
            self.nccl.ncclCommGetAsyncError(self.comm, ctypes.byref(state))
            if state.value != 0:
                return f"error {state.value}"
            if select.select([sys.stdin], [], [], 0)[0]:
                return "input ended"
            time.sleep(0.002)
        return str(taken.value)

    def abort(self) -> None:
        """After it the stream ends, too."""
        assert self.nccl.ncclCommAbort(self.comm) == 0
        assert self.cuda.cuStreamSynchronize(self.stream) == 0


def main() -> None:
    """Runs the rank."""
    rank = Rank(int(sys.argv[1]), int(sys.argv[2]), sys.stdin.readline().strip())
    print("ready", flush=True)
    print(rank.allreduce(float(sys.argv[1]) + 1), flush=True)
    rank.abort()
    print("ended", flush=True)


if __name__ == "__main__":
    main()
