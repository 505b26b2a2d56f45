"""What becomes of an elastic job whose hosts come and go. No processes."""

from __future__ import annotations

import pytest
from elastic_story import Story, story
from elastic_world import World

from horovod.runner.supervision import commands
from horovod.runner.supervision.elastic.rules import Rules

STORIES = [
    story(
        "a failing host comes back when it is needed",
        Rules(np=4, cooldown_range=(1, 2)),
        # Without blue-3 there would have been too few.
        "red=2 blue=2; run; exit 2 1; run 5; run 5; who red-0 red-1 blue-3 blue-4",
    ),
    story(
        "workers of a host that leaves are dismissed",
        Rules(np=4, min_np=2, grace_s=10.0),
        # They go with the next commit of all.
        "red=2 blue=2; run; red=2; wait 1; size 2; dismissed 2 3; wait 3600; untold; "
        "stages training 0 1 2 3; run; empty blue; agent blue none; never EndWorker",
    ),
    story(
        "a dismissed worker that is stopped does not hold up the others",
        Rules(np=3, min_np=1),
        "red=2 blue=1; run; stop 2; red=2; wait 3600; silent 2; told 2; run; hosts red red; "
        "stages training 0 1",
    ),
    story(
        "all hosts can be exchanged",
        Rules(np=2, max_np=2),
        # One of red hands over what was trained.
        "red=2; run; blue=2; find blue; ready_on blue; wait 30; hosts red blue; run 30; run 30; "
        "hosts blue blue; generations 3",
    ),
    story(
        "a removal and an addition at once",
        Rules(np=4, min_np=2),
        "red=2 blue=2; run; red=2 green=2; run 20; hosts red red green green",
    ),
    story(
        "a newcomer that dies before the next commit disturbs nobody",
        Rules(np=2),
        "red=2; run; red=2 blue=1; find blue; ready 2; size 3; exit 2 -9; wait 1; size 2; "
        "generations 3; run; stages training 0 1; generations 3",
    ),
    story(
        "a worker that wants to leave is no failure",
        Rules(np=3, min_np=2),
        # Then its slot is free again.
        "red=3; run; leaving 1; run; run 20; size 3; failures 0",
        lines=["generation 1, 3 -> 2 ranks: rank 1 (red-1) leaves: SIGTERM", ...],
    ),
    story(
        "its process may have ended before it is known that it wanted to",
        Rules(np=3, min_np=2),
        "red=3; run; exit 1 0; leaving_late red-1 red 1; reset 0; reset 2; run; run 20; size 3; "
        "failures 0",
        lines=["generation 1, 3 -> 3 ranks: rank 1 (red-1) left: SIGTERM; red-3 joins", ...],
    ),
    story(
        "it may leave at once",
        Rules(np=3, min_np=2),
        "red=3; run; leaving 1; leave 1; exit 1 143; run; members red-0 red-3 red-2; failures 0",
    ),
    story(
        "a host whose agent is told to end is leaving",
        Rules(np=4, min_np=2),
        "red=2 blue=2; run; stopping blue; exit 2 -15; exit 3 -15; run; hosts red red",
        lines=["the agent of blue ends…", "…blue is leaving anyway", ...],
    ),
    story(
        "the only worker that knows what was trained hands it over first",
        Rules(np=1),
        # It is on its way to the new generation, which nobody has reached.
        "red=1; run; red=1 blue=1; find blue; ready 1; size 2; boundary; leaving 0; reset 1; "
        "reset 0; wait 1; members red-0 blue-1; run; ended red-0; first blue",
    ),
    story(
        "a job starts with the hosts that stay",
        Rules(np=2, min_np=1),
        "; ".join(["red=1 blue=1; red=1; all_act; wait 1"] * 4) + "; hosts red",
    ),
    story(
        "a host comes back after its rest",
        Rules(np=4, min_np=2, cooldown_range=(10, 100)),
        "red=2 blue=2; run; exit 2 1; run; hosts red red; run 8; size 2; run 12; run 12; "
        "hosts red red blue blue; since 0",
    ),
    story(
        "a host that leaves is not at fault",
        Rules(np=4, min_np=2),
        "red=2 blue=2; run; exit 2 -15; exit 3 -15; red=2; run; hosts red red; red=2 blue=2; "
        "run 20; hosts red red blue blue",
    ),
    story(
        "a newcomer that fails changes nothing",
        Rules(np=2, max_np=4),
        "red=2; run; red=2 blue=2; find blue; exit 2 1; run 20; hosts red red blue; untold",
    ),
    story(
        "the job grows once newcomers are ready",
        Rules(np=2, max_np=4),
        "red=2; run; red=2 blue=3; find blue; wait 60; generations 1; ready 2; ready 3; size 4",
        lines=["generation 1, 2 -> 4 ranks: blue-2, blue-3 join"],
    ),
    story(
        "newcomers join together if none is too late",
        Rules(np=2),
        "red=2; run; red=2 blue=2; find blue; ready 2; wait 4; size 2; wait 2; size 3; "
        "all_act; wait 1; all_act; run 6; size 4",
    ),
    story(
        "those that do not leave are ended",
        Rules(np=4, min_np=2, grace_s=10.0),
        "red=2 blue=2; run; red=2; wait 1; boundary; stop 2; stop 3; run 9; untold 2; run 3; "
        "empty blue",
    ),
    story(
        "fewer slots take the highest ones away",
        Rules(np=4, min_np=2),
        "red=2 blue=2; run; red=1 blue=2; run; members red-0 blue-2 blue-3",
    ),
    story(
        "a spare host takes over in one change",
        Rules(np=4, max_np=4),
        "red=2 blue=2 green=2; run; agent green none; red=2 green=2; run; "
        "hosts red red green green; generations 2; since 0",
    ),
    story(
        "too few hosts do not stop those who train",
        Rules(np=4),
        "red=2 blue=2; run; red=2; run 3000; generations 1; goes_on",
    ),
    story(
        "a change that is undone changes nothing",
        Rules(np=4, min_np=2),
        "red=2 blue=2; run; red=2; red=2 blue=2; run 60; generations 1",
    ),
    story(
        "a host may be missing for one answer",
        Rules(np=4, min_np=2, missed_polls=2),
        "red=2 blue=2; run; red=2; run 60; size 4; red=2; run; size 2",
    ),
    story(
        "slots that come back do not lead",
        Rules(np=4, min_np=2),
        "red=2 blue=2; run; red=0 blue=2; run; hosts blue blue; red=2 blue=2; run 20; "
        "hosts blue blue red red",
    ),
    story(
        "one plan at a time",
        Rules(np=2),
        "red=2; run; red=2 blue=1; find blue; ready 2; size 3; red=2 blue=1 green=1; "
        "find green; ready 3; wait 3000; size 3; run 20; size 4",
    ),
    story(
        "workers that never say that they run are taken to",
        Rules(np=2),
        "red=2; run; red=2 blue=1; run; size 2; run 10; size 3",
        says_running=False,
    ),
    story(
        "a host that comes back once is used at once",
        Rules(np=1, max_np=4),
        "red=1 blue=1; run; red=1; run; red=1 blue=1; run 6; hosts red blue",
    ),
]


@pytest.mark.parametrize("tale", STORIES)
def test_changes(tale: Story) -> None:
    tale.play()


def test_rests_grow_and_have_a_limit() -> None:
    rules = Rules(np=1, cooldown_range=(10, 100))
    for number, (least, most) in enumerate([(10, 20), (20, 30), (40, 50), (80, 90)], start=1):
        assert least <= rules.rest_s("red", number) <= most
    assert rules.rest_s("red", 5) == rules.rest_s("red", 500) == 100
    assert rules.rest_s("red", 2) == rules.rest_s("red", 2)


def test_a_host_that_flips_gets_workers_once_it_stays() -> None:
    world = World(Rules(np=1, max_np=4))
    for _ in range(41):
        world.discover(red=1)
        world.run()
        world.discover(red=1, blue=1)
        world.run()
    starts = [each.host for each in world.done if isinstance(each, commands.StartWorker)]
    assert starts.count("blue") <= 3
    told = [line for line in world.lines if line.startswith("blue comes and goes")]
    assert told[0] == (
        "blue comes and goes: after 2 returns it gets workers once it has been listed for 4 s"
    )
    assert len(told) <= 6
    for _ in range(70):
        world.discover(red=1, blue=1)
        world.run()
    assert world.hosts == ["red", "blue"]


def test_a_loss_is_one_line_whatever_is_said_of_it() -> None:
    world = World(Rules(np=2, min_np=1))
    world.discover(red=1, blue=1)
    world.run()
    world.lose_host("blue", "it ended; it wrote:\n    Traceback\n    " + "x" * 100_000)
    world.run()
    assert not any("\n" in line or len(line) > 2000 for line in world.lines)
    assert world.lines[0].startswith("blue is lost with rank 1 (blue-1): it ended; it wrote: Trace")
