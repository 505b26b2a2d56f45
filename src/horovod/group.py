"""Process sets for Python: collectives on contiguous CPU memory of any framework.

An adapter turns its tensors into :class:`horovod._native.Buffer` views and calls a :class:`Group`. Every
method submits and returns a :class:`horovod._native.Handle` at once; ``handle.wait()`` gives the result or raises.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from enum import IntEnum

from horovod import _native
from horovod._native import Buffer, Engine, Handle


class ReduceOp(IntEnum):
    """How values of several ranks become one. The numbers are those of Horovod."""

    AVERAGE = 0
    SUM = 1
    ADASUM = 2
    MIN = 3
    MAX = 4
    PRODUCT = 5


class Group:
    """A process set of one engine: the ranks that take part in a collective.

    All inputs of one call form a group: they are negotiated under one name, become ready together, and
    fail together. ``keep`` is referenced until the operation is done, so it should hold the tensors.

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
        return len(self._ranks)

    @property
    def engine(self) -> Engine:
        return self._engine

    def allreduce(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        *,
        op: int = ReduceOp.AVERAGE,
        prescale: float = 1.0,
        postscale: float = 1.0,
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
            op: a ReduceOp; Average divides the sum by the set size.
            prescale, postscale: factors applied before and after the reduction.
            name: what the ranks agree on; None counts up, so ranks must then submit in the same order.
            prefix: the operation's word in the name, ``<prefix>.<name>``.
            waits_next: the caller waits at once, so no other thread needs to be woken.
            call_site: ``file:line`` of the caller for messages.
            keep: any object to reference until the operation is done.

        Raises:
            UsageError: a buffer does not fit; DuplicateNameError: the name is in flight;
            HorovodInternalError: the engine can no longer work.
        """
        return self._engine.submit(
            _native.ALLREDUCE,
            self._name(prefix, name),
            inputs,
            outputs,
            reduce_op=op,
            prescale=prescale,
            postscale=postscale,
            process_set=self._id,
            cacheable=name is not None,
            waits_next=waits_next,
            call_site=call_site,
            keep_alive=keep,
        )

    def reducescatter(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        *,
        op: int = ReduceOp.AVERAGE,
        prescale: float = 1.0,
        postscale: float = 1.0,
        name: str | None = None,
        prefix: str = "reducescatter",
        waits_next: bool = False,
        call_site: str = "",
        keep: object = None,
    ) -> Handle:
        """Reduces each input and leaves rows ``share_of_rows(dim0, rank, size)`` of it on each rank.

        Args:
            inputs: at least one dimension; the same shape and dtype on all ranks.
            outputs: one per input, with the rows of this rank (:meth:`rows_of`).
            op: Sum or Average. The rest is as in :meth:`allreduce`.
        """
        return self._engine.submit(
            _native.REDUCESCATTER,
            self._name(prefix, name),
            inputs,
            outputs,
            reduce_op=op,
            prescale=prescale,
            postscale=postscale,
            process_set=self._id,
            cacheable=name is not None,
            waits_next=waits_next,
            call_site=call_site,
            keep_alive=keep,
        )

    def allgather(
        self,
        inputs: Sequence[Buffer],
        *,
        name: str | None = None,
        prefix: str = "allgather",
        waits_next: bool = False,
        call_site: str = "",
        keep: object = None,
    ) -> Handle:
        """Joins the inputs of all ranks along dimension 0; the engine allocates ``handle.results()``.

        Args:
            inputs: at least one dimension; all but the first must agree between the ranks.
        """
        return self._engine.submit(
            _native.ALLGATHER,
            self._name(prefix, name),
            inputs,
            (),
            process_set=self._id,
            cacheable=name is not None,
            waits_next=waits_next,
            call_site=call_site,
            keep_alive=keep,
        )

    def broadcast(
        self,
        inputs: Sequence[Buffer],
        outputs: Sequence[Buffer],
        root: int,
        *,
        name: str | None = None,
        prefix: str = "broadcast",
        waits_next: bool = False,
        call_site: str = "",
        keep: object = None,
    ) -> Handle:
        """Copies the inputs of the root into the outputs of all ranks.

        Args:
            inputs: any shape and dtype, the same on all ranks; read on the root only.
            outputs: one per input; may be the input itself.
            root: a global rank that is a member of the set.
        """
        return self._engine.submit(
            _native.BROADCAST,
            self._name(prefix, name),
            inputs,
            outputs,
            root=root,
            process_set=self._id,
            cacheable=name is not None,
            waits_next=waits_next,
            call_site=call_site,
            keep_alive=keep,
        )

    def alltoall(
        self,
        inputs: Sequence[Buffer],
        splits: Sequence[int] | None = None,
        *,
        name: str | None = None,
        prefix: str = "alltoall",
        waits_next: bool = False,
        call_site: str = "",
        keep: object = None,
    ) -> Handle:
        """Sends ``splits[i]`` rows of the one input to set rank i.

        The engine allocates ``handle.results()[0]``, the rows received in set-rank order;
        ``handle.received_splits()`` tells how many came from each rank.

        Args:
            inputs: one buffer with at least one dimension; all but the first agree between the ranks.
            splits: one count per member, whose sum is at most dimension 0; None divides it equally.
        """
        return self._engine.submit(
            _native.ALLTOALL,
            self._name(prefix, name),
            inputs,
            (),
            splits=splits,
            process_set=self._id,
            cacheable=name is not None,
            waits_next=waits_next,
            call_site=call_site,
            keep_alive=keep,
        )

    def barrier(self, *, call_site: str = "") -> Handle:
        """Ends when all ranks of the set have reached it; operations in flight are not waited for."""
        return self._engine.submit(
            _native.BARRIER,
            "barrier.noname",
            (),
            (),
            process_set=self._id,
            cacheable=True,
            waits_next=True,
            call_site=call_site,
        )

    def rows_of(self, num_rows: int, rank: int | None = None) -> int:
        """How many of ``num_rows`` a reducescatter leaves on a set rank (this one if None)."""
        rank = self._rank if rank is None else rank
        return num_rows // self.size + (1 if rank < num_rows % self.size else 0)

    def _name(self, prefix: str, name: str | None) -> str:
        return f"{prefix}.noname.{next(self._unnamed)}" if name is None else f"{prefix}.{name}"
