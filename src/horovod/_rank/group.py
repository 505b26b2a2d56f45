"""Process sets for Python: collectives on contiguous memory, of CPUs or GPUs, of any framework.

An adapter turns its tensors into :class:`horovod._native.Buffer` views and calls a :class:`Group`.
Every method submits and returns a :class:`horovod._native.Handle` at once; ``handle.wait()`` waits
and raises what went wrong.

Of tensors on a GPU the wait ends when the work is in a stream of the device: ``handle.order()``
lets the caller's stream go on behind it, and results that the engine allocated are copied with
``NativeArray.copy_to``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horovod import _native
from horovod._rank.reduction import PLAIN_AVERAGE, PLAIN_SUM, ReduceOp, Reduction
from horovod._rank.submit_options import PrioritizedOptions, SubmitOptions
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack

    from horovod._native import Buffer, Engine, Handle

# Behind the operation: what the engine takes if nothing is said.
_PLAIN_REST = PLAIN_SUM[1:]


class Group:
    """A process set of one engine: the ranks that take part in a collective.

    All inputs of one call form a group: they are negotiated under one name, become ready together,
    and fail together. All methods take SubmitOptions by keyword and raise

    - UsageError: the arguments do not fit; DuplicateNameError: the name is in flight;
    - HorovodInternalError: the engine can no longer work.

    A rank outside of the set has such an object too, which knows its ranks and refuses every
    collective with UsageError.

    Args:
        engine: the engine of this rank.
        process_set_id: the engine's number of the set, 0 for all ranks of the job.
        ranks: the global ranks of the set, in rising order.
    """

    def __init__(self, engine: Engine, process_set_id: int, ranks: Sequence[int]) -> None:
        self._engine = engine
        self._id = process_set_id
        self._ranks = tuple(ranks)
        self._rank = self._ranks.index(engine.rank) if engine.rank in self._ranks else None
        self._plain: dict[tuple[str, ReduceOp], _native.PlainReduction] = {}

    @property
    def process_set_id(self) -> int:
        """The engine's number of the set, 0 for all ranks of the job; never used twice."""
        return self._id

    @property
    def is_member(self) -> bool:
        """Whether this rank belongs to the set."""
        return self._rank is not None

    @property
    def ranks(self) -> tuple[int, ...]:
        """The global ranks of the set, in rising order."""
        return self._ranks

    @property
    def rank(self) -> int:
        """This rank's place in the set.

        Raises:
            UsageError: it does not belong to the set.
        """
        if self._rank is None:
            raise self._refusal()
        return self._rank

    @property
    def size(self) -> int:
        """The number of ranks in the set."""
        return len(self._ranks)

    @property
    def engine(self) -> Engine:
        """The engine that the set belongs to."""
        return self._engine

    @property
    def quantizes_by_itself(self) -> bool:
        """Whether QuantizedFormat.AUTO lets tensors of the CPU travel in 8 bits, on all ranks.

        Raises:
            UsageError: this rank is not a member of the set.
        """
        return self._engine.automatic_quantization(self._id) != 0

    def allreduce(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        reduction: Reduction = PLAIN_AVERAGE,
        *,
        name: str | None = None,
        prefix: str = "allreduce",
        waits_next: bool = False,
        call_site: str = "",
        keep: object = None,
    ) -> Handle:
        """Reduces each input over the ranks into the output of the same place.

        Args:
            inputs: any shape and dtype, the same on all ranks.
            outputs: one per input, of its shape and dtype; may be the input itself.
            reduction: how values become one, and how soon.
            name, prefix, waits_next, call_site, keep: as in :class:`SubmitOptions`.
        """
        # As _submit, without a dictionary: this one is called for every gradient.
        if self._rank is None:
            raise self._refusal()
        is_plain = reduction is PLAIN_SUM or reduction is PLAIN_AVERAGE
        if is_plain or reduction[1:] == _PLAIN_REST:  # mostly
            match inputs, outputs:
                case [given], [taken]:
                    op = reduction[0]
                    plain = self._plain.get((prefix, op)) or self._note_plain(prefix, op)
                    return self._engine.allreduce(
                        plain, name, given, taken, waits_next, call_site, keep
                    )
        op, prescale, postscale, weight, priority, quantized = reduction
        extra: dict[str, Any] = {}
        if quantized is not None:
            extra = {"quantization": int(quantized.format), "residuals": quantized.residuals}
        return self._engine.submit(
            _native.ALLREDUCE,
            name,
            inputs,
            outputs,
            prefix=prefix,
            reduce_op=op,
            prescale=prescale,
            postscale=postscale,
            weight=weight,
            process_set=self._id,
            waits_next=waits_next,
            call_site=call_site,
            keep_alive=keep,
            priority=priority,
            **extra,
        )

    def allreduce_now(
        self,
        given: Buffer,
        taken: Buffer,
        reduction: Reduction,
        name: str | None,
        call_site: str,
        keep: object,
    ) -> None:
        """Reduces one tensor on the CPU and waits, in one call of the engine where it can.

        The arguments are those of :meth:`allreduce`, which this is but for a small tensor's price.
        """
        if self._rank is None or not (reduction is PLAIN_SUM or reduction is PLAIN_AVERAGE):
            self.allreduce(
                (given,),
                (taken,),
                reduction,
                name=name,
                waits_next=True,
                call_site=call_site,
                keep=keep,
            ).wait()
            return
        prefix, op = "allreduce", reduction[0]
        plain = self._plain.get((prefix, op)) or self._note_plain(prefix, op)
        self._engine.allreduce_now(plain, name, given, taken, call_site, keep)

    def allreduce_later(
        self,
        given: Buffer,
        taken: Buffer,
        reduction: Reduction,
        name: str | None,
        call_site: str,
        keep: object,
    ) -> Handle:
        """Reduces one tensor for a caller who does not wait next: :meth:`allreduce`, but faster."""
        if self._rank is None or not (reduction is PLAIN_SUM or reduction is PLAIN_AVERAGE):
            options: SubmitOptions = {"name": name, "call_site": call_site, "keep": keep}
            return self.allreduce((given,), (taken,), reduction, **options)
        prefix, op = "allreduce", reduction[0]
        plain = self._plain.get((prefix, op)) or self._note_plain(prefix, op)
        return self._engine.allreduce(plain, name, given, taken, False, call_site, keep)

    def reducescatter(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        *,
        op: int = ReduceOp.AVERAGE,
        prescale: float = 1.0,
        postscale: float = 1.0,
        **options: Unpack[PrioritizedOptions],
    ) -> Handle:
        """Reduces each input and leaves :meth:`rows_of` its rows on each rank, in rank order.

        Args:
            inputs: at least one dimension; the same shape and dtype on all ranks.
            outputs: one per input, with the rows of this rank.
            op: Sum or Average.
            prescale, postscale: factors applied before and after the reduction.
        """
        return self._submit(
            _native.REDUCESCATTER,
            "reducescatter",
            inputs,
            outputs,
            options,
            reduce_op=op,
            prescale=prescale,
            postscale=postscale,
        )

    def allgather(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer] = (),
        **options: Unpack[PrioritizedOptions],
    ) -> Handle:
        """Joins the inputs of all ranks along dimension 0, in ``handle.results()`` or ``outputs``.

        Args:
            inputs: at least one dimension; all but the first must agree between the ranks.
            outputs: none; or, on the CPU, for each input one with as many rows from each rank, or
                one for each rank, those of the first input in front. The wait raises MismatchError
                on all ranks if a rank gives another number of rows.
        """
        return self._submit(_native.ALLGATHER, "allgather", inputs, outputs, options)

    def broadcast(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        root: int,
        **options: Unpack[PrioritizedOptions],
    ) -> Handle:
        """Copies the inputs of the root into the outputs of all ranks.

        Args:
            inputs: any shape and dtype, the same on all ranks; read on the root only.
            outputs: one per input; may be the input itself.
            root: a global rank that is a member of the set.
        """
        return self._submit(_native.BROADCAST, "broadcast", inputs, outputs, options, root=root)

    def alltoall(
        self,
        inputs: Sequence[Buffer],
        splits: Sequence[int] | None = None,
        outputs: Sequence[Buffer] = (),
        received: Sequence[int] | None = None,
        **options: Unpack[PrioritizedOptions],
    ) -> Handle:
        """Sends ``splits[i]`` rows of the one input, or the whole input i, to set rank i.

        Without outputs the engine allocates ``handle.results()[0]``, the rows received in set-rank
        order; ``handle.received_splits()`` tells how many came from each rank.

        Args:
            inputs: one buffer, or one per member and no splits; dimensions from the second on agree
                between the ranks.
            splits: one count per member, whose sum is at most dimension 0; None divides it equally.
            outputs: none; or, on the CPU, one for the rows of all members, or one per member.
            received: how many rows come from each member; the wait raises MismatchError on all
                ranks if others come. None for what the outputs say, where one output has equally
                many rows of each.
        """
        return self._submit(
            _native.ALLTOALL,
            "alltoall",
            inputs,
            outputs,
            options,
            splits=splits,
            received_splits=received,
        )

    def send(
        self, buffer: Buffer, to: int, *, tag: int = 0, **options: Unpack[PrioritizedOptions]
    ) -> Handle:
        """Sends one tensor to a set rank; ends when the tensor is on its way and its memory free.

        It meets the first :meth:`recv` of that rank, in the order of submission, that names this
        rank or any and the same tag. Other ranks take no part. Several may be in flight, also in
        both directions, and be submitted before any is waited for. A ``name`` labels it in
        messages and in the timeline; it need not be unique.

        Args:
            buffer: on the CPU, of any dtype and shape; the receiver has as many elements of the
                same dtype. If not, the waits of both ranks raise MismatchError.
            to: the set rank that receives; not this one.
            tag: a number that the receiver names, from 0 to 2147483647.
        """
        return self._submit(
            _native.SEND, "send", (buffer,), (), options, root=self._global_rank(to), tag=tag
        )

    def recv(
        self,
        buffer: Buffer,
        source: int | None,
        *,
        tag: int = 0,
        **options: Unpack[PrioritizedOptions],
    ) -> Handle:
        """Receives into one tensor what :meth:`send` of a set rank sends to this one.

        After a successful wait ``handle.source()`` is the set rank of the sender.

        Args:
            buffer: on the CPU; written to until the end of the operation.
            source: the set rank that sends, not this one; None for the first that sends with
                this tag.
            tag: as in :meth:`send`.
        """
        root = -1 if source is None else self._global_rank(source)
        return self._submit(_native.RECV, "recv", (), (buffer,), options, root=root, tag=tag)

    def barrier(self, **options: Unpack[PrioritizedOptions]) -> Handle:
        """Ends when all ranks of the set have reached it; operations in flight are not waited for.

        Two barriers of one set, or of one name, cannot be in flight at the same time.
        """
        options.setdefault("waits_next", True)
        return self._submit(_native.BARRIER, "barrier", (), (), options)

    def join(
        self,
        *,
        divide_by_initial_world_size: bool = True,
        device: int = -1,
        call_site: str = "",
    ) -> Handle:
        """Says that this rank has no more inputs; ends when all ranks of the set have said so.

        Until then the rank takes part in every allreduce with what does not change its result.
        After a successful wait ``handle.last_joined()`` is the global rank that came last, the same
        on all ranks. No other operation of this rank may be in flight.

        Args:
            divide_by_initial_world_size: whether Average goes on dividing by the size of the set,
                or by the number of ranks that have not joined.
            device: of the GPU that this rank takes part with in operations on GPUs; -1 for the one
                that it used last, and so is one that this host does not have. Without any, such an
                operation fails on all ranks.
            call_site: ``file:line`` of the caller.
        """
        options = PrioritizedOptions(waits_next=True, call_site=call_site)
        return self._submit(
            _native.JOIN,
            "join",
            (),
            (),
            options,
            divide_by_initial_world_size=divide_by_initial_world_size,
            device=device,
        )

    def share_memory(self, num_bytes: int, *, name: str, call_site: str = "") -> Handle:
        """Starts to make an array that all ranks of the host see; every rank of the job calls it.

        It is this rank's own array. An allreduce in place of what lies at the same place of it on
        all members needs no copies: each member reduces a share straight from all arrays, and
        writes it into all. Between the calls nobody else touches the array.

        On several hosts, or if the system has no shared memory left (one line of the log says so),
        the array is in ordinary memory, and an allreduce takes its ordinary way.

        Args:
            num_bytes: the same on all ranks, positive.
            name: what the ranks agree on.
            call_site: ``file:line`` of the caller.

        Returns:
            A handle; ``results()[0]`` of the ended operation is the array, of bytes, which are
            zeros if it is shared. See ``NativeArray.part``. Its wait raises MismatchError if the
            ranks want different numbers of bytes, or one of them has joined.

        Raises:
            UsageError: this is not the group of all ranks, or ``num_bytes`` is not positive.
        """
        options = PrioritizedOptions(name=name, call_site=call_site)
        return self._submit(
            _native.SHARE_MEMORY, "share_memory", (), (), options, ranks=[num_bytes]
        )

    def add(self, ranks: Sequence[int], *, call_site: str = "") -> Group:
        """Makes a process set; every rank of the job calls it on its group of all ranks.

        Waits until all ranks have called it, with the same ranks and in the same order of calls.

        Args:
            ranks: global ranks in rising order, none twice.
            call_site: ``file:line`` of the caller.

        Returns:
            The group of the new set; on ranks outside of it, one that is no member.

        Raises:
            MismatchError: the ranks named different sets.
            HorovodInternalError: the job failed.
        """
        handle = self._change(_native.ADD_PROCESS_SET, ranks, call_site)
        return Group(self._engine, handle.new_process_set(), ranks)

    def remove(self, group: Group, *, call_site: str = "") -> None:
        """Removes a set that :meth:`add` made; every rank of the job calls it, as :meth:`add`.

        Args:
            group: the set; no operation of it may be in flight.
            call_site: ``file:line`` of the caller.

        Raises:
            MismatchError: the ranks named different sets.
            HorovodInternalError: the job failed.
        """
        self._change(_native.REMOVE_PROCESS_SET, [group.process_set_id], call_site)

    def add_by_members(self, ranks: Sequence[int], *, name: str, call_site: str = "") -> Group:
        """Makes a process set that only its members ask for, on their groups of all ranks.

        Waits until all members have called it with this name and these ranks. Members of several
        sets may call it at the same time, in any order, as long as names differ. The other ranks
        of the job need not do anything, but must not have shut down.

        Args:
            ranks: global ranks in rising order, none twice; this rank is one of them.
            name: what the members agree on; may be used again when the call has ended.
            call_site: ``file:line`` of the caller.

        Returns:
            The group of the new set, to be removed by :meth:`remove_by_members` or left by
            :meth:`leave`.

        Raises:
            MismatchError: ranks asked for different sets under this name.
            UsageError: this rank is not one of ``ranks``, or they do not exist or do not rise.
            DuplicateNameError: a call of this rank with this name has not ended.
            HorovodInternalError: the job failed.
        """
        handle = self._change_by_members(_native.ADD_PROCESS_SET, ranks, name, call_site)
        return Group(self._engine, handle.new_process_set(), ranks)

    def remove_by_members(self, group: Group, *, call_site: str = "") -> None:
        """Removes a set; only its members call it, on their groups of all ranks.

        Waits until all members have called it and what they submitted to the set has ended.

        Args:
            group: a set that :meth:`add_by_members` or :meth:`add` made.
            call_site: ``file:line`` of the caller.

        Raises:
            UsageError: this rank is not a member, or the set was removed.
            HorovodInternalError: the job failed.
        """
        name = f"remove.{group.process_set_id}"
        ranks = [group.process_set_id, *group.ranks]
        self._change_by_members(_native.REMOVE_PROCESS_SET, ranks, name, call_site)

    def leave(self, *, call_site: str = "") -> None:
        """Submits nothing more to this set, and waits for nobody; not for that of all ranks.

        What this rank has submitted goes on. What other members submit later fails, with an error
        that names this rank and ``call_site``. The set ends when all members have called this.
        Does nothing if the engine has ended.

        Args:
            call_site: ``file:line`` of the caller.

        Raises:
            UsageError: this rank is no member, or has left or removed the set.
        """
        self._engine.leave_process_set(self._id, call_site)

    def _change_by_members(
        self, kind: int, ranks: Sequence[int], name: str, call_site: str
    ) -> Handle:
        options = PrioritizedOptions(name=name, waits_next=True, call_site=call_site)
        handle = self._submit(
            kind, "process_set_of_members", (), (), options, ranks=ranks, by_members=True
        )
        handle.wait()
        return handle

    def _change(self, kind: int, ranks: Sequence[int], call_site: str) -> Handle:
        options = PrioritizedOptions(name="change", waits_next=True, call_site=call_site)
        handle = self._submit(kind, "process_set", (), (), options, ranks=ranks)
        handle.wait()
        return handle

    def rows_of(self, num_rows: int, rank: int | None = None) -> int:
        """Return how many of ``num_rows`` a reducescatter leaves on a set rank (this one if
        None).
        """
        return _native.share_of(num_rows, self.rank if rank is None else rank, self.size)

    def _note_plain(self, prefix: str, op: ReduceOp) -> _native.PlainReduction:
        plain = _native.PlainReduction(prefix, op, self._id)
        self._plain[prefix, op] = plain
        return plain

    def _submit(
        self,
        kind: int,
        prefix: str,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        options: PrioritizedOptions,
        **arguments: Any,
    ) -> Handle:
        if self._rank is None:
            raise self._refusal()
        return self._engine.submit(
            kind,
            options.get("name"),
            inputs,
            outputs,
            prefix=options.get("prefix", prefix),
            process_set=self._id,
            waits_next=options.get("waits_next", False),
            call_site=options.get("call_site", ""),
            keep_alive=options.get("keep"),
            priority=options.get("priority", 0),
            **arguments,
        )

    def _global_rank(self, rank: int) -> int:
        if not 0 <= rank < len(self._ranks):
            raise UsageError(
                f"rank {rank} does not exist in the process set of ranks {list(self._ranks)}, "
                f"whose size is {len(self._ranks)}"
            )
        return self._ranks[rank]

    def _refusal(self) -> UsageError:
        return UsageError(
            f"rank {self._engine.rank} does not belong to the process set of ranks "
            f"{list(self._ranks)}; only its members may call"
        )
