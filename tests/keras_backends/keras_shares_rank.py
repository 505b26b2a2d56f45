"""One rank of test_keras_backends.py: all cases of keras_shares.py on the backend in use."""

from __future__ import annotations

import sys
from pathlib import Path

from keras_blocked import block_tensorflow

block_tensorflow()

import keras  # noqa: E402
import keras_shares  # noqa: E402

import horovod.keras as hvd  # noqa: E402

if __name__ == "__main__":
    if keras.backend.backend() == "jax":
        import jax

        jax.config.update("jax_enable_x64", True)
    hvd.init()
    for case in keras_shares.CASES:
        case(hvd.rank(), hvd.size(), Path(sys.argv[1]))
        print(case.__name__, flush=True)
    hvd.shutdown()
