"""Operations find the engine of their job by its number, so several live in one process."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import tensorflow as tf

from horovod import _native
from horovod.tensorflow import native_ops

if TYPE_CHECKING:
    from collections.abc import Iterator

JOBS = (7, 8)  # the ranks of one world, each as a job of this process


@pytest.fixture
def jobs() -> Iterator[None]:
    engines = _native.make_world(len(JOBS))
    ranks = (ctypes.c_int * len(JOBS))(*range(len(JOBS)))
    library = native_ops._library
    for rank, (job, engine) in enumerate(zip(JOBS, engines, strict=True)):
        library.horovod_kernels_begin_job(
            job, _native.c_interface(), engine.c_reference(), rank, rank, len(JOBS)
        )
        library.horovod_kernels_set_process_set(job, 0, 0, ranks, len(JOBS), rank)
    yield
    for job in JOBS:
        library.horovod_kernels_end_job(job)
    for engine in engines:
        engine.close()


def test_each_job_has_its_own_rank_and_engine(jobs: None) -> None:
    @tf.function
    def step(value: tf.Tensor, job: int) -> tuple[tf.Tensor, tf.Tensor]:
        total = native_ops.ops.horovod_allreduce(value, reduce_op=1, job=job, name="total")
        return total, native_ops.ops.horovod_rank(job=job)

    with ThreadPoolExecutor(len(JOBS)) as ranks:
        results = list(ranks.map(lambda job: step(tf.constant([float(job)]), job), JOBS))
    assert [total.numpy().tolist() for total, _ in results] == [[15.0], [15.0]]
    assert [int(rank) for _, rank in results] == [0, 1]


def test_a_job_that_has_ended_is_named() -> None:
    with pytest.raises(tf.errors.FailedPreconditionError, match="job 7 of this process has ended"):
        native_ops.ops.horovod_rank(job=7)
