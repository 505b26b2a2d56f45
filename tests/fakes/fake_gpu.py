"""Where the fake GPU driver and the fake NCCL are, and what tests ask of them.

``make test-python`` builds them into ``build/fakes``; by hand::

    cmake -S tests/fakes/gpu -B build/fakes && cmake --build build/fakes

What they can be asked for stands in ``gpu/cuda_control.h``, ``gpu/nccl_control.h``,
``gpu/cuda/settings.h`` and ``gpu/nccl/injection.h``. In jobs of processes the same words go into
the environment of a rank: :func:`environment`.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "build" / "fakes"


def library(name: str) -> Path:
    """The file of one of the libraries.

    Args:
        name: ``cuda``, ``cuda_old`` (11.1, lacks functions), ``nccl``, ``nccl_old`` (2.10, lacks
            functions), ``nccl_2_22`` (cannot shrink) or ``nccl_damaged`` (lacks a function that
            every version has).

    Raises:
        FileNotFoundError: it is not built.
    """
    path = FOLDER / f"libfake_{name}.so"
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not built: cmake -S tests/fakes/gpu -B build/fakes && "
            "cmake --build build/fakes"
        )
    return path


def environment(*, devices: int = 4, cuda: str = "", nccl: str = "") -> dict[str, str]:
    """What makes ranks that are processes find the fakes.

    Args:
        devices: the number of GPUs.
        cuda: what the driver is asked for, as ``HVD_FAKE_CUDA`` takes it.
        nccl: what NCCL is asked for, as ``HVD_FAKE_NCCL`` takes it.
    """
    return {
        "HOROVOD_CUDA_LIBRARY": str(library("cuda")),
        "HOROVOD_NCCL_LIBRARY": str(library("nccl")),
        "HVD_FAKE_CUDA_DEVICES": str(devices),
        "HVD_FAKE_CUDA": cuda,
        "HVD_FAKE_NCCL": nccl,
    }


class FakeCuda:
    """The driver of this process."""

    def __init__(self) -> None:
        self.functions = ctypes.CDLL(str(library("cuda")))
        for name in ("alive", "calls", "contexts_made", "reset"):
            getattr(self.functions, f"fake_cuda_{name}").restype = ctypes.c_int64
        self.functions.fake_cuda_wrong_uses.restype = ctypes.c_char_p

    def alive(self, what: str) -> int:
        """How many there are of contexts, streams, events, pinned blocks, allocations, …"""
        count = int(self.functions.fake_cuda_alive(what.encode()))
        assert count >= 0, f"the fake driver does not count {what}"
        return count

    def calls(self, function: str) -> int:
        """How often a function was called, by its exported name."""
        return int(self.functions.fake_cuda_calls(function.encode()))

    def contexts_made(self, device: int) -> int:
        """How often the primary context of a device was made."""
        return int(self.functions.fake_cuda_contexts_made(device))

    def wrong_uses(self) -> list[str]:
        """Calls that a real driver, or NCCL, would punish late or never."""
        return str(self.functions.fake_cuda_wrong_uses().decode()).splitlines()

    def configure(self, specification: str) -> None:
        """Takes words as ``HVD_FAKE_CUDA`` has them."""
        assert self.functions.fake_cuda_configure(specification.encode()), specification

    def hold_device(self, device: int) -> None:
        """Stops the streams of a device until they are released, at most for 60 s."""
        self.functions.fake_cuda_hold_device(device)

    def release_device(self, device: int) -> None:
        """Lets the streams of a device go on."""
        self.functions.fake_cuda_release_device(device)

    def fail_device(self, device: int, code: int) -> None:
        """All that is on the device fails from now on with a code of the driver."""
        self.functions.fake_cuda_fail_device(device, code)

    def reset(self) -> int:
        """Undoes what was asked for; returns how much is still alive."""
        return int(self.functions.fake_cuda_reset())


class FakeNccl:
    """The NCCL of this process."""

    def __init__(self) -> None:
        self.functions = ctypes.CDLL(str(library("nccl")))
        for name in ("communicators", "calls"):
            getattr(self.functions, f"fake_nccl_{name}").restype = ctypes.c_int64

    def configure(self, specification: str) -> None:
        """Takes words as ``HVD_FAKE_NCCL`` has them; none of them takes all back."""
        assert self.functions.fake_nccl_configure(specification.encode()), specification

    def release(self) -> None:
        """Lets go on what was made to hang."""
        self.functions.fake_nccl_release()

    def communicators(self) -> int:
        """How many are alive."""
        return int(self.functions.fake_nccl_communicators())

    def calls(self, function: str) -> int:
        """How often a function was called, by its exported name."""
        return int(self.functions.fake_nccl_calls(function.encode()))

    def reset(self) -> None:
        """Undoes what was asked for, and forgets what was called."""
        self.functions.fake_nccl_reset()
