"""tf.data's service for a training job, in the tasks of a Spark application.

    spark-submit --master … src/horovod/spark/tensorflow/compute_worker.py /shared/compute.json

The driver writes the file; the training job reads it with ``TfDataServiceConfig.read``.
"""

from __future__ import annotations

from horovod._rendezvous import make_secret
from horovod.data.compute_service import ComputeService
from horovod.errors import UsageError
from horovod.spark.common.backend import default_num_proc
from horovod.spark.running import run
from horovod.tensorflow.data.compute_arguments import compute_arguments
from horovod.tensorflow.data.compute_service import TfDataServiceConfig, compute_worker_fn

__all__ = ["main"]


def main(
    dispatchers: int,
    dispatcher_side: str,
    configfile: str,
    timeout: float = 60,
    num_proc: int | None = None,
    serve_without_authentication: bool = False,
) -> None:
    """Serves until a training rank calls ``config.compute_client().shutdown()``.

    Args:
        dispatchers: 1 for all training ranks, or one for each.
        dispatcher_side: who runs them, ``compute`` or ``training``.
        configfile: what the driver writes, and removes at the end.
        timeout: seconds to wait for dispatchers and workers.
        num_proc: how many tasks; None for the default parallelism of the application.
        serve_without_authentication: whether everybody who can reach the servers may use them; see
            :mod:`horovod.data.exposure`.

    Raises:
        UsageError: the number of tasks is no multiple of the dispatchers.
        OSError: the file cannot be written.
        RankFailedError, StartError: see :func:`horovod.spark.run`.
    """
    size = default_num_proc() if num_proc is None else num_proc
    if dispatchers < 1 or size % dispatchers:
        raise UsageError(
            f"{size} tasks cannot be shared out evenly among {dispatchers} dispatchers: give a "
            "multiple of --dispatchers"
        )
    key = make_secret()
    workers = size // dispatchers
    with ComputeService(dispatchers, workers, key) as service:
        addresses = service.addresses()
        config = TfDataServiceConfig(
            dispatchers,
            workers,
            dispatcher_side,
            addresses,
            key,
            timeout,
            serve_without_authentication,
        )
        config.write(configfile)
        try:
            run(compute_worker_fn, args=(config,), num_proc=size)
        finally:
            config.remove(configfile)


def _main() -> None:
    from pyspark.sql import SparkSession

    given = compute_arguments(
        prog="spark-submit compute_worker.py",
        description="Runs tf.data's service for a training job in tasks of Spark.",
    ).parse_args()
    session = SparkSession.builder.appName("Horovod compute service").getOrCreate()
    try:
        main(**vars(given))
    finally:
        session.stop()


if __name__ == "__main__":
    _main()
