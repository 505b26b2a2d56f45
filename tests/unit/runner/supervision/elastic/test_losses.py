"""How an elastic job starts, and what becomes of it when workers are lost. No processes."""

from __future__ import annotations

import pytest
from elastic_story import Story, story

from horovod.runner.supervision.elastic.rules import Rules

STORIES = [
    story(
        "the job starts as soon as there are enough slots",
        Rules(np=3, min_np=2, max_np=4),
        "red=2; agent red none; red=2 blue=3 green=9; agent red starting; agent green none; run; "
        "hosts red red blue blue; agent green none",
        lines=[
            "2 of the 3 slots that the job needs are present: waiting up to 600 s for more; "
            "discovery lists red:2"
        ],
    ),
    story(
        "one slow host does not hold up the others for ever",
        Rules(np=2, max_np=4),
        "red=2 blue=2; find red; ready 0; ready 1; generations 0; wait 11; hosts red red; run 20; "
        "hosts red red blue blue",
    ),
    story(
        "the first discovery must not fail",
        Rules(np=1),
        "no_answer first=True",
        verdict=(1, "cannot list the hosts: exit code 3"),
    ),
    story(
        "a later one may, and is told once",
        Rules(np=1),
        "red=1; run; no_answer; no_answer; goes_on; red=1; no_answer",
        lines=["cannot list the hosts, so they stay the same: exit code 3"] * 2,
    ),
    story(
        "workers that all fail at the start end the job",
        Rules(np=2, cooldown_range=(1, 2)),
        "red=2; find red; exit 0 127; exit 1 127",
        verdict=(127, "worker red-0 on red exited with code 127"),
    ),
    story(
        "a command that never joins is a success",
        Rules(np=2),
        "red=2; find red; exit 0 0; goes_on; exit 1 0; started 2",
        verdict=(0, ""),
    ),
    story(
        "survivors go on without a worker that was killed",
        Rules(np=3, min_np=2),
        "red=3; run; exit 1 -9; generations 1; run; members red-0 red-2",
        lines=[
            "rank 1 on red was killed by SIGKILL…",
            "generation 1, 3 -> 2 ranks: rank 1 on red was killed by…",
            "generation 1 runs: training stood still for 0.25 s",
        ],
    ),
    story(
        "a silent worker is killed at once and left out",
        Rules(np=3, min_np=2, cooldown_range=(5, 5)),
        "red=3; run; stop 1; silent 1; did EndWorker; run; members red-0 red-2; failures 1; "
        "run 6; size 3",
        lines=[
            "rank 1 (red-1) on red is killed: it has been silent for 60.2 s (--worker-timeout) in "
            "generation 0; red gets no new workers for 5.0 s",
            ...,
        ],
    ),
    story(
        "who still connects hears of a loss",
        Rules(np=3, min_np=2),
        "red=3; find red; ready 0; ready 1; ready 2; size 3; exit 1 -9; did BreakUp; "
        "stages broken 0 2; run; size 2",
    ),
    story(
        "the loss of a newcomer disturbs nobody who trains",
        Rules(np=2, max_np=3, min_np=1),
        "red=2; run; red=2 blue=1; find blue; ready 2; exit 2 -9; stages training 0 1; "
        "never TellLoss; run; size 2",
        loses_wakeups=True,
    ),
    story(
        "silence that nobody would outlive is waited out",
        Rules(np=2, min_np=1),
        "red=2; run; silent 1; told 1; silent 0; untold 0",
    ),
    *(
        story(
            f"survivors hear of every loss from the job: {loss}",
            Rules(np=3, min_np=1),
            f"red=2 blue=1; run; {loss}; did TellLoss; stages broken 0 1; run; generations 2",
            loses_wakeups=True,
        )
        for loss in (
            "exit 2 -9",
            "gone 2",
            "stop 2; silent 2",
            "lose_host blue",
            "stage 2 broken; reset 2",
        )
    ),
    story(
        "too few slots end the job after the elastic timeout",
        Rules(np=3, elastic_timeout_s=20.0),
        "red=2; wait 19; goes_on; wait 2",
        verdict=(
            1,
            "only 2 of the 3 slots that the job needs are present after 20 s; "
            "discovery lists red:2; see --min-np and --elastic-timeout",
        ),
    ),
    story(
        "no hosts at all end the job as well",
        Rules(np=1, elastic_timeout_s=20.0),
        "none; wait 21",
        verdict=(1, "…discovery lists no host"),
    ),
    story(
        "fixed hosts that are too few end the job at once",
        Rules(np=3, fixed_hosts=True),
        "red=2",
        verdict=(1, "…no other host can come"),
    ),
    story(
        "the rest starts without a host that fails first",
        Rules(np=4, min_np=2),
        "red=2 blue=2; find red; find blue; exit 0 1; run; hosts blue blue",
    ),
    story(
        "the host of a failure is left if others suffice",
        Rules(np=4, min_np=2),
        "red=2 blue=2; run; exit 0 1; run; hosts blue blue; empty red; agent red none",
    ),
    story(
        "its other workers may be spared",
        Rules(np=4, min_np=2, spare_neighbors=True),
        "red=2 blue=2; run; exit 0 1; run; hosts red blue blue",
    ),
    story(
        "a lost host is one change",
        Rules(np=4, min_np=2),
        "red=2 blue=2; run; lose_host blue; run; hosts red red; generations 2",
        lines=[
            "blue is lost with rank 2 (blue-2), rank 3 (blue-3): it ended; blue "
            "gets no new workers",
            ...,
        ],
    ),
    story(
        "a plan waits for all survivors to give up",
        Rules(np=3, min_np=1),
        "red=3; run; gone 2; reset 0; wait 5; generations 1; reset 1; generations 2; size 2",
    ),
    story(
        "a reset without a loss connects the same workers anew",
        Rules(np=2),
        "red=2; run; stage 0 broken; run; size 2",
        lines=[
            "generation 1, 2 -> 2 ranks: rank 0 (red-0) gave up generation 0 (rank 1 was lost)",
            ...,
        ],
    ),
    story(
        "survivors hear of the loss of one that was to leave",
        Rules(np=3, min_np=1),
        "red=2 blue=1; run; red=2; wait 1; size 2; stages training 2; exit 2 -9; stages broken 0 1",
        loses_wakeups=True,
    ),
    story(
        "a worker that does not give up a generation has the elastic timeout",
        Rules(np=3, min_np=2, elastic_timeout_s=30.0),
        "red=3; run; stop 1; reset 0; reset 2; wait 29; generations 1; untold 1; wait 2; run; "
        "members red-0 red-2",
        lines=[
            "rank 1 (red-1) on red is ended: it has not given up generation 0 within 30 s…",
            ...,
        ],
    ),
    story(
        "nobody is silent while nobody waits",
        Rules(np=3, min_np=1, elastic_timeout_s=30.0),
        "red=3; run; exit 1 -9; wait 300; untold",
    ),
    story(
        "a worker whose connection is gone is ended",
        Rules(np=2, min_np=1),
        "red=2; run; gone 1; wait 3; told 1; run; size 1",
    ),
    story(
        "survivors wait for a replacement",
        Rules(np=2),
        "red=1 blue=1; run; lose_host blue; red=1; run 60; generations 1; red=1 green=1; run; "
        "hosts red green; since 0",
        lines=[
            "blue is lost…",
            "…1 of the 2 workers that the job needs are present: waiting up to 600 s for more",
            ...,
        ],
    ),
    story(
        "they wait no longer than the elastic timeout",
        Rules(np=2, elastic_timeout_s=20.0),
        "red=1 blue=1; run; exit 1 7; run 19; goes_on; run 5",
        verdict=(
            7,
            "rank 1 on blue exited with code 7; only 1 of the 2 workers that "
            "the job needs are present after 20 s; discovery lists red:1, blue:1…",
        ),
    ),
    story(
        "there is no wait where nobody can come",
        Rules(np=2, fixed_hosts=True),
        "red=1 blue=1; run; exit 1 7; run",
        verdict=(7, "…no host with more can come"),
    ),
]


@pytest.mark.parametrize("tale", STORIES)
def test_losses(tale: Story) -> None:
    tale.play()
