"""Horovod on Ray: actors of a Ray cluster become the ranks of a job.

Example:
    >>> import ray
    >>> from horovod.ray import RayExecutor
    >>> ray.init()
    >>> with RayExecutor(RayExecutor.create_settings(), num_workers=4) as executor:
    ...     accuracies = executor.run(train, kwargs={"epochs": 3})   # train() calls hvd.init()
"""

from __future__ import annotations

from typing import Any

try:
    import ray as _ray  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "horovod.ray needs Ray, which is not installed: pip install ray"
    ) from error

from horovod.ray.executor import RayExecutor
from horovod.ray.worker import BaseHorovodWorker

__all__ = ["BaseHorovodWorker", "RayExecutor"]


def __getattr__(name: str) -> Any:
    if name == "ElasticRayExecutor":
        raise ImportError(
            "horovod.ray.ElasticRayExecutor: elastic jobs on Ray are planned and not in this "
            "version: use RayExecutor with num_workers, or horovodrun --min-np"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
