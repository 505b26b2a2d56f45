"""One rank of test_oldest_tensorflow.py: runs every check in each mode, and prints their names.

It also trains with the Keras that this TensorFlow has of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "fakes")]

import keras
import tensorflow as tf
from tensorflow_api import run_checks


def cases_of_keras2() -> list[str]:
    """Trains by Keras 2 if that is here; returns what came out right."""
    if not keras.__version__.startswith("2."):
        return []
    from keras2_cases import everything

    return everything()


if __name__ == "__main__":
    done = [f"{mode} {name}" for mode, names in run_checks().items() for name in names]
    print("\n".join([tf.__version__, *done, *cases_of_keras2()]), flush=True)
