"""One rank of test_keras_backends.py: all cases of keras_local_steps.py on the backend in use."""

from __future__ import annotations

import sys
from pathlib import Path

from keras_blocked import block_tensorflow

block_tensorflow()

import keras_local_steps  # noqa: E402

import horovod.keras as hvd  # noqa: E402

if __name__ == "__main__":
    hvd.init()
    for case in keras_local_steps.CASES:
        case(hvd.rank(), hvd.size(), Path(sys.argv[1]))
        print(case.__name__, flush=True)
    hvd.shutdown()
