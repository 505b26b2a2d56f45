"""A rank of horovodrun that ``jax.distributed.initialize()`` finds: run by test_jax_distributed.py.

JAX adds up over the processes, and beside it Horovod over the ranks.
"""

from __future__ import annotations

import os
import sys

import jax
import numpy as np
from jax.experimental import multihost_utils

import horovod.jax as hvd

# What srun tells a process that then starts ranks.
SLURM = {
    "SLURM_JOB_ID": "1",
    "SLURM_STEP_NODELIST": "other",
    "SLURM_NTASKS": "9",
    "SLURM_PROCID": "7",
    "SLURM_LOCALID": "0",
}


def main(value: float) -> None:
    os.environ.update(SLURM)
    jax.distributed.initialize()
    for name in SLURM:
        del os.environ[name]
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (jax.process_index(), jax.process_count())
    assert [each.process_index for each in jax.devices()] == [*range(hvd.size())]
    of_horovod = hvd.allreduce(np.array(value + hvd.rank(), np.float32), op=hvd.Sum)
    if (
        hvd.local_size() == hvd.size()
    ):  # gloo looks for hosts by their names, and emulated ones have none
        assert of_horovod == sum_by_jax(value + jax.process_index())
    print(f"process {jax.process_index()}/{jax.process_count()} sum {of_horovod:g}", flush=True)


def sum_by_jax(value: float) -> float:
    """Add up over the processes, by what JAX has for it."""
    places = multihost_utils.process_allgather(np.array(float(jax.process_index())))
    assert [*places] == [*map(float, range(jax.process_count()))]
    over_all = jax.pmap(lambda x: jax.lax.psum(x, "all"), "all")
    return float(over_all(np.array([value], np.float32)).item())


if __name__ == "__main__":
    main(float(sys.argv[1]))
