"""How an elastic job ends. No processes."""

from __future__ import annotations

import pytest
from elastic_story import Story, story

from horovod.runner.supervision.elastic.endings import MOST_STILLBORN
from horovod.runner.supervision.elastic.rules import Rules

STORIES = [
    story(
        "a worker that ends well in the middle is lost",
        Rules(np=3, min_np=1),
        # Its slot gets no other one, which would do the same.
        "red=3; run; exit 1 0; stages broken 0 2; run; goes_on; members red-0 red-2; run 60; "
        "size 2; finish",
        verdict=(0, ""),
        lines=[
            "rank 1 (red-1) on red ended with code 0 while rank 0 (red-0) on red, rank 2 (red-2) "
            "on red still train",
            "generation 1, 3 -> 2 ranks: rank 1 (red-1) on red ended with code 0 while…",
            "generation 1 runs…",
            "…, 1 change of its workers, 1 failure, ",
        ],
    ),
    story(
        "a member that is ended since others finished was in the middle",
        Rules(np=3, min_np=1),
        # It may evaluate or save for longer than the others wait, once one of them is lost.
        "red=1 blue=1 green=1; run; exit 0 0; lose_host green; stage 1 training; wait 700; "
        "end_told",
        verdict=(
            1,
            "rank 2 (green-2) was lost with green; rank 1 (blue-1) on blue was ended: others "
            "finished, but it has not ended within 600 s; rank 0 (red-0) on red ended with code 0",
        ),
    ),
    story(
        "a member that is killed has not finished with the others",
        Rules(np=2, min_np=1),
        "red=1 blue=1; run; stop 1; silent 1; exit 1 -9; exit 0 0",
        verdict=(1, "…rank 1 (blue-1) on blue was ended: it has been silent"),
    ),
    story(
        "a member whose host vanishes has not finished with the others",
        Rules(np=2, min_np=1),
        # Its connection may end before that of its agent.
        "red=1 blue=1; run; gone 1; lose_host blue; exit 0 0",
        verdict=(1, "rank 1 (blue-1) was lost with blue; rank 0 (red-0)…"),
    ),
    *(
        story(
            f"a newcomer that is lost before it trains is not missed at the end: {loss}",
            Rules(np=2, min_np=2),
            "red=2; run; red=2 blue=1; find blue; ready 2; size 3; exit 0 0; stage 1 training; "
            f"{loss}; exit 1 0",
            verdict=(0, ""),
        )
        for loss in ("lose_host blue", "exit 2 1")
    ),
    story(
        "the end report says how many samples were done again",
        Rules(np=3, min_np=1),
        # All of them go back over the same samples.
        "red=3; run; gone 0; reset 1 replayed=64; reset 2 replayed=64; run; gone 1; "
        "reset 2 replayed=64; run; finish",
        verdict=(0, ""),
        lines=[..., "…, 128 samples done again"],
    ),
    story(
        "the end report of other jobs does not",
        Rules(np=3, min_np=1),
        "red=3; run; exit 0 1; run; finish",
        verdict=(0, ""),
        lines=[
            ...,
            "the job ran for 2.0 s, 1 change of its workers, 1 failure, training stood…",
        ],
    ),
    story(
        "all fail",
        Rules(np=2, min_np=1, cooldown_range=(1, 2)),
        "red=2; run; exit 1 3; exit 0 1 words='horovod.errors.PeerLostError: rank 1 was lost'; "
        "over 3",
        # Nobody is there who could go on, so there is nothing to say of what was trained.
        verdict=(3, "rank 1 on red exited with code 3"),
    ),
    story(
        "a newcomer that was admitted too late goes at once",
        Rules(np=2, min_np=1, grace_s=10.0),
        # Without rank 0 it has nothing to wait for.
        "red=2; run; red=2 blue=1; find blue; ready 2; size 3; stages connecting 2; exit 0 0; "
        "stages broken 2; kept 2; exit 1 0; dismissed 2; all_act",
        verdict=(0, ""),
        lines=["generation 1, 2 -> 3 ranks: blue-2 joins"],  # no summary: no change
    ),
    *(
        story(
            f"the reset limit {limit}",
            Rules(np=4, min_np=1, reset_limit=limit),
            "red=4; run; "
            + "; ".join(f"exit {number} 1; run" for number in range(limit + 1))
            + f"; generations {1 + limit}",
            verdict=(1, f"…as often as --reset-limit {limit} allows"),
        )
        for limit in (0, 1, 2)
    ),
    story(
        "a generation that never runs is not tried for ever",
        Rules(np=2),
        "red=2; run; "
        + "; ".join(["stage 0 broken; reset 0; stage 1 broken; reset 1"] * (MOST_STILLBORN + 2)),
        verdict=(1, "…generations in a row never ran"),
    ),
    story(
        "a newcomer that gives up since nobody can connect counts",
        Rules(np=1),
        # It is the first to say so, each time.
        "red=1; run; red=1 blue=1; find blue; ready 1; "
        + "; ".join(
            ["boundary; stage 1 broken; reset 1; wait 0.2; stage 0 broken; reset 0; wait 0.2"]
            * (MOST_STILLBORN + 1)
        ),
        verdict=(1, "…generations in a row never ran"),
    ),
    *(
        story(
            f"newcomers may give up as often as they like, limit {limit}",
            Rules(np=2, min_np=1, reset_limit=limit),
            "red=2; run; red=2 blue=1; find blue; ready 2; generations 2; "
            + "reset 2 'rank 0 never appeared within 30 s'; wait 1; " * 30
            + "goes_on; stages training 0 1; run; size 3; finish",  # at last they come to a commit
            verdict=(0, ""),
            lines=[..., "…, 1 change of its workers, 0 failures, training stood still for 0."],
        )
        for limit in (None, 1)
    ),
    story(
        "a signal ends all workers",
        Rules(np=2, grace_s=30.0),
        "red=2; run; signal 2; signal 2; did KillAll; end_told; over 130",
        verdict=(130, "stopped by SIGINT"),
        lines=["the workers have 30 s to end; Ctrl-C again ends them at once"],
    ),
    *(
        story(
            f"a signal at any time: {moment}",
            Rules(np=2),
            f"{moment}; signal 15; at_deadline; at_deadline; at_deadline; did Abandon; end_told; "
            "over 143",
            verdict=(143, "stopped by SIGTERM"),
        )
        for moment in ("red=1", "red=2", "red=2; run; exit 1 -9")
    ),
    story(
        "who did not end in time is named",
        Rules(np=2, grace_s=30.0),
        "red=2; run; signal 15; stop 1; end_told; over 143; "
        "ends 'red-1 did not end within 30 s (--grace) and was killed'",
        verdict=(143, "stopped by SIGTERM"),
    ),
    story(
        "all finish",
        Rules(np=2),
        "red=2; run; finish; over 0",
        verdict=(0, ""),
        lines=[],
    ),
    story(
        "early finishers do not stop the rest",
        Rules(np=2, min_np=1),
        "red=2; run; exit 0 0; stage 1 training; wait 3000; goes_on; exit 1 0",
        verdict=(0, ""),
    ),
    story(
        "the job fails if too few are left in the middle",
        Rules(np=2, fixed_hosts=True),
        "red=2; run; exit 1 0; run",
        verdict=(
            1,
            "1 of the 2 workers that the job needs are present, and no host "
            "with more can come; rank 1 (red-1) on red ended with code 0 "
            "while rank 0 (red-0) on red still trains;…",
        ),
    ),
    story(
        "all who are in the middle are named",
        Rules(np=4, min_np=1),
        "red=4; run; exit 1 0; exit 2 0; reset 0; reset 3; run; size 2",
        lines=[
            "rank 1 (red-1) on red, rank 2 (red-2) on red ended with code 0 while "
            "rank 0 (red-0) on red, rank 3 (red-3) on red still train",
            ...,
        ],
    ),
    story(
        "a worker that ends well before the first generation runs is lost",
        Rules(np=2, min_np=1),
        "red=2; find red; ready 0; ready 1; leave 1; stages broken 0; reset 0; exit 1 0; run; "
        "size 1",
        lines=["rank 1 (red-1) on red ended with code 0 while rank 0 (red-0)…", ...],
    ),
    story(
        "a failure after others finished is one",
        Rules(np=2, min_np=1),
        "red=2; run; exit 0 0; exit 1 5",
        verdict=(5, "rank 1 on red exited with code 5; rank 0 (red-0) on red ended with code 0"),
    ),
    story(
        "who fails since others finished was in the middle",
        Rules(np=2, min_np=1),
        "red=2; run; exit 0 0; exit 1 1 words='horovod.errors.PeerLostError: rank 0 was lost'",
        verdict=(1, "rank 1 on red exited with code 1; rank 0 (red-0) on red ended with code 0"),
    ),
    story(
        "earlier failures do not show in the exit code",
        Rules(np=3, min_np=2),
        "red=3; run; exit 1 9; run; finish",
        verdict=(0, ""),
        lines=[..., "the job ran for 2.0 s, 1 change of its workers, 1 failure,…"],
    ),
    story(
        "the same error on several hosts is one of the program",
        Rules(np=3, min_np=1, cooldown_range=(1, 2)),
        "red=1 blue=1 green=1; run; exit 0 1 error=ValueError; goes_on; exit 1 1 error=ValueError",
        verdict=(1, "rank 0 on red exited with code 1; the same error came on blue and red…"),
    ),
    story(
        "an error of one worker is a failure of its host",
        Rules(np=3, min_np=1),
        "red=1 blue=1 green=1; run; exit 0 1 error=ValueError; run; exit 1 1 error=ValueError; "
        "run; hosts green",
    ),
    story(
        "only newcomers cannot go on",
        Rules(np=1, max_np=2, min_np=1),
        "red=1; run; red=1 blue=1; find blue; ready 1; size 2; exit 0 -9; run",
        verdict=(137, "…no worker is left that has the training state"),
    ),
    story(
        "newcomers do not begin anew when all others have left",
        Rules(np=2, min_np=1),
        "red=2; run; red=2 blue=1; find blue; leave 0; leave 1; ready 2; wait 3000; "
        "generations 1; exit 0 0; exit 1 0; end_told",
        verdict=(0, ""),
    ),
    story(
        "a worker that never ends does not hold up those in the middle",
        Rules(np=3, min_np=1, grace_s=10.0),
        "red=3; run; stop 2; exit 0 0; reset 1; run 599; generations 1; run 20; members red-1; "
        "run; finish",
        verdict=(0, ""),
    ),
    story(
        "newcomers do not begin a generation that is too small when others have left",
        Rules(np=3),
        "red=3; run; leave 0; leave 1; red=3 blue=1; find blue; ready 3; wait 3000; generations 1",
    ),
    story(
        "a newcomer stays if somebody is in the middle",
        Rules(np=2, fixed_hosts=False),
        "red=2; run; red=2 blue=1; find blue; ready 2; exit 0 0; run; members red-1 blue-2; "
        "goes_on",
    ),
    story(
        "a newcomer that is to leave need not wait",
        Rules(np=1),
        "red=1; run; red=1 blue=1; find blue; ready 1; leaving 1; stages broken 1; all_act; "
        "wait 0.2; hosts red",
    ),
]


@pytest.mark.parametrize("tale", STORIES)
def test_endings(tale: Story) -> None:
    tale.play()
