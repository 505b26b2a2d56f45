"""Questions that a training function may ask about its task of Spark."""

from __future__ import annotations

from horovod._settings.config import inherited_environment

__all__ = ["get_available_devices"]

DEVICES = "HOROVOD_SPARK_DEVICES"


def get_available_devices() -> list[str]:
    """The addresses of the GPUs that Spark gave to the task of this rank, such as ``["0"]``.

    Returns:
        Empty without resource scheduling for GPUs, and outside of a function that
        ``horovod.spark.run`` has called.
    """
    return [each for each in inherited_environment().get(DEVICES, "").split(",") if each]
