"""Stories of jobs over a shard: ranks that are threads train, are lost, and others resume."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import horovod.torch as hvd
from horovod.testing import run_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

EPOCHS = 2


@dataclass(frozen=True)
class Case:
    """A data set.

    Attributes:
        make: makes it; called by each rank.
        ids: of its samples.
        ids_of: those of a batch.
        has_one_order: whether the order is the same with any number of ranks.
        has_batches: whether its items are batches.
        options: further arguments of ``hvd.shard``.
    """

    make: Callable[[], Any]
    ids: Sequence[Hashable]
    ids_of: Callable[[Any], list[Hashable]] = lambda batch: batch.tolist()
    has_one_order: bool = True
    has_batches: bool = False
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Told:
    """What a rank has done.

    Attributes:
        kept: epoch and id of each sample that it has done until the last commit.
        state: of the shard in that commit.
        steps: in each step, the ids that count on this rank.
        weights: of each step.
    """

    state: str
    kept: list[tuple[int, Hashable]] = field(default_factory=list)
    steps: list[list[Hashable]] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)


def train(
    case: Case, options: dict[str, Any], state: str | None, steps: int, commit_every: int
) -> Told:
    """What a rank does, until the epochs end or all ranks are lost after some steps."""
    hvd.init()
    shard = hvd.shard(case.make(), **case.options, **options)
    if state is not None:
        shard.load_state_dict(json.loads(state))
    told = Told(json.dumps(shard.state_dict()))
    done: list[tuple[int, Hashable]] = []
    for epoch in shard.epochs(EPOCHS):
        for batch in shard:
            ids = case.ids_of(batch)
            assert shard.samples in (0, len(ids)) or case.has_batches
            counted = ids if shard.samples else []
            done += [(epoch, each) for each in counted]
            told.steps.append(counted)
            told.weights.append(shard.weight)
            if len(told.steps) % commit_every == 0:
                told.kept, told.state = list(done), json.dumps(shard.state_dict())
            if len(told.steps) == steps:
                return told
    told.kept, told.state = done, json.dumps(shard.state_dict())
    return told


def play(
    case: Case, options: dict[str, Any], losses: Sequence[tuple[int, int, int]], size: int
) -> list[list[Told]]:
    """Train with some ranks after the other, and check what must hold in each job.

    Args:
        case: the data set.
        options: of the shard.
        losses: of jobs that are lost: ranks, steps and steps between commits.
        size: of the last job.

    Returns:
        What each rank of each job has told.
    """
    state = None
    jobs: list[list[Told]] = []
    for ranks, steps, commit_every in [*losses, (size, -1, 1)]:

        def body(
            state: str | None = state, steps: int = steps, commit_every: int = commit_every
        ) -> Told:
            return train(case, options, state, steps, commit_every)

        told = run_ranks(ranks, body)
        assert len({each.state for each in told}) == 1
        assert len({len(each.steps) for each in told}) == 1
        for weights in zip(*(each.weights for each in told), strict=True):
            assert abs(sum(weights) - ranks) < 1e-9
        jobs.append(told)
        state = told[0].state
    return jobs


def check_each_once(case: Case, jobs: list[list[Told]]) -> None:
    """Check that each sample was done once in each epoch, as far as commits kept it."""
    kept = Counter(each for told in jobs for rank in told for each in rank.kept)
    assert kept == Counter((epoch, each) for epoch in range(EPOCHS) for each in case.ids)


def joint_order(told: list[Told]) -> list[Hashable]:
    """Return the samples of all ranks in the order in which they were done, as one rank would."""
    order: list[Hashable] = []
    for ranks in zip(*(each.steps for each in told), strict=True):
        for row in zip_longest(*ranks):
            order += [each for each in row if each is not None]
    return order


def check_story(
    case: Case,
    batch_size: int,
    *,
    shuffle: bool | None,
    seed: int,
    losses: Sequence[tuple[int, int, int]],
    size: int,
) -> None:
    """Play a story, and the last job again from its beginning with other ranks."""
    options: dict[str, Any] = {"shuffle": shuffle, "seed": seed}
    if not case.has_batches:
        options["batch_size"] = batch_size
    check_each_once(case, play(case, options, losses, size))
    whole = joint_order(play(case, options, [], size)[0])
    other = 1 if case.has_one_order else size
    assert joint_order(play(case, options, [], other)[0]) == whole
