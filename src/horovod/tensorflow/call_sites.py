"""The line of the user's script that called, also where TensorFlow has rewritten the script."""

from __future__ import annotations

import os
import sys

import tensorflow as tf
from tensorflow.python.util import tf_stack

import horovod

_PACKAGE = os.path.dirname(os.path.abspath(horovod.__file__)) + os.sep
_TENSORFLOW = f"{os.sep}tensorflow{os.sep}python{os.sep}"
_KERAS = f"{os.sep}keras{os.sep}src{os.sep}"


def call_site() -> str:
    """Returns ``file:line`` of the innermost frame of the user's, or an empty string.

    tf.function runs generated code; TensorFlow knows which lines of the user's it comes from.
    """
    if not tf.executing_eagerly():
        for line in reversed(tf_stack.extract_stack()):
            if _is_of_user(line.filename):
                return f"{line.filename}:{line.lineno}"
        return ""
    # As in horovod._train.call_site: every eager collective pays for this.
    frame = sys._getframe(1).f_back
    while frame is not None:
        if _is_of_user(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _is_of_user(file_name: str) -> bool:
    return not file_name.startswith(_PACKAGE) and not (
        _TENSORFLOW in file_name or _KERAS in file_name
    )
