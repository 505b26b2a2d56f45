"""Renders a data set on several processes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from landscapes.data.store import Description, create_arrays, divide, finish, open_arrays, writing
from landscapes.data.workers import spread
from landscapes.render import VERSION, render_pair

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from landscapes.pair import Meta

# Pairs that a process renders before it reports.
CHUNK = 16


@dataclass(frozen=True)
class Plan:
    """What to render: ``count`` pairs of ``size`` pixels from ``seed``, into ``folder``."""

    folder: Path
    count: int
    size: int
    seed: int


def render_data_set(plan: Plan, workers: int, report: Callable[[int], None]) -> Description:
    """Render ``plan`` on ``workers`` processes and return the description of the finished folder.

    ``report`` is called with the number of pairs that are done. Refuse a folder that holds pairs
    already or that another process writes.
    """
    splits = divide(plan.count)
    with writing(plan.folder):
        create_arrays(plan.folder, plan.count, plan.size)
        starts = range(0, plan.count, CHUNK)
        metas: list[Meta] = []
        for part in spread(partial(_render_chunk, plan), starts, workers):
            metas += part
            report(len(metas))
        description = Description(
            name=f"{VERSION}-{plan.size}px-{plan.count}-seed{plan.seed}",
            source=VERSION,
            size=plan.size,
            count=plan.count,
            seed=plan.seed,
            splits=splits,
        )
        finish(plan.folder, description, metas)
    return description


def _render_chunk(plan: Plan, start: int) -> list[Meta]:
    images, labels = open_arrays(plan.folder, "r+")
    metas = []
    for index in range(start, min(start + CHUNK, plan.count)):
        pair = render_pair(plan.seed, index, plan.size)
        images[index], labels[index] = pair.image, pair.labels
        metas.append(pair.meta)
    return metas
