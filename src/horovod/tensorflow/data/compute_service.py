"""tf.data's service with Horovod: a job without GPUs prepares what a training job consumes.

Importing this module adds the method ``send_to_data_service`` to ``tf.data.Dataset``.

Example:
    >>> config = TfDataServiceConfig.read("/shared/compute.json", wait_for_file_creation=True)
    >>> dataset = dataset.repeat().map(decode).batch(128)
    >>> dataset = dataset.send_to_data_service(config, hvd.rank(), hvd.size())

See https://www.tensorflow.org/api_docs/python/tf/data/experimental/service for the servers.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import Counter
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.data.compute_config import TfDataServiceConfig
from horovod.data.exposure import check_exposure
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horovod.data.compute_service import ComputeClient

__all__ = ["TfDataServiceConfig", "compute_worker_fn", "send_to_data_service", "tf_data_service"]

_LOG = logging.getLogger(__name__)
_HEARTBEAT_MS = 1000
_JOB_NAME = "job"
_SERVICE = tf.data.experimental.service


@contextmanager
def tf_data_service(compute_config: TfDataServiceConfig, rank: int) -> Iterator[str]:
    """The address of a training rank's dispatcher, once it has all its workers.

    If dispatchers run on the side of the training job, the rank starts its own; with one dispatcher
    for all, rank 0 does. It ends with the ``with`` statement.

    Args:
        compute_config: what the compute job wrote.
        rank: of the training process.

    Yields:
        The address for ``tf.data.experimental.service.distribute``, such as ``grpc://host:port``.

    Raises:
        IndexError: there are several dispatchers, but none for this rank.
        TimeoutError: the dispatcher or a worker did not register within the timeout of the
            configuration.
        StartError: the compute service cannot be reached, or was shut down; or others could use the
            dispatcher that this rank starts, see :func:`horovod.data.exposure.check_exposure`.
    """
    several = compute_config.dispatchers > 1
    dispatcher_id = rank if several else 0
    with ExitStack() as stack:
        client = stack.enter_context(compute_config.compute_client())
        if compute_config.dispatcher_side == "training" and (several or rank == 0):
            check_exposure(compute_config.serve_without_authentication)
            stack.enter_context(_dispatcher(client, dispatcher_id, client.own_address))
        address = client.wait_for_dispatcher_registration(dispatcher_id, compute_config.timeout)
        client.wait_for_dispatcher_worker_registration(dispatcher_id, compute_config.timeout)
        _end_with_training(compute_config, rank)
        yield address


def send_to_data_service(
    dataset: tf.data.Dataset,
    compute_config: TfDataServiceConfig,
    rank: int,
    size: int | None = None,
    processing_mode: str = "distributed_epoch",
    reuse_dataset: bool = False,
    round_robin: bool = False,
) -> tf.data.Dataset:
    """Lets the compute job do what stands before; what follows runs in the training process.

    Args:
        dataset: of any elements.
        compute_config: what the compute job wrote, with dispatchers on its own side.
        rank: of the training process.
        size: of the training job; needed for ``round_robin``.
        processing_mode: of tf.data's service: ``distributed_epoch`` splits the elements among the
            workers, with ``parallel_epochs`` each worker gives all.
        reuse_dataset: whether all training ranks draw from the same elements, first come, first
            served, instead of each getting all.
        round_robin: whether they draw in turns; ``dataset`` must be endless then.

    Returns:
        The dataset whose elements come from the workers.

    Raises:
        RuntimeError: the dispatchers run on the side of the training job: use
            :func:`tf_data_service`.
        UsageError: ``round_robin`` without ``reuse_dataset`` or ``size``.
        IndexError, StartError, TimeoutError: as for :func:`tf_data_service`.
    """
    if compute_config.dispatcher_side == "training":
        raise RuntimeError(
            "send_to_data_service needs dispatchers on the compute side: start the compute job "
            "with --dispatcher-side compute, or use tf_data_service and tf.data.experimental."
            "service.distribute"
        )
    if round_robin and not (reuse_dataset and size):
        raise UsageError("round_robin needs reuse_dataset=True and size, the number of consumers")
    with tf_data_service(compute_config, rank) as address:
        return dataset.apply(
            _SERVICE.distribute(
                processing_mode=processing_mode,
                service=address,
                job_name=_JOB_NAME if reuse_dataset else None,
                consumer_index=rank if round_robin else None,
                num_consumers=size if round_robin else None,
            )
        )


tf.data.Dataset.send_to_data_service = send_to_data_service


def compute_worker_fn(compute_config: TfDataServiceConfig) -> None:
    """Serve in each process of the compute job, until the service is shut down.

    It returns when all ranks have stopped their workers.

    Args:
        compute_config: the same on all ranks. Its dispatchers times their workers are the size of
            the job.

    Raises:
        TimeoutError: the dispatcher did not register within the timeout.
        StartError: the compute service cannot be reached, or was lost; or others could use the
            servers of this host, see :func:`horovod.data.exposure.check_exposure`.
    """
    check_exposure(compute_config.serve_without_authentication)
    hvd.init()
    dispatcher_id, number = divmod(hvd.rank(), compute_config.workers_per_dispatcher)
    with ExitStack() as stack:
        client = stack.enter_context(compute_config.compute_client())
        address = _address_for_others(client)
        if compute_config.dispatcher_side == "compute" and number == 0:
            stack.enter_context(_dispatcher(client, dispatcher_id, address))
        target = client.wait_for_dispatcher_registration(dispatcher_id, compute_config.timeout)
        with _worker(target, address, compute_config.timeout):
            client.register_worker_for_dispatcher(dispatcher_id, hvd.rank())
            reason = client.wait_for_shutdown()
            if reason and hvd.rank() == 0:
                _LOG.warning(reason)
        # a worker that still reads an endless dataset stops only while its dispatcher answers
        hvd.barrier()


@contextmanager
def _worker(target: str, address: str, timeout_s: float) -> Iterator[None]:
    server = _SERVICE.WorkerServer(
        _SERVICE.WorkerConfig(
            dispatcher_address=target.partition("://")[2],
            worker_address=f"{_bracketed(address)}:%port%",
            data_transfer_address=f"{_bracketed(address)}:%dts_port%",
            heartbeat_interval_ms=_HEARTBEAT_MS,
            dispatcher_timeout_ms=int(timeout_s * 1000),
        )
    )
    try:
        yield
    finally:
        _stop(server)


@contextmanager
def _dispatcher(client: ComputeClient, dispatcher_id: int, address: str) -> Iterator[None]:
    server = _SERVICE.DispatchServer()
    try:
        protocol, _, local = server.target.partition("://")
        port = local.rpartition(":")[2]
        client.register_dispatcher(dispatcher_id, f"{protocol}://{_bracketed(address)}:{port}")
        yield
    finally:
        _stop(server)


def _stop(server: Any) -> None:
    server._stop()  # it has no public way to be stopped that all versions have


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _address_for_others(client: ComputeClient) -> str:
    """This host's address, on the network that the ranks of other hosts use.

    The host of the service reaches it at any of its own addresses, also at one that no other host
    knows: it takes the one at which the others found it.
    """
    stays_here = client.own_address == client.service_address
    seen = [None if stays_here else client.service_address]
    found: Counter[str] = Counter(each for each in hvd.allgather_object(seen[0]) if each)
    return found.most_common(1)[0][0] if stays_here and found else client.own_address


# -- the end of the training job

_kept: dict[bytes, ComputeClient] = {}
_kept_lock = threading.Lock()


def _end_with_training(compute_config: TfDataServiceConfig, rank: int) -> None:
    """Lets the compute job end when the first training process does, however that happens."""
    if rank != 0:
        return
    with _kept_lock:
        if compute_config.key not in _kept:
            client = compute_config.compute_client()
            client.shut_down_when_lost(
                f"rank 0 of the training job, on {client.own_address}, ended without shutting the "
                "compute service down; so the compute job ends, too"
            )
            if not _kept:
                atexit.register(_close_kept, os.getpid())
            _kept[compute_config.key] = client


def _close_kept(pid: int) -> None:
    """Close the connections at the end of their process, but not in one forked from it."""
    if os.getpid() == pid:
        for client in _kept.values():
            client.close()
