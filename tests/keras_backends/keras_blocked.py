"""Keeps programs for other backends of Keras from importing TensorFlow."""

from __future__ import annotations

import os
import sys
from typing import Any, cast


def block_tensorflow() -> None:
    """Let the import of TensorFlow fail, unless Keras is to run on it."""
    if os.environ["KERAS_BACKEND"] != "tensorflow":
        assert "tensorflow" not in sys.modules
        sys.modules["tensorflow"] = cast("Any", None)
