"""A rank of horovodrun that ``keras.distribution.initialize()`` finds, with Keras on JAX."""

from __future__ import annotations

import jax
import keras
import numpy as np

keras.distribution.initialize()

import horovod.keras as hvd  # noqa: E402

if __name__ == "__main__":
    hvd.init()
    assert (jax.process_index(), jax.process_count()) == (hvd.rank(), hvd.size())
    # Keras has drawn it on one process, and sent it to the others.
    seed = keras.random.uniform((1,), dtype="float32")
    seeds = np.asarray(hvd.allgather(seed))
    assert [*seeds] == [seeds[0]] * hvd.size()
    print(f"process {jax.process_index()}/{jax.process_count()}", flush=True)
