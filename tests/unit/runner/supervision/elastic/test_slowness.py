"""What becomes of workers of an elastic job that make the others wait. No processes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from elastic_story import Story, story

from horovod.runner.supervision.elastic.rules import Rules

REMOVE = Rules(np=3, min_np=2, max_np=3, slow_worker="remove")
REPLACE = replace(REMOVE, slow_worker="replace")

STORIES = [
    story(
        "a slow worker goes in the change in which another one comes",
        REPLACE,
        "red=3 blue=1; run; slow 1; agent blue starting; find blue; wait 100; size 3; "
        "generations 1; ready 3; run; generations 2; who red-0 red-2 blue-3; ended red-1; run 60; "
        "started 4",
        lines=[
            "generation 1, 3 -> 3 ranks: rank 1 (red-1) leaves: the others wait for it; "
            "blue-3 joins",
            ...,
        ],
    ),
    story(
        "another slot of the same host is taken if others there are fast",
        REPLACE,
        "red=4; run; slow 1; run; run; who red-0 red-2 red-3",
    ),
    story(
        "a slow worker stays if the one in its place fails",
        REPLACE,
        "red=3 blue=1; run; slow 1; find blue; exit 3 1; run; generations 1; slow 1; run 60; "
        "generations 1",
        lines=[
            "worker blue-3 on blue exited with code 1; blue gets no new workers",
            "rank 1 (red-1) is slow, but stays: there is no free slot…",
        ],
    ),
    *(
        story(
            f"without being asked to, the job does nothing: {mode}",
            replace(REMOVE, slow_worker=mode),
            "red=3 blue=1; run; slow 1; run; agent blue none; generations 1",
            lines=[],
        )
        for mode in ("off", "report")
    ),
    *(
        story(
            f"the reset limit is not used up for slow workers: {rules.slow_worker}",
            replace(rules, reset_limit=0),
            "red=3 blue=1; run; slow 1; run; goes_on",
            lines=[..., "…--reset-limit 0 allows no further change"],
        )
        for rules in (REMOVE, REPLACE)
    ),
    *(
        story(
            f"a worker is left alone as long as the generation is broken: {rules.slow_worker}",
            rules,
            "red=3 blue=1; run; exit 1 1; slow 0; nobody_slow",
        )
        for rules in (REMOVE, REPLACE)
    ),
    story(
        "a removed worker leaves in one change and has not failed",
        REMOVE,
        "red=3; run; slow 1; slow 1; run; who red-0 red-2; generations 2; ended red-1; "
        "failures 0; run 60; size 2; finish",
        lines=[
            "generation 1, 3 -> 2 ranks: rank 1 (red-1) leaves: the others wait for it",
            "generation 1 runs…",
            "…1 slow worker left",
        ],
        verdict=(0, ""),
    ),
    story(
        "a slot whose worker was slow gets another one after its rest",
        replace(REMOVE, cooldown_range=(10, 100)),
        "red=3; run; slow 1; run 9; size 2; run 12; run 1; who red-0 red-2 red-3; slow 3; "
        "run 19; size 2; run 13; run 1; size 3",
    ),
    story(
        "a job never removes below its minimum",
        replace(REMOVE, min_np=3),
        "red=3; run; slow 1; slow 1; run; generations 1",
        lines=["rank 1 (red-1) is slow, but stays: the job needs 3 ranks (--min-np)"],
    ),
    story(
        "a worker that costs less than it does is not removed",
        REMOVE,
        "red=3; run; slow 1 gain=0.3; run; slow 1 gain=0.4; run; size 2",
        lines=["rank 1 (red-1) is slow, but stays: 2 ranks would process less than 3 with it", ...],
    ),
    story(
        "a slow place is better than none",
        replace(REMOVE, spare_neighbors=True),
        "red=2 blue=1; run; slow 1; run; who blue-2 red-0; exit 2 1; run; run; who red-0 red-3",
    ),
    story(
        "one worker goes at a time",
        replace(REMOVE, min_np=1),
        "red=3; run; slow 1; slow 2; run; who red-0 red-2",
    ),
    story(
        "other hosts are better than another slot",
        REPLACE,
        "red=4 blue=1; run; slow 1; run; run; who blue-3 red-0 red-2",
    ),
    story(
        "a host whose only worker is slow gets no other one",
        REPLACE,
        "red=2 blue=3; run; slow 2; run; run; generations 1; red=2 blue=3 green=1; slow 2; "
        "run; run; hosts red red green; exit 3 1; run; hosts red red",
        lines=[
            "rank 2 (blue-2) is slow, but stays: there is no free slot for "
            "another worker (--slow-worker replace)",
            ...,
        ],
    ),
    story(
        "a loss in the meantime keeps the slow worker",
        replace(REPLACE, spare_neighbors=True),
        "red=3 blue=1; run; slow 1; find blue; exit 2 1; reset 0; reset 1; wait 0.5; "
        "who red-0 red-1; run; run 10; who blue-3 red-0",
    ),
]


@pytest.mark.parametrize("tale", STORIES)
def test_slow_workers(tale: Story) -> None:
    tale.play()
