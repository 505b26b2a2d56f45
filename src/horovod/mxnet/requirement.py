"""The requirements of horovod.mxnet, with one sentence for each that is missing."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from horovod.errors import HorovodVersionMismatchError

_ADVICE = (
    'install it in an environment of its own with Python 3.11 or older: pip install "mxnet==1.9.1" '
    '"numpy==1.23.5"'
)
_VERSION = "1.9.1"
_FIRST_NUMPY_WITHOUT = (1, 24)


def checked_mxnet() -> Any:
    """The module of MXNet.

    Raises:
        ImportError: MXNet or its NumPy is missing or of another version; the message says what to
            install.
    """
    numpy = _version_of("numpy")
    if numpy and tuple(int(part) for part in numpy.split(".")[:2]) >= _FIRST_NUMPY_WITHOUT:
        raise ImportError(
            f"horovod.mxnet needs MXNet {_VERSION}, which does not work with NumPy {numpy}: "
            f"{_ADVICE}"
        )
    try:
        import mxnet
    except ModuleNotFoundError as error:
        if error.name != "mxnet":
            raise
        raise ModuleNotFoundError(
            f"horovod.mxnet needs MXNet {_VERSION}: {_ADVICE}", name="mxnet"
        ) from None
    if mxnet.__version__ != _VERSION:
        raise HorovodVersionMismatchError("mxnet", _VERSION, mxnet.__version__)
    return mxnet


def _version_of(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
