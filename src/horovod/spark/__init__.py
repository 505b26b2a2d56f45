"""Horovod on Spark: tasks of a Spark application become the ranks of a job.

Example:
    >>> import horovod.spark
    >>> accuracies = horovod.spark.run(train, kwargs={"epochs": 3}, num_proc=4)   # one per rank
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from horovod._compat.on_demand import on_demand

if TYPE_CHECKING:
    from horovod.spark.elastic import run_elastic as run_elastic
    from horovod.spark.horovod_runner import HorovodRunner as HorovodRunner
    from horovod.spark.running import run as run

if find_spec("pyspark") is None:
    raise ModuleNotFoundError(
        "horovod.spark needs PySpark, which is not installed: pip install 'horovod[spark]'",
        name="pyspark",
    )

__all__ = ["HorovodRunner", "run", "run_elastic"]

if not TYPE_CHECKING:  # which would take any name for one that exists
    __getattr__, __dir__ = on_demand(
        __name__, {"HorovodRunner": "horovod_runner", "run": "running", "run_elastic": "elastic"}
    )
