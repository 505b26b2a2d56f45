"""Process sets for Python: collectives on contiguous CPU memory of any framework.

An adapter turns its tensors into :class:`horovod._native.Buffer` views and calls a :class:`Group`.
Every method submits and returns a :class:`horovod._native.Handle` at once; ``handle.wait()`` waits
and raises what went wrong.
"""

from __future__ import annotations

import itertools
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TypedDict

from horovod import _native

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Unpack

    from horovod._native import Buffer, Engine, Handle


class ReduceOp(IntEnum):
    """How values of several ranks become one. The numbers are those of Horovod."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


class SubmitOptions(TypedDict, total=False):
    """What every collective takes.

    Attributes:
        name: what the ranks agree on; None counts up, so ranks must then submit in the same order.
        prefix: the first word of the name on the wire, ``<prefix>.<name>``.
        waits_next: the caller waits at once, so that no other thread needs to be woken.
        call_site: ``file:line`` of the caller, for messages.
        keep: an object, for example the tensors, to reference until the operation is done.
    """

    name: str | None
    prefix: str
    waits_next: bool
    call_site: str
    keep: object


class Group:
    """A process set of one engine: the ranks that take part in a collective.

    All inputs of one call form a group: they are negotiated under one name, become ready together,
    and fail together. All methods take :class:`SubmitOptions` by keyword and raise

    - UsageError: the arguments do not fit; DuplicateNameError: the name is in flight;
    - HorovodInternalError: the engine can no longer work.

    Args:
        engine: the engine of this rank.
        process_set_id: 0 for all ranks of the job.
        ranks: the global ranks of the set, in rising order.
    """

    def __init__(self, engine: Engine, process_set_id: int, ranks: Sequence[int]) -> None:
        self._engine = engine
        self._id = process_set_id
        self._ranks = tuple(ranks)
        self._rank = self._ranks.index(engine.rank)
        self._unnamed = itertools.count(1)

    @property
    def process_set_id(self) -> int:
        """0 for all ranks of the job."""
        return self._id

    @property
    def ranks(self) -> tuple[int, ...]:
        """The global ranks of the set, in rising order."""
        return self._ranks

    @property
    def rank(self) -> int:
        """This rank's place in the set."""
        return self._rank

    @property
    def size(self) -> int:
        """The number of ranks in the set."""
        return len(self._ranks)

    @property
    def engine(self) -> Engine:
        """The engine that the set belongs to."""
        return self._engine

    def allreduce(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        *,
        op: int = ReduceOp.AVERAGE,
        prescale: float = 1.0,
        postscale: float = 1.0,
        **options: Unpack[SubmitOptions],
    ) -> Handle:
        """Reduces each input over the ranks into the output of the same place.

        Args:
            inputs: any shape and dtype, the same on all ranks.
            outputs: one per input, of its shape and dtype; may be the input itself.
            op: a ReduceOp; Average divides the sum by the set size.
            prescale, postscale: factors applied before and after the reduction.
        """
        return self._submit(
            _native.ALLREDUCE,
            "allreduce",
            inputs,
            outputs,
            options,
            reduce_op=op,
            prescale=prescale,
            postscale=postscale,
        )

    def reducescatter(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        *,
        op: int = ReduceOp.AVERAGE,
        prescale: float = 1.0,
        postscale: float = 1.0,
        **options: Unpack[SubmitOptions],
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

    def allgather(self, inputs: Sequence[Buffer], **options: Unpack[SubmitOptions]) -> Handle:
        """Joins the inputs of all ranks along dimension 0 in ``handle.results()``.

        Args:
            inputs: at least one dimension; all but the first must agree between the ranks.
        """
        return self._submit(_native.ALLGATHER, "allgather", inputs, (), options)

    def broadcast(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        root: int,
        **options: Unpack[SubmitOptions],
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
        **options: Unpack[SubmitOptions],
    ) -> Handle:
        """Sends ``splits[i]`` rows of the one input to set rank i.

        The engine allocates ``handle.results()[0]``, the rows received in set-rank order;
        ``handle.received_splits()`` tells how many came from each rank.

        Args:
            inputs: one buffer; dimensions from the second on agree between the ranks.
            splits: one count per member, whose sum is at most dimension 0; None divides it equally.
        """
        return self._submit(_native.ALLTOALL, "alltoall", inputs, (), options, splits=splits)

    def barrier(self, *, call_site: str = "") -> Handle:
        """Ends when all ranks of the set have reached it; operations in flight are not waited for.

        Two barriers of one set cannot be in flight at the same time.
        """
        options = SubmitOptions(name="noname", waits_next=True, call_site=call_site)
        return self._submit(_native.BARRIER, "barrier", (), (), options)

    def rows_of(self, num_rows: int, rank: int | None = None) -> int:
        """How many of ``num_rows`` a reducescatter leaves on a set rank (this one if None)."""
        rank = self._rank if rank is None else rank
        return num_rows // self.size + (1 if rank < num_rows % self.size else 0)

    def _submit(
        self,
        kind: int,
        prefix: str,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        options: SubmitOptions,
        **arguments: Any,
    ) -> Handle:
        name = options.get("name")
        prefix = options.get("prefix", prefix)
        return self._engine.submit(
            kind,
            f"{prefix}.noname.{next(self._unnamed)}" if name is None else f"{prefix}.{name}",
            inputs,
            outputs,
            process_set=self._id,
            cacheable=name is not None,
            waits_next=options.get("waits_next", False),
            call_site=options.get("call_site", ""),
            keep_alive=options.get("keep"),
            **arguments,
        )
