"""The jobs of this process as a library of kernels knows them, by the numbers of their contexts.

What a framework runs by itself finds its job by that number (decision 0033).
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

from horovod import _native
from horovod._rank import context
from horovod._train import process_set_table

if TYPE_CHECKING:
    from horovod._rank.group import Group
    from horovod._settings.config import Config

DEFAULT_JOB = 0
"""The number of the default context."""


def follow_jobs(library: ctypes.CDLL) -> str:
    """Tells a library of the jobs of this process, from now on.

    Args:
        library: has the functions of ``native/bindings/kernels/exports.cc``.

    Returns:
        Why it does not fit to the engine, which it then hears nothing of; empty if it does.
    """
    _declare(library)
    mismatch: bytes | None = library.horovod_kernels_mismatch(_native.c_interface())
    if mismatch:
        return mismatch.decode()
    jobs = _Jobs(library)
    process_set_table.listen(jobs)
    context.listen(jobs)
    return ""


def _declare(library: ctypes.CDLL) -> None:
    """The signatures of the functions in ``native/bindings/kernels/exports.cc``."""
    library.horovod_kernels_mismatch.argtypes = (ctypes.c_void_p,)
    library.horovod_kernels_mismatch.restype = ctypes.c_char_p
    library.horovod_kernels_begin_job.argtypes = (
        ctypes.c_int64,
        ctypes.c_void_p,
        ctypes.c_void_p,
        *(ctypes.c_int,) * 3,
    )
    library.horovod_kernels_end_job.argtypes = (ctypes.c_int64,)
    library.horovod_kernels_set_process_set.argtypes = (
        ctypes.c_int64,
        ctypes.c_int64,
        ctypes.c_uint32,
        ctypes.POINTER(ctypes.c_int),
        ctypes.c_int,
        ctypes.c_int,
    )
    library.horovod_kernels_forget_process_set.argtypes = (ctypes.c_int64, ctypes.c_int64)


class _Jobs:
    """Tells the library of the jobs of this process, by the numbers of their contexts.

    The number 0 is that of the default context. If that one has no job, but just one other context
    does, 0 means that job too, as all of Horovod's interface does then: a graph that was built
    before belongs to it. While several others have jobs, operations of number 0 fail as before
    ``hvd.init()``: any other answer would be that of another rank.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._jobs: dict[Group, tuple[int, Config]] = {}
        self._default: Group | None = None
        os.register_at_fork(after_in_child=self._forget)

    def begun(self, config: Config, group: Group, number: int) -> None:
        self._jobs[group] = number, config
        if number != DEFAULT_JOB:
            self._begin(number, group)
        self._follow()

    def ended(self, group: Group) -> None:
        number, _ = self._jobs.pop(group, (DEFAULT_JOB, None))
        if number != DEFAULT_JOB:
            self._library.horovod_kernels_end_job(number)
        self._follow()

    def added(self, world: Group, number: int, group: Group) -> None:
        for job in self._numbers_of(world):
            self._set(job, number, group)

    def removed(self, world: Group, number: int) -> None:
        for job in self._numbers_of(world):
            self._library.horovod_kernels_forget_process_set(job, number)

    def _forget(self) -> None:
        """In the child of a fork: the jobs are the parent's."""
        self._default = None
        self._jobs.clear()

    def _follow(self) -> None:
        """Lets 0 mean the job that it has to mean now."""
        own = [group for group, (number, _) in self._jobs.items() if number == DEFAULT_JOB]
        meant = own or (list(self._jobs) if len(self._jobs) == 1 else [])
        default = meant[0] if meant else None
        if default is self._default:
            return
        self._default = default
        if default is None:
            self._library.horovod_kernels_end_job(DEFAULT_JOB)
        else:
            self._begin(DEFAULT_JOB, default)

    def _begin(self, job: int, world: Group) -> None:
        _, config = self._jobs[world]
        self._library.horovod_kernels_begin_job(
            job,
            _native.c_interface(),
            world.engine.c_reference(),
            config.rank,
            config.local_rank,
            config.local_size,
        )
        self._set(job, 0, world)
        process_set_table.table_of(world).tell(self, world)

    def _set(self, job: int, number: int, group: Group) -> None:
        ranks = (ctypes.c_int * group.size)(*group.ranks)
        set_rank = group.rank if group.is_member else -1
        self._library.horovod_kernels_set_process_set(
            job, number, group.process_set_id, ranks, group.size, set_rank
        )

    def _numbers_of(self, world: Group) -> set[int]:
        """The numbers under which the library knows a job."""
        numbers = {self._jobs[world][0]} - {DEFAULT_JOB} if world in self._jobs else set()
        return numbers | ({DEFAULT_JOB} if world is self._default else set())
