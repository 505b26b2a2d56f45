"""Horovod on Spark: tasks of a Spark application become the ranks of a job.

Example:
    >>> import horovod.spark
    >>> accuracies = horovod.spark.run(train, kwargs={"epochs": 3}, num_proc=4)   # one per rank
"""

from __future__ import annotations

try:
    import pyspark as _pyspark  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "horovod.spark needs PySpark, which is not installed: pip install 'horovod[spark]'"
    ) from error

from horovod.spark.elastic import run_elastic
from horovod.spark.horovod_runner import HorovodRunner
from horovod.spark.running import run

__all__ = ["HorovodRunner", "run", "run_elastic"]
