"""Errors of failed operations in programs for MXNet."""

from __future__ import annotations

import mxnet as mx

from horovod.errors import HorovodInternalError


class FailedOperationError(HorovodInternalError, mx.base.MXNetError):  # type: ignore[misc]
    """A collective failed, or what was to be computed from its result is read."""
