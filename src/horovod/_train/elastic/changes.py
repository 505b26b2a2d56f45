"""Agreement of all ranks on a change at the same point of their program."""

from __future__ import annotations

import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from horovod._native import Buffer
from horovod._rank import context
from horovod._rank.reduction import ReduceOp, Reduction

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Change:
    """A change on which the ranks have agreed.

    Attributes:
        needs_sync: whether somebody may need the state, as far as this rank knows.
    """

    needs_sync: bool


class RanksDifferError(Exception):
    """A value that must be the same on all ranks differs."""


@dataclass(frozen=True)
class Round:
    """The agreement of a generation's members before they train in it.

    Attributes:
        needs_sync: whether somebody has no state, or one that differs.
        root: the lowest of the ranks that have completed a sync and are farthest; 0 if none has.
        is_first: whether none has.
    """

    needs_sync: bool
    root: int
    is_first: bool = False


def agree_on_changes(*, was_told: bool = False, added: bool = True) -> Change | None:
    """Whether the job changes, the same on all ranks; collective.

    If the job itself changes, the worker awaits a place in a later generation from now on. What
    somebody was told otherwise lets all ranks begin anew in the same one.

    Args:
        was_told: whether somebody told this rank of a change otherwise.
        added: whether that change adds ranks.

    Returns:
        None if it does not change.

    Raises:
        HorovodInternalError: a rank was lost.
        StartError: whoever started the job is gone.
    """
    return agree_at_boundary(was_told=was_told, added=added, commits=False)[0]


def agree_at_boundary(
    *, was_told: bool = False, added: bool = True, commits: bool, digest: int = 0
) -> tuple[Change | None, bool]:
    """Run :func:`agree_on_changes`, and return whether all save now: if one of them would.

    Args:
        was_told, added: see :func:`agree_on_changes`.
        commits: whether this rank would save.
        digest: of what must be the same on all ranks.

    Raises:
        RanksDifferError: the digests differ; on all ranks.
    """
    worker = context.elastic_worker()
    if worker is not None:
        worker.check_store()
    newest = -1 if worker is None else worker.newest
    leaving = worker is not None and bool(worker.leaving)
    mine = (newest, digest, -digest, *map(int, (leaving, was_told, was_told and added, commits)))
    newest, greatest, least, *flags = (
        maxima("elastic.changes", mine) if context.is_initialized() else mine
    )
    if greatest != -least:
        raise RanksDifferError
    any_leaves, anybody_was_told, anybody_added, anybody_commits = map(bool, flags)
    is_over = worker is not None and newest > worker.generation
    if not (is_over or any_leaves or anybody_was_told):
        return None, anybody_commits
    if worker is not None and is_over:
        worker.expect_change()
    elif worker is not None and any_leaves and not leaving:
        # Nothing was published yet: without this, nobody would know that the others wait.
        worker.fail("a rank leaves")
    comes_anew = worker is not None and is_over and worker.has_newcomers(newest)
    return Change(comes_anew or anybody_added), anybody_commits


def agree_on_round(*, needs_sync: bool, has_state: bool, progress: int = 0) -> Round:
    """Agree on how a new generation begins, the same on all ranks; collective.

    Args:
        needs_sync: whether this rank needs the state of another one, or has gone back to an older.
        has_state: whether it has completed a sync.
        progress: how far it is, from 0; who is farthest is the root.

    Raises:
        HorovodInternalError: a rank was lost.
    """
    group = context.global_group()
    rank, size = group.rank, group.size
    mine = progress * (size + 1) + size - rank if has_state else 0
    anybody_needs_sync, best = maxima("elastic.round", (int(needs_sync), mine))
    root = size - best % (size + 1) if best else 0
    return Round(bool(anybody_needs_sync), root, is_first=not best)


def maxima(name: str, values: Sequence[int]) -> list[int]:
    """Return the greatest number of all ranks in each place; collective."""
    numbers = array.array("q", values)
    view = Buffer.from_array(numbers)
    group = context.global_group()
    group.allreduce(
        (view,), (view,), Reduction(ReduceOp.MAX), name=name, waits_next=True, keep=numbers
    ).wait()
    return list(numbers)
