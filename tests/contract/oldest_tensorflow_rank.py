"""One rank of test_oldest_tensorflow.py: runs every check in each mode, and prints their names."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "fakes")]

import tensorflow as tf
from tensorflow_api import run_checks


def what_keras_says() -> str:
    """Why Keras cannot be used; nothing if it can."""
    try:
        importlib.import_module("horovod.keras")
    except ImportError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    done = [f"{mode} {name}" for mode, names in run_checks().items() for name in names]
    print("\n".join([tf.__version__, what_keras_says(), *done]), flush=True)
