"""Horovod on Ray: actors of a Ray cluster become the ranks of a job.

Example:
    >>> import ray
    >>> from horovod.ray import RayExecutor
    >>> ray.init()
    >>> with RayExecutor(RayExecutor.create_settings(), num_workers=4) as executor:
    ...     accuracies = executor.run(train, kwargs={"epochs": 3})   # train() calls hvd.init()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import ray as _ray  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "horovod.ray needs Ray, which is not installed: pip install ray"
    ) from error

from horovod.ray.elastic import ElasticRayExecutor
from horovod.ray.executor import RayExecutor
from horovod.ray.worker import BaseHorovodWorker

if TYPE_CHECKING:
    from horovod.ray.trainer import HorovodConfig, HorovodTrainer  # noqa: F401

__all__ = ["BaseHorovodWorker", "ElasticRayExecutor", "RayExecutor"]

# They need more packages than Ray itself.
_OF_RAY_TRAIN = ("HorovodConfig", "HorovodTrainer")


def __getattr__(name: str) -> Any:
    if name in _OF_RAY_TRAIN:
        from horovod.ray import trainer

        return getattr(trainer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
