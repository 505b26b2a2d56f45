"""One rank of test_oldest_tensorflow.py: runs every check in one mode, and prints their names."""

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
    print("\n".join([tf.__version__, what_keras_says(), *run_checks(sys.argv[1])]), flush=True)
