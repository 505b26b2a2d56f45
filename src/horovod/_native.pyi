"""The native engine, as Python sees it. Nothing here knows a framework."""

from collections.abc import Sequence
from typing import Any

__version__: str

# Operations (``kind`` of Engine.submit). Reduce operations are the integers of group.ReduceOp.
ALLREDUCE: int
ALLGATHER: int
BROADCAST: int
ALLTOALL: int
REDUCESCATTER: int
BARRIER: int
JOIN: int
ADD_PROCESS_SET: int
REMOVE_PROCESS_SET: int
SHARE_MEMORY: int

class Buffer:
    """A view of a contiguous array of this process or of a GPU; it does not keep the memory alive.

    Args:
        address: of the first element; may be 0 if the shape holds no element.
        dtype: one of bool, uint8, int8, uint16, int16, uint32, int32, uint64, int64,
            float16, bfloat16, float32, float64.
        shape: the extent of each dimension; empty for a scalar.
        device: the index of a GPU, or -1 for the CPU.
        stream: of that GPU, on which the array is used, as the driver's handle; 0 is the default
            stream.
    """

    def __init__(
        self,
        address: int,
        dtype: str,
        shape: Sequence[int],
        device: int = -1,
        stream: int = 0,
    ) -> None: ...
    @staticmethod
    def from_array(array: Any) -> Buffer:
        """Views any object with ``__dlpack__`` or the buffer protocol (CPU, C-contiguous)."""

    @property
    def address(self) -> int: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def device(self) -> int: ...
    @property
    def stream(self) -> int: ...

class NativeArray:
    """Memory that the engine allocated for a result.

    On the CPU it exports ``__dlpack__`` without a copy. On a GPU it is copied with :meth:`copy_to`,
    as its memory comes and goes in the order of a stream that frameworks do not know.
    """

    def __dlpack__(self, stream: Any = None, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def part(self, offset: int, dtype: str, shape: Sequence[int]) -> NativeArray:
        """Another array in the same memory, which it keeps alive.

        Args:
            offset: where it begins, in bytes; a multiple of the size of an element.
            dtype: as of Buffer.
            shape: the extent of each dimension.

        Raises:
            UsageError: it does not fit into this array.
        """

    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def address(self) -> int: ...
    @property
    def device(self) -> int:
        """The index of a GPU, or -1 for the CPU."""

    def copy_to(self, buffer: Buffer) -> None:
        """On a GPU: starts a copy into memory of the same GPU, in the order of the buffer's stream.

        The array may go away at once. Nothing waits on the host, and :meth:`Handle.order` is not
        needed before.

        Raises:
            UsageError: the array is not on a GPU, the buffer is on another one or of another length.
            HorovodInternalError: the device failed.
        """

def private_array(num_bytes: int) -> NativeArray:
    """An array of bytes in ordinary memory, with any values."""

class Handle:
    """One submitted operation; it holds the result or the exception."""

    @property
    def name(self) -> str:
        """What the ranks agree on, for example ``allreduce.loss``."""

    def done(self) -> bool:
        """Whether the operation ended, also with an error. Never blocks, never raises."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits without the GIL; Python's signal handlers run meanwhile.

        Returns:
            True when the operation ended well, False when the time was over.

        Raises:
            HorovodInternalError, MismatchError, PeerLostError, ShutDownError: it failed.
        """

    def results(self) -> list[NativeArray]:
        """The arrays that the engine allocated (allgather, alltoall, SHARE_MEMORY); after a
        successful wait."""

    def order(self, device: int, stream: int) -> None:
        """Of tensors on a GPU, after a successful wait: lets a stream go on behind the result.

        The wait ends as soon as the work is on the device, so that the host never waits for it. On
        the CPU this does nothing.

        Args:
            device: the index of the stream's GPU.
            stream: the driver's handle; 0 is the default stream.

        Raises:
            UsageError: the operation is still in flight.
            HorovodInternalError: the device failed, or ranks were lost before it was done.
        """

    def finished(self) -> bool:
        """Whether the operation ended, on the device, too. Never blocks.

        Raises:
            HorovodInternalError, MismatchError, PeerLostError, ShutDownError: it failed.
        """

    def received_splits(self) -> list[int]:
        """alltoall: rows received from each member, in the order of set ranks."""

    def new_process_set(self) -> int:
        """ADD_PROCESS_SET: the engine's number of the set, never used again; after the wait."""

    def last_joined(self) -> int:
        """JOIN: the global rank that joined last, the same on all ranks; after the wait."""

class LocalPort:
    """This rank's inbox in shared memory: a memfd with rings from each co-host rank, and an eventfd.

    Args:
        num_local: ranks on this host, this one included.
        local_index: this rank's index among them (0 … num_local - 1).
    """

    def __init__(self, num_local: int, local_index: int) -> None: ...
    @property
    def segment_fd(self) -> int: ...
    @property
    def doorbell_fd(self) -> int: ...

class AutotuneOptions:
    """How to tune the fusion threshold while the job runs.

    Args:
        fixed: the user chose the threshold; nothing is changed.
        warmup_samples: steps at the beginning that are not measured.
        steps_per_sample: most steps that are measured in a row at one threshold.
        max_samples: most such rows.
        log_path: a CSV file, or none.
    """

    def __init__(
        self,
        *,
        fixed: bool = ...,
        warmup_samples: int = ...,
        steps_per_sample: int = ...,
        max_samples: int = ...,
        log_path: str = ...,
    ) -> None: ...

class CostConstants:
    """What the cost model knows of the network; the same on all ranks.

    Args:
        network_latency_s: of a hop between two hosts; 0 for a usual one.
        network_bytes_per_s: of a host's link in one direction, where nothing else is known.
        link_bytes_per_s: the same for each host; 0 for one of which nothing is known.
        memory_bytes_per_s: that the ranks of a host read and write together; 0 for a usual host.
    """

    def __init__(
        self,
        *,
        network_latency_s: float = ...,
        network_bytes_per_s: float = ...,
        link_bytes_per_s: Sequence[float] = ...,
        memory_bytes_per_s: float = ...,
    ) -> None: ...
    @property
    def network_latency_s(self) -> float: ...
    @property
    def network_bytes_per_s(self) -> float: ...
    @property
    def link_bytes_per_s(self) -> list[float]: ...
    @property
    def memory_bytes_per_s(self) -> float: ...

def kernel_isa() -> str:
    """The instructions that reductions of this process use: avx512, avx2 or base."""

def select_kernel_isa(isa: str) -> bool:
    """Makes reductions use other instructions, for tests; False if this processor lacks them."""

def share_of(num_rows: int, rank: int, size: int) -> int:
    """How many of ``num_rows`` are a rank's: the longer shares are those of the first ranks."""

def estimate_allreduce(
    hosts: Sequence[int],
    num_bytes: int,
    *,
    algorithm: str = ...,
    deterministic: bool = ...,
    costs: CostConstants = ...,
) -> tuple[str, float]:
    """What the cost model says of an allreduce.

    Args:
        hosts: the host of each rank, by number; an index into ``costs.link_bytes_per_s``.
        num_bytes: of each rank's tensor.
        algorithm: the one to use; auto for the best.
        deterministic: whether only algorithms that reduce in the order of the ranks may be chosen.
        costs: of the network.

    Returns:
        The algorithm, and the seconds until all ranks have the result.

    Raises:
        UsageError: no such algorithm, no rank, or a negative number of bytes.
    """

def find_mpi(candidates: Sequence[str]) -> list[str]:
    """The path and the version of the first MPI library that can be used.

    Args:
        candidates: paths, or names for the system's loader.

    Raises:
        UsageError: there is none; the message says why for each candidate.
    """

class MpiProcess:
    """MPI in this process. Begins to initialize it, unless somebody did, on a thread of its own.

    Args:
        candidates: as of :func:`find_mpi`.
        all_threads: asks for MPI_THREAD_MULTIPLE, so that the program may call MPI too.

    Raises:
        UsageError: there is no library.
    """

    def __init__(self, candidates: Sequence[str], all_threads: bool) -> None: ...
    def wait(self, timeout_s: float) -> bool:
        """Waits without the GIL; whether MPI is ready, and what follows is known.

        Raises:
            UsageError: it cannot be used, as it was finalized or has too few threads.
            HorovodInternalError: it failed.
        """

    @property
    def path(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def rank(self) -> int:
        """In MPI_COMM_WORLD."""

    @property
    def size(self) -> int:
        """Of MPI_COMM_WORLD."""

    @property
    def all_threads(self) -> bool:
        """Whether MPI gave MPI_THREAD_MULTIPLE."""

    def give_up(self, reason: str) -> None:
        """From now on MPI is not called any more."""

    def given_up(self) -> str | None:
        """Why MPI is not called any more, as an operation was left in it; None if it may be."""

    def finish(self, timeout_s: float) -> bool:
        """Ends MPI, if it was initialized here; whether that was done in time."""

    def abandon(self) -> None:
        """In the child of a fork."""

class MpiWorld:
    """The ranks of a job as MPI knows them. Begins to make it; all ranks do, in the same order.

    Args:
        process: that is ready.
        rank, size: of the job.

    Raises:
        UsageError: MPI_COMM_WORLD has another size.
    """

    def __init__(self, process: MpiProcess, rank: int, size: int) -> None: ...
    def wait(self, timeout_s: float) -> bool:
        """Waits without the GIL; whether all ranks have met.

        Raises:
            HorovodInternalError, UsageError: that failed.
        """

def find_gpu(candidates: Sequence[str]) -> tuple[str, int, int]:
    """The path and version of the GPU driver's library (13010 is 13.1), and the number of GPUs.

    Args:
        candidates: as of :func:`find_mpi`; a library that is loaded already is taken before.

    Raises:
        UsageError: there is none; the message says why for each candidate.
    """

def find_nccl(candidates: Sequence[str]) -> tuple[str, int, str]:
    """The path and version of NCCL or RCCL (22907 is 2.29.7), and a warning of a known fault, or "".

    Args:
        candidates: as of :func:`find_gpu`.

    Raises:
        UsageError: there is none; the message says why for each candidate.
    """

class GpuOptions:
    """How tensors on GPUs are dealt with. Nothing is loaded before the first one.

    Args:
        driver_candidates, nccl_candidates: as of :func:`find_gpu` and :func:`find_nccl`.
        operations: auto for NCCL where all ranks of a process set can use it, else through host
            memory; nccl for an error then; staged for host memory in any case.
        chunk_bytes: of host memory that travel at a time; the same on all ranks.
        max_pinned_bytes: of host memory for that.
    """

    def __init__(
        self,
        *,
        driver_candidates: Sequence[str],
        nccl_candidates: Sequence[str],
        operations: str = ...,
        chunk_bytes: int = ...,
        max_pinned_bytes: int = ...,
    ) -> None: ...

class EngineOptions:
    """How an engine behaves; all fields have defaults and can be given as keywords.

    Args:
        fusion_threshold: bytes that may travel in one batch.
        cache_capacity: names whose negotiation is remembered.
        stall_check_time_s: after which missing ranks are reported; None adapts to the job's pace,
            0 is never.
        stall_shutdown_time_s: after which a stall ends the job; 0 is never.
        deadlock_timeout_s: after which ranks end that wait for each other for ever; 0 is never.
        rank_names: what messages say of each rank, such as "host:pid".
        deterministic: results do not depend on which tensors travel together.
        least_log_level: 0 info, 1 warning, 2 error, 3 silence.
        log_time: whether messages begin with the time.
        fuse_groups: whether a group of tensors may travel with others.
        core: that the engine's thread is bound to; -1 is none.
        num_cores: that this process may keep busy, :func:`horovod._rank.cores.usable_cores`; 0 for those
            that it may run on. Ranks that each have one spin longer before they sleep.
        autotune: tunes the fusion threshold if given.
        stack_dump: signal, descriptor and thread id of :class:`horovod._rank.reports.position.StackDump`.
        allreduce_algorithm: exchange, direct, ring, doubling, trees or hierarchical; auto for the
            one that the cost model prefers. The same on all ranks.
        costs: what the cost model knows of the network.
        mpi: moves the data in place of the engine, if given.
        gpu: how tensors on GPUs are dealt with; without it they are refused.
    """

    def __init__(
        self,
        *,
        fusion_threshold: int = ...,
        cache_capacity: int = ...,
        stall_check_time_s: float | None = ...,
        stall_shutdown_time_s: float = ...,
        deadlock_timeout_s: float = ...,
        rank_names: Sequence[str] = ...,
        deterministic: bool = ...,
        least_log_level: int = ...,
        log_time: bool = ...,
        stack_dump: tuple[int, int, int] = ...,
        fuse_groups: bool = ...,
        core: int = ...,
        num_cores: int = ...,
        autotune: AutotuneOptions | None = ...,
        allreduce_algorithm: str = ...,
        costs: CostConstants = ...,
        mpi: MpiWorld | None = ...,
        gpu: GpuOptions | None = ...,
    ) -> None: ...

class Engine:
    """The engine of one rank; owns one thread. Closing it releases every descriptor and mapping.

    Args:
        rank, size: of the global process set (set 0).
        port: this rank's inbox, or None when no other rank is on this host.
        local_peers: (rank, local index, segment fd, doorbell fd, liveness socket fd) of each other
            rank on this host. The engine takes the descriptors over and closes them.
        remote_peers: (rank, control socket fd, data socket fds) of each rank on another host.
        hosts: the host of each rank, by number; may be left out if all ranks are on one host, or
            each on another.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        options: EngineOptions,
        port: LocalPort | None,
        local_peers: Sequence[tuple[int, int, int, int, int]],
        remote_peers: Sequence[tuple[int, int, Sequence[int]]],
        hosts: Sequence[int] = ...,
    ) -> None: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def all_local(self) -> bool:
        """Whether all ranks are on this host."""

    def submit(
        self,
        kind: int,
        name: str | None,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        *,
        prefix: str = ...,
        reduce_op: int = ...,
        prescale: float = ...,
        postscale: float = ...,
        root: int = ...,
        splits: Sequence[int] | None = ...,
        process_set: int = ...,
        waits_next: bool = ...,
        call_site: str = ...,
        keep_alive: object = None,
        weight: float | None = ...,
        ranks: Sequence[int] = ...,
        divide_by_initial_world_size: bool = ...,
        priority: int = ...,
        device: int = ...,
    ) -> Handle:
        """Hands an operation to the engine; all inputs of one call form a group.

        Ranks agree on the name ``<prefix>.<name>``, or on the name alone without a prefix. Without
        a name the engine counts the operations of the process set, anew after a join on all ranks:
        ranks that submit different ones under a number get a MismatchError. A barrier, and a join,
        needs no number, as there is one at a time.

        ``outputs`` is one buffer per input for allreduce, broadcast and reducescatter (for
        reducescatter with the shape that this rank receives), and empty for allgather, alltoall
        and barrier. ``keep_alive`` (for example the tensors) is referenced until the handle is done.
        ``waits_next`` says that the caller will call ``wait`` at once, which saves a thread switch.
        ``weight`` of this rank's values makes an average a weighted one. ``ranks`` are the members
        of a new process set, or the number of the one to be removed. What has a higher ``priority``
        on some rank goes first. ``device`` of a JOIN is the GPU that the rank takes part with; -1 is
        the one that it used last.

        All tensors of a call are on one device. Those on a GPU are used behind all that is in their
        streams now, and ``keep_alive`` is referenced until the device is done.

        ``keep_alive`` is let go when the operation ends, on whatever thread that is, and dropped by
        the next thread that calls the engine, or soon by the main thread.

        Raises:
            UsageError, DuplicateNameError: the arguments are wrong; nothing was sent.
            ShutDownError, PeerLostError: the engine can no longer work.
        """

    def start_timeline(self, path: str, mark_cycles: bool = ...) -> None:
        """On rank 0: writes what all ranks do into a file from now on; elsewhere nothing.

        Raises:
            UsageError: the file cannot be written.
            ShutDownError: the engine has ended.
        """

    def stop_timeline(self) -> None:
        """On rank 0: returns when all records are in the file; elsewhere nothing."""

    def c_reference(self) -> int:
        """The address of a new ``HvdEngine``, see ``native/bindings/c_interface.h``."""

    def wait_for_position_request(self, timeout_s: float) -> bool:
        """Waits without the GIL until another rank asks where this one is.

        Returns:
            True if somebody asks, False when the time is over or the engine has been closed.
        """

    def answer_position(self, stacks: str, threads: Sequence[tuple[int, bool, int, bool]]) -> None:
        """Answers with the stacks of this process's threads.

        Args:
            stacks: as text.
            threads: the ident of each, whether it only waits for work within the process, its
                native id, or 0 if that is not known, and whether it is in a call of a framework.
        """

    def closed(self) -> bool:
        """Whether :meth:`close` was called."""

    def error(self) -> str:
        """Why the engine can no longer work, or an empty string."""

    def statistics(self) -> dict[str, int]:
        """Counters for tests and debugging."""

    def abandon(self) -> None:
        """Only in the child of a fork: drops the engine without telling the peers anything."""

    def close(self, reason: str = ...) -> None:
        """Tells the peers, fails what is pending, joins the thread, releases everything. Idempotent."""

def check_name(name: str) -> None:
    """Only for names that reach the engine on another way than ``Engine.submit``.

    Raises:
        UsageError: it holds lone surrogates, as of bytes that are not UTF-8.
    """

def c_interface() -> int:
    """The address of the ``HvdInterface`` of ``native/bindings/c_interface.h``."""

def make_world(size: int, options: EngineOptions = ...) -> list[Engine]:
    """Engines of ``size`` ranks that are threads of this process, over the memory transport."""
