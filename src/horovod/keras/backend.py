"""The part of Horovod for the backend of the Keras that is in use."""

from __future__ import annotations

import importlib
from typing import Any

from horovod._keras.which import backend_in_use

backend: Any = importlib.import_module(f"horovod.{backend_in_use()}.keras.interface")
"""The module with the functions for TensorFlow, JAX or PyTorch."""
