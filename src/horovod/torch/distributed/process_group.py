"""The process group of the backend: PyTorch's operations on a process set of the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from horovod.torch.compiling import methods_outside_of_graphs
from horovod.torch.distributed import exchanges, messages, reductions
from horovod.torch.distributed.other_devices import OtherDevices, on_cpu
from horovod.torch.distributed.submission import Submitter
from horovod.torch.distributed.work import EngineWork, JoinedWork

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from torch._C._distributed_c10d import Store

    from horovod._rank.group import Group

Tensors = list[torch.Tensor]


# PyTorch's stubs declare the overloads of callers, of which a backend gets one.
_Base: Any = dist.ProcessGroup


@methods_outside_of_graphs
class ProcessGroupHorovod(_Base):  # type: ignore[misc]
    """A group of ranks whose operations the engine runs.

    All operations return a :class:`EngineWork` at once. They raise UsageError if the arguments do
    not fit, and HorovodInternalError if the engine can no longer work; errors of an operation in
    flight are raised by ``Work.wait()``.

    Args:
        group: the ranks, in rising order.
        store: of PyTorch, for the group.
        label: the group in names and messages.
        timeout: of operations that have none of their own.
        leave: called by :meth:`shutdown` with the reason.
    """

    def __init__(
        self,
        group: Group,
        store: Store,
        label: str,
        timeout: timedelta,
        leave: Callable[[str], None],
    ) -> None:
        super().__init__(group.rank, group.size)  # with a store, PyTorch makes no Python group
        self._store = store
        self._group_name = label
        self._group_desc = "undefined"
        self._others = OtherDevices(self, timeout)
        self._submitter = Submitter(group, label, timeout)
        self._leave = leave
        self._coalesced: list[EngineWork] | None = None

    @property
    def engine_group(self) -> Group:
        """The process set of the engine that runs the operations."""
        return self._submitter.group

    @property
    def submitter(self) -> Submitter:
        """What gives the operations their names and deadlines."""
        return self._submitter

    def getBackendName(self) -> str:
        """Return the name of the backend."""
        return "horovod"

    def name(self) -> str:
        """Return the name of the backend."""
        return "horovod"

    def getGroupName(self) -> str:
        """Return the name by which functional collectives find the group."""
        return self._group_name

    def setGroupName(self, name: str) -> None:
        """Set the name by which functional collectives find the group."""
        self._group_name = name

    def getGroupDesc(self) -> str:
        """Return what the group is for, in the words of its maker."""
        return self._group_desc

    def setGroupDesc(self, description: str) -> None:
        """Set what the group is for."""
        self._group_desc = description

    def get_group_store(self) -> Store:
        """Return PyTorch's store for the group."""
        return self._store

    @property
    def supports_splitting(self) -> bool:
        """Whether ``split_group`` can ask for this group: no, PyTorch asks GPUs only."""
        return False

    @property
    def supports_coalescing(self) -> bool:
        """Whether operations may be collected and started together."""
        return True

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later operations that have none of their own."""
        self._submitter.timeout = timeout

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Leave the group. The last group of a job that this backend has joined leaves the job."""
        self._others.shutdown()
        self._submitter.close()
        self._leave("it called torch.distributed.destroy_process_group()")

    def abort(self) -> None:
        """End the engine, and with it all operations in flight, on all ranks of the job."""
        self._submitter.group.engine.close("it aborted a process group of torch.distributed")

    @on_cpu
    def allreduce(self, tensors: Tensors, opts: Any = None) -> EngineWork:
        """Reduce a tensor in place on all ranks."""
        return self._keep(
            reductions.all_reduce(self._submitter, tensors, opts or c10d.AllreduceOptions())
        )

    @on_cpu
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> EngineWork:
        """Reduce tensors in place on all ranks, as one operation."""
        return self.allreduce(tensors, opts)

    @on_cpu
    def reduce(self, tensors: Tensors, opts: Any = None) -> EngineWork:
        """Reduce a tensor in place on the root."""
        return self._keep(reductions.reduce(self._submitter, tensors, opts or c10d.ReduceOptions()))

    @on_cpu
    def reduce_scatter(
        self, output_tensors: Tensors, input_tensors: Sequence[Tensors], opts: Any = None
    ) -> EngineWork:
        """Reduce one tensor for each rank, and leave each rank its own."""
        options = opts or c10d.ReduceScatterOptions()
        return self._keep(
            reductions.reduce_scatter_lists(self._submitter, output_tensors, input_tensors, options)
        )

    @on_cpu
    def reduce_scatter_single_coalesced(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None
    ) -> EngineWork:
        """Reduce tensors and leave each rank an equal share of each, as one operation."""
        options = opts or c10d.ReduceScatterOptions()
        return self._keep(
            reductions.reduce_scatter(self._submitter, output_tensors, input_tensors, options)
        )

    @on_cpu
    def reduce_scatter_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> EngineWork:
        """Reduce a tensor and leave each rank an equal share of it."""
        return self.reduce_scatter_single_coalesced([output], [source], opts)

    @on_cpu
    def broadcast(self, tensors: Tensors, opts: Any = None) -> EngineWork:
        """Copy the tensor of the root into those of all ranks."""
        return self._keep(
            exchanges.broadcast(self._submitter, tensors, opts or c10d.BroadcastOptions())
        )

    @on_cpu
    def allgather(
        self, output_tensors: Sequence[Tensors], input_tensors: Tensors, opts: Any = None
    ) -> EngineWork:
        """Gather the tensor of each rank on all ranks."""
        options = opts or c10d.AllgatherOptions()
        return self._keep(
            exchanges.all_gather(self._submitter, output_tensors, input_tensors, options)
        )

    @on_cpu
    def allgather_coalesced(
        self, output_lists: Sequence[Tensors], input_list: Tensors, opts: Any = None
    ) -> EngineWork:
        """Gather tensors of each rank on all ranks; ``output_lists[i]`` are those of rank i."""
        return self.allgather(
            [list(parts) for parts in zip(*output_lists, strict=True)], input_list, opts
        )

    @on_cpu
    def all_gather_single_coalesced(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None
    ) -> EngineWork:
        """Gather tensors of each rank, each into one tensor, as one operation."""
        return self.allgather([[output] for output in output_tensors], input_tensors, opts)

    @on_cpu
    def all_gather_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> EngineWork:
        """Gather the tensor of each rank into one tensor."""
        return self.allgather([[output]], [source], opts)

    @on_cpu
    def gather(
        self, output_tensors: Sequence[Tensors], input_tensors: Tensors, opts: Any = None
    ) -> EngineWork:
        """Gather the tensor of each rank on the root."""
        options = opts or c10d.GatherOptions()
        return self._keep(exchanges.gather(self._submitter, output_tensors, input_tensors, options))

    @on_cpu
    def scatter(
        self, output_tensors: Tensors, input_tensors: Sequence[Tensors], opts: Any = None
    ) -> EngineWork:
        """Send one tensor of the root to each rank."""
        options = opts or c10d.ScatterOptions()
        return self._keep(
            exchanges.scatter(self._submitter, output_tensors, input_tensors, options)
        )

    @on_cpu
    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: Any = None,
    ) -> EngineWork:
        """Send consecutive rows of a tensor to each rank."""
        splits = list(output_split_sizes), list(input_split_sizes)
        options = opts or c10d.AllToAllOptions()
        return self._keep(
            exchanges.all_to_all_single(self._submitter, output, source, splits, options)
        )

    @on_cpu
    def alltoall(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None
    ) -> EngineWork:
        """Send one tensor to each rank, and receive one from each."""
        options = opts or c10d.AllToAllOptions()
        return self._keep(
            exchanges.all_to_all(self._submitter, output_tensors, input_tensors, options)
        )

    def barrier(self, opts: Any = None) -> EngineWork:
        """Wait for all ranks of the group."""
        return self._keep(exchanges.barrier(self._submitter, opts or c10d.BarrierOptions()))

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Wait for all ranks of the group, at most for a time.

        ``torch.distributed.monitored_barrier`` refuses all backends but gloo; call this method.

        Args:
            timeout: None for that of the group.
            wait_all_ranks: has no effect, as the report of a stall names all missing ranks.

        Raises:
            HorovodInternalError: not all ranks have come in time.
        """
        del wait_all_ranks
        options = c10d.BarrierOptions()
        if hasattr(options, "asyncOp"):  # not in older PyTorch
            options.asyncOp = False
        if timeout is not None:
            options.timeout = timeout
        exchanges.barrier(self._submitter, options, "monitored_barrier").wait()

    # The names of the same operations in PyTorch before 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    @on_cpu
    def send(self, tensors: Tensors, dst_rank: int, tag: int) -> EngineWork:
        """Send a tensor to a rank of the group."""
        return self._keep(messages.send(self._submitter, tensors, dst_rank, tag))

    @on_cpu
    def recv(self, tensors: Tensors, src_rank: int, tag: int) -> EngineWork:
        """Receive a tensor from a rank of the group."""
        return self._keep(messages.receive(self._submitter, tensors, src_rank, tag))

    @on_cpu
    def recv_anysource(self, tensors: Tensors, tag: int) -> EngineWork:
        """Receive a tensor from the first rank of the group that sends one with this tag."""
        return self._keep(messages.receive(self._submitter, tensors, None, tag))

    def _get_backend(self, device: torch.device) -> Any:
        """Return what serves a device: this group, for the CPU.

        Raises:
            UsageError: the group has no backend for this device.
        """
        if torch.device(device).type == "cpu":
            return self
        return self._others.group_for(torch.device(device))._get_backend(device)

    def _start_coalescing(self, device: torch.device) -> None:
        """Collect the operations that follow, until :meth:`_end_coalescing`."""
        del device
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> JoinedWork:
        """Return the collected operations, which are running, as one work."""
        del device
        works, self._coalesced = self._coalesced or [], None
        return JoinedWork(works)

    def _keep(self, work: EngineWork) -> EngineWork:
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work
