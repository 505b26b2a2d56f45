"""Renders a data set on several processes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from landscapes.data.store import Description, create_arrays, divide, finish, open_arrays, writing
from landscapes.data.workers import spread
from landscapes.pair import RENDERER, RENDERER_WITH_SKIES
from landscapes.render import render_pair

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from landscapes.pair import Meta

# Pairs that a process renders before it reports.
CHUNK = 16


@dataclass(frozen=True)
class Plan:
    """What to render: ``count`` pairs of ``size`` pixels from ``seed``, into ``folder``.

    With ``skies`` half of them have real skies.
    """

    folder: Path
    count: int
    size: int
    seed: int
    skies: bool = False


def render_data_set(plan: Plan, workers: int, report: Callable[[int], None]) -> Description:
    """Render ``plan`` on ``workers`` processes and return the description of the finished folder.

    ``report`` is called with the number of pairs that are done. Refuse a folder that holds pairs
    already or that another process writes.
    """
    splits = divide(plan.count)
    source = RENDERER_WITH_SKIES if plan.skies else RENDERER
    with writing(plan.folder):
        create_arrays(plan.folder, plan.count, plan.size)
        starts = range(0, plan.count, CHUNK)
        metas: list[Meta] = []
        for part in spread(partial(_render_chunk, plan), starts, workers):
            metas += part
            report(len(metas))
        description = Description(
            name=f"{source}-{plan.size}px-{plan.count}-seed{plan.seed}",
            source=source,
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
        pair = render_pair(plan.seed, index, plan.size, skies=plan.skies)
        images[index], labels[index] = pair.image, pair.labels
        metas.append(pair.meta)
    return metas
