"""Which Lightning there is: the package ``lightning``, or ``pytorch_lightning``, from 2.0 on."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from horovod.errors import UsageError

MIN_PL_VERSION = "2.0"

_NAMES = ("lightning.pytorch", "pytorch_lightning")


def library_of(model: object) -> Any:
    """The Lightning that a module is one of; for other models, the one that there is.

    Both packages have classes of their own.

    Raises:
        RuntimeError: it is older than 2.0.
        UsageError: there is none.
    """
    loaded = [sys.modules[name] for name in _NAMES if name in sys.modules]
    for library in loaded:
        if isinstance(model, library.LightningModule):
            return _checked(library)
    for name in _NAMES:
        try:
            return _checked(importlib.import_module(name))
        except ModuleNotFoundError:
            continue
    raise UsageError("horovod.spark.lightning needs Lightning: pip install lightning")


def is_module(model: object) -> bool:
    """Whether a model is a LightningModule of either package."""
    return any(
        isinstance(model, sys.modules[name].LightningModule)
        for name in _NAMES
        if name in sys.modules
    )


def _checked(library: Any) -> Any:
    version = getattr(library, "__version__", None) or sys.modules["lightning"].__version__
    if int(version.partition(".")[0]) < int(MIN_PL_VERSION.partition(".")[0]):
        raise RuntimeError(f"Lightning {version} is too old: {MIN_PL_VERSION} or newer is needed")
    return library
