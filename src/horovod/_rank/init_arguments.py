"""The arguments of ``hvd.init()``, and the checks that need no other rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

from horovod.errors import UsageError


@runtime_checkable
class DeclaredSet(Protocol):
    """The parts of a process set that :func:`init` uses; see :mod:`horovod._train.process_set`."""

    @property
    def declared_ranks(self) -> tuple[int, ...]:
        """The global ranks that the set was made of in rising order, whether they exist or not."""

    def register(self, call_site: str = "") -> None:
        """Makes the set on all ranks of the job that has just begun."""

    def resolve(self) -> None:
        """Finds the set of the same ranks in the running job; KeyError if there is none."""


def check_comm(comm: object, size: int) -> None:
    """Checks that ``comm`` asks for all ranks of the job.

    Raises:
        UsageError: it asks for some of them, or is a communicator of MPI.
    """
    if isinstance(comm, Iterable):
        ranks = sorted(comm)
        if ranks and ranks != list(range(size)):
            raise UsageError(
                f"init(comm={ranks}) asks for some of the {size} ranks; this version only knows "
                "jobs of all ranks that the launcher started"
            )
    elif comm is not None:
        raise UsageError(
            f"init(comm=…) got a {type(comm).__name__}; MPI communicators are not supported in "
            "this version, start the job with horovodrun and call init() without arguments"
        )


def declared_sets(
    process_sets: object, size: int, *, may_change: bool = False
) -> list[DeclaredSet]:
    """The sets that ``init`` was given, after what can be checked without the other ranks.

    Args:
        process_sets: the argument.
        size: of the job.
        may_change: whether the number of ranks may change: a set may then have ranks that do not
            exist, or be of all ranks for a while.

    Raises:
        UsageError: they are no list of process sets, two are equal, or one does not fit.
    """
    if process_sets is None:
        return []
    if isinstance(process_sets, str) and process_sets.lower() == "dynamic":
        return []  # the word that once allowed process sets to change; they always may
    if isinstance(process_sets, str) or not isinstance(process_sets, Iterable):
        raise UsageError(
            f'init(process_sets={process_sets!r}) is neither "dynamic" nor a list of process sets'
        )
    seen = {} if may_change else {tuple(range(size)): "the global process set"}
    declared = []
    for index, process_set in enumerate(process_sets):
        if not isinstance(process_set, DeclaredSet):
            raise UsageError(
                f"init(process_sets=…): number {index} is a {type(process_set).__name__}, not a "
                "hvd.ProcessSet"
            )
        ranks = process_set.declared_ranks
        if ranks in seen:
            raise UsageError(
                f"init(process_sets=…): number {index}, {process_set}, is the same as {seen[ranks]}"
            )
        if not may_change:
            check_ranks(ranks, size)
        seen[ranks] = f"number {index}"
        declared.append(process_set)
    return declared


def check_ranks(ranks: Sequence[int], size: int) -> None:
    """Checks that a process set of these ranks makes sense in a job of ``size`` ranks.

    Args:
        ranks: global ranks in rising order.
        size: of the job.

    Raises:
        UsageError: there is none, one is there twice, or one is not in the job.
    """
    listed = list(ranks)
    if not listed:
        raise UsageError("a process set needs at least one rank")
    if len(set(listed)) != len(listed):
        raise UsageError(f"a process set of ranks {listed} holds a rank twice")
    if listed[0] < 0 or listed[-1] >= size:
        raise UsageError(
            f"a process set of ranks {listed} does not fit into the job, whose ranks are "
            f"0 … {size - 1}"
        )
