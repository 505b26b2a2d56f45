"""A process of a compute job, which runs tf.data's service for a training job.

    horovodrun -np 8 python -m horovod.tensorflow.data.compute_worker /shared/compute.json

Rank 0 writes the file; the training job reads it with ``TfDataServiceConfig.read``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import horovod.tensorflow as hvd
from horovod._rendezvous import make_secret
from horovod.data.compute_service import ComputeService
from horovod.data.exposure import check_exposure
from horovod.tensorflow.data.compute_arguments import compute_arguments
from horovod.tensorflow.data.compute_service import TfDataServiceConfig, compute_worker_fn

if TYPE_CHECKING:
    import argparse

__all__ = ["main"]


def main(
    dispatchers: int,
    dispatcher_side: str,
    configfile: str,
    timeout: float,
    keep_running: bool = False,
    serve_without_authentication: bool = False,
) -> None:
    """Serves until a training rank calls ``config.compute_client().shutdown()``.

    Args:
        dispatchers: 1 for all training ranks, or one for each.
        dispatcher_side: who runs them, ``compute`` or ``training``.
        configfile: what rank 0 writes, and removes at the end.
        timeout: seconds to wait for dispatchers and workers.
        keep_running: whether to serve on when a training job ends without shutting this one down.
        serve_without_authentication: whether everybody who can reach the servers may use them; see
            :mod:`horovod.data.exposure`.

    Raises:
        ValueError: the number of processes is no multiple of the dispatchers.
        OSError: the file cannot be written.
        StartError: others could use the servers of this host.
        TimeoutError: a dispatcher did not come.
    """
    check_exposure(serve_without_authentication)
    hvd.init()
    if dispatchers < 1 or hvd.size() % dispatchers:
        raise ValueError(
            f"the {hvd.size()} processes of the compute job cannot be shared out evenly among "
            f"{dispatchers} dispatchers: give -np a multiple of --dispatchers"
        )
    workers = hvd.size() // dispatchers
    if hvd.rank() != 0:
        told: Any = hvd.broadcast_object(None)
        compute_worker_fn(told)
        return
    key = make_secret()
    with ComputeService(dispatchers, workers, key, keep_running=keep_running) as service:
        config = TfDataServiceConfig(
            dispatchers,
            workers,
            dispatcher_side,
            service.addresses(),
            key,
            timeout,
            serve_without_authentication,
        )
        config.write(configfile)
        try:
            compute_worker_fn(hvd.broadcast_object(config))  # then no rank needs the service
        finally:
            config.remove(configfile)


def _arguments() -> argparse.Namespace:
    parser = compute_arguments(
        prog="horovodrun -np N python -m horovod.tensorflow.data.compute_worker",
        description="Runs tf.data's service for a training job.",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=60,
        metavar="SECONDS",
        help="how long to wait for dispatchers and workers (default: 60)",
    )
    parser.add_argument(
        "--keep-running",
        action="store_true",
        help="serve on when a training job ends without shutting this job down",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main(**vars(_arguments()))
