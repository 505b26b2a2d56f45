"""Sends what workers log to callbacks in the process that started them."""

from __future__ import annotations

import threading
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Callback = Callable[[dict[str, Any]], object]
    """Called with what a worker has logged."""

__all__ = ["configure", "log"]

_queue: Any = None
_has_warned = False


class _End:
    """Comes after all that was logged."""


def configure(queue: object) -> None:
    """Lets :func:`log` of this process send to a queue; None for nowhere."""
    global _queue
    _queue = queue


def log(info_dict: Mapping[str, object]) -> None:
    """Sends values to the callbacks of ``RayExecutor.run``; returns when they cannot be lost.

    Args:
        info_dict: names and values, which can be pickled.
    """
    global _has_warned
    if _queue is not None:
        _queue.put(dict(info_dict))
    elif not _has_warned:
        _has_warned = True
        warnings.warn(
            "ray_logger.log() has nobody to tell: give callbacks to RayExecutor.run()",
            stacklevel=2,
        )


def queue_here() -> Any:
    """A queue on this node, since others may go while a job lasts."""
    import ray
    from ray.util.queue import Queue
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})


@contextmanager
def hearing(callbacks: Sequence[Callback]) -> Iterator[Any]:
    """A queue of which each item is given to callbacks, on a thread and in the order of arrival.

    Yields:
        The queue, for :func:`configure` in the workers.

    Raises:
        Exception: what a callback raised first, after the block; others still hear the rest.
    """
    queue = queue_here()
    errors: list[Exception] = []

    def work() -> None:
        while not isinstance(item := queue.get(), _End):
            for callback in callbacks:
                try:
                    callback(item)
                except Exception as error:
                    errors.append(error)

    thread = threading.Thread(target=work, name="horovod-ray-log", daemon=True)
    thread.start()
    try:
        yield queue
    finally:
        queue.put(_End())
        thread.join()
        queue.shutdown(force=True)
    if errors:
        raise errors[0]
