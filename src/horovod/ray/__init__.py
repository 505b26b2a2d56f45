"""Horovod on Ray: actors of a Ray cluster become the ranks of a job.

Example:
    >>> import ray
    >>> from horovod.ray import RayExecutor
    >>> ray.init()
    >>> with RayExecutor(RayExecutor.create_settings(), num_workers=4) as executor:
    ...     accuracies = executor.run(train, kwargs={"epochs": 3})   # train() calls hvd.init()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horovod._compat.on_demand import on_demand

try:
    import ray as _ray  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "horovod.ray needs Ray, which is not installed: pip install ray", name=error.name
    ) from error

if TYPE_CHECKING:
    from horovod.ray.elastic import ElasticRayExecutor
    from horovod.ray.executor import RayExecutor
    from horovod.ray.trainer import HorovodConfig, HorovodTrainer  # noqa: F401
    from horovod.ray.worker import BaseHorovodWorker

__all__ = ["BaseHorovodWorker", "ElasticRayExecutor", "RayExecutor"]

if not TYPE_CHECKING:  # which would take any name for one that exists
    # Trainers need more packages than Ray itself.
    __getattr__, __dir__ = on_demand(
        __name__,
        {
            "BaseHorovodWorker": "worker",
            "ElasticRayExecutor": "elastic",
            "HorovodConfig": "trainer",
            "HorovodTrainer": "trainer",
            "RayExecutor": "executor",
        },
    )
