"""Horovod on Ray: actors of a Ray cluster become the ranks of a job.

Example:
    >>> import ray
    >>> from horovod.ray import RayExecutor
    >>> ray.init()
    >>> with RayExecutor(RayExecutor.create_settings(), num_workers=4) as executor:
    ...     accuracies = executor.run(train, kwargs={"epochs": 3})   # train() calls hvd.init()
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

try:
    import ray as _ray  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "horovod.ray needs Ray, which is not installed: pip install ray"
    ) from error

if TYPE_CHECKING:
    from horovod.ray.elastic import ElasticRayExecutor
    from horovod.ray.executor import RayExecutor
    from horovod.ray.trainer import HorovodConfig, HorovodTrainer  # noqa: F401
    from horovod.ray.worker import BaseHorovodWorker

__all__ = ["BaseHorovodWorker", "ElasticRayExecutor", "RayExecutor"]

# Actors load this package, too, and need nothing of the driver; trainers need more packages than
# Ray itself.
_MODULES = {
    "BaseHorovodWorker": "worker",
    "ElasticRayExecutor": "elastic",
    "HorovodConfig": "trainer",
    "HorovodTrainer": "trainer",
    "RayExecutor": "executor",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"horovod.ray.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
