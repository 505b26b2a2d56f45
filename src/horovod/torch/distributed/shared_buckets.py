"""A communication hook of DistributedDataParallel whose buckets are in shared memory."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from horovod.errors import HorovodInternalError, UsageError
from horovod.torch.distributed.process_group import ProcessGroupHorovod
from horovod.torch.distributed.reductions import all_reduce_mean, share_memory
from horovod.torch.distributed.storage_moves import (
    fix_address,
    has_fixed_address,
    move_into,
    move_out,
    shared_array_of,
)

if TYPE_CHECKING:
    from horovod._native import NativeArray
    from horovod.torch.distributed.submission import Submitter
    from horovod.torch.distributed.work import EngineWork

_logger = logging.getLogger(__name__)
_HOW = "model.register_comm_hook(SharedMemoryState(model), shared_memory_hook)"


class SharedMemoryState:
    """The state of :func:`shared_memory_hook` for one model.

    It does not keep the model alive; its memory goes with the last gradient in it.

    Args:
        model: a ``DistributedDataParallel`` on the CPU, whose process group is one of the backend
            horovod. If that is not the group of all ranks, or if there are several hosts, buckets
            are reduced in ordinary memory, and a warning on the first rank says so.

    Raises:
        UsageError: the model is something else.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        group = _group_of(model)
        self._model = weakref.ref(model)
        self._params = {id(param) for param in model.parameters()}
        self._submitter = group.submitter
        self._buckets: dict[int, _Bucket] = {}
        reason = _reason_for_private_memory(group)
        self._shares = not reason and group.size() > 1
        if reason and group.rank() == 0:
            _logger.warning(
                "shared_memory_hook: %s, so the buckets of the model are reduced in ordinary "
                "memory, as without the hook",
                reason,
            )

    @property
    def shared_bytes(self) -> int:
        """How many bytes of the model's buckets are in shared memory on this rank now."""
        return sum(bucket.num_bytes for bucket in self._buckets.values() if bucket.is_shared)

    def reduce(self, bucket: GradBucket) -> Future[torch.Tensor]:
        """Start to average a bucket over the ranks, in place.

        Returns:
            A future of the bucket's own tensor.

        Raises:
            UsageError: the bucket is of another model, or the average is not that of all ranks.
            HorovodInternalError: the engine can no longer work.
        """
        self._check(bucket)
        buffer = bucket.buffer()
        storage = buffer.untyped_storage() if self._shares else None
        array = None
        if storage is not None and buffer.nbytes == storage.nbytes() > 0:
            array = self._bucket_of(bucket.index(), storage.nbytes()).array_for(storage)
        work = all_reduce_mean(self._submitter, buffer, array)

        def reduced(ended: Future[list[torch.Tensor]]) -> torch.Tensor:
            try:
                return ended.value()[0]
            except RuntimeError:
                # Ranks that do not know of the failure yet may go on to write into the array.
                move_out(buffer.untyped_storage())
                raise

        return work.get_future().then(reduced)

    def _bucket_of(self, index: int, num_bytes: int) -> _Bucket:
        known = self._buckets.get(index)
        if known is None or known.num_bytes != num_bytes:  # PyTorch has made new buckets
            known = self._buckets[index] = _Bucket(num_bytes, self._submitter)
        return known

    def _check(self, bucket: GradBucket) -> None:
        model = self._model()
        if model is None or any(id(param) not in self._params for param in bucket.parameters()):
            raise UsageError(
                f"shared_memory_hook: the SharedMemoryState is that of another model: {_HOW}"
            )
        if not getattr(model, "_divide_by_initial_world_size", True):
            raise UsageError(
                "shared_memory_hook divides gradients by the size of the group, so it cannot be "
                "used with join(divide_by_initial_world_size=False): leave out the hook"
            )


class _Bucket:
    """The way of one bucket into shared memory.

    All ranks ask for an array in the second step with buckets of this size: PyTorch makes other
    buckets after the first step, as soon as it knows the order of the gradients. A rank that has
    the array moves the bucket into it; until all ranks have, the engine takes its ordinary way.
    A bucket gets its final address when it is new, so that gradients given to NumPy stay valid.

    Args:
        num_bytes: of the bucket.
        submitter: of the group.
    """

    def __init__(self, num_bytes: int, submitter: Submitter) -> None:
        self.num_bytes = num_bytes
        self._submitter = submitter
        self._num_private = 0
        self._last: weakref.ref[torch.UntypedStorage] | None = None
        self._request: EngineWork | None = None

    @property
    def is_shared(self) -> bool:
        """Whether the storage that the bucket had last is in shared memory."""
        storage = self._last() if self._last else None
        return storage is not None and shared_array_of(storage) is not None

    def array_for(self, storage: torch.UntypedStorage) -> NativeArray | None:
        """Return the array that the storage of the bucket is in, None if it is in none (yet)."""
        # A rank that has joined reduces zeros in memory that is gone afterwards.
        stays = self._last is not None and self._last() is storage
        self._last = weakref.ref(storage)
        array = shared_array_of(storage)
        if array is not None:
            return array
        self._num_private += 1
        if self._num_private == 2:
            self._request = share_memory(self._submitter, self.num_bytes)
        try:
            self._bring_closer(storage, stays)
        except (OSError, HorovodInternalError) as error:
            self._request = None
            _logger.warning(
                "shared_memory_hook: a bucket of %d bytes stays in ordinary memory: %s",
                self.num_bytes,
                error,
            )
        return shared_array_of(storage)

    def _bring_closer(self, storage: torch.UntypedStorage, stays: bool) -> None:
        """Do what can be done in this step to get a storage into shared memory."""
        if not stays:
            # PyTorch has just made it, so that no array of NumPy knows its address yet.
            if self._num_private <= 2 or self._request is not None:
                fix_address(storage)
            return
        request = self._request
        if request is not None and request.is_completed() and has_fixed_address(storage):
            self._request = None
            request.wait()
            move_into(storage, request.handle.results()[0])


def shared_memory_hook(state: Any, bucket: GradBucket) -> Future[torch.Tensor]:
    """Average the gradients of a bucket in memory that all ranks of the host share.

    After the first steps, the buckets of the model are in shared memory, where the ranks reduce
    them in place, without copies. The averages are those without the hook, bit by bit, except that
    with 2, 4, 8 … ranks the division follows the sum where the dtype is not float16: sums must
    fit into the dtype, and values below its smallest normal number may differ in the last bit.

    Example:
        >>> model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        >>> model.register_comm_hook(SharedMemoryState(model), shared_memory_hook)

    Args:
        state: the :class:`SharedMemoryState` of the model.
        bucket: of ``DistributedDataParallel``.

    Returns:
        A future of the bucket's own tensor.

    Raises:
        UsageError: the state is not that of the model.
        HorovodInternalError: the engine can no longer work.
    """
    if not isinstance(state, SharedMemoryState):
        raise UsageError(f"shared_memory_hook: the state is {state!r}: {_HOW}")
    if not isinstance(bucket, GradBucket):
        raise UsageError(
            "shared_memory_hook works on buckets, which DistributedDataParallel does not have "
            'under torch.compile with torch._dynamo.config.optimize_ddp = "python_reducer"'
        )
    return state.reduce(bucket)


# PyTorch compares them with its classes; here they are strings.
shared_memory_hook.__annotations__.update({"bucket": GradBucket, "return": Future[torch.Tensor]})


def _group_of(model: DistributedDataParallel) -> ProcessGroupHorovod:
    if not isinstance(model, DistributedDataParallel):
        raise UsageError(
            f"SharedMemoryState({type(model).__name__}): give the DistributedDataParallel: {_HOW}"
        )
    group = model.process_group
    if not isinstance(group, ProcessGroupHorovod):
        raise UsageError(
            "SharedMemoryState: the process group of the model is not one of the backend horovod: "
            'init_process_group("horovod")'
        )
    devices = {str(param.device) for param in model.parameters() if not param.is_cpu}
    if devices:
        raise UsageError(
            f"SharedMemoryState: the model has parameters on {', '.join(sorted(devices))}; the "
            "hook is for models on the CPU"
        )
    return group


def _reason_for_private_memory(group: ProcessGroupHorovod) -> str:
    if group.engine_group.process_set_id != 0:
        return "the process group of the model is not that of all ranks"
    if not group.engine_group.engine.all_local:
        return "the ranks are on several hosts"
    return ""
