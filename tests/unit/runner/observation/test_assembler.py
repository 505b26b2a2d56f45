"""Reports of ranks become views, and views become verdicts. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from horovod._rendezvous.observed import Observed
from horovod.runner.observation.assembler import Assembler
from horovod.runner.observation.records import RankView
from horovod.runner.observation.verdicts import is_nearly_stuck, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod.runner.observation.records import Verdict

SAMPLES_PER_S = 20


def report(at_s: float, wait: float, phases: dict[str, float], **more: float) -> Observed:
    """What a rank has told after ``at_s`` seconds of equal steps of 0.25 s."""
    seen = {phase: round(SAMPLES_PER_S * at_s * share) for phase, share in phases.items()}
    places = {"backward": "train.py:31 in hook", "input": "data.py:7 in read"}
    return Observed(
        at_s=100 + at_s,
        waited_s=wait * at_s,
        submitted=int(8 * at_s),
        steps=int(4 * at_s),
        step_s=0.25,
        samples=seen,
        places={phase: places.get(phase, "") for phase in phases},
        **more,  # type: ignore[arg-type]
    )


def verdicts_of(*ranks: tuple[float, dict[str, float]], **more: float) -> tuple[Verdict, ...]:
    """The verdicts on ranks that are each given by their wait and their phases."""
    assembler = Assembler(1.0)
    assembler.follow([f"host-{rank // 2}" for rank in range(len(ranks))])
    for second in range(12):
        per_s = {name: value * second for name, value in more.items()}
        told = {
            rank: report(second, wait, phases, **per_s) for rank, (wait, phases) in enumerate(ranks)
        }
        assembler.add(float(second), told)
    return judge(assembler.windows(11.0), assembler.still_s(11.0))


def test_shares_add_up_and_the_least_wait_is_the_networks() -> None:
    assembler = Assembler(1.0)
    assembler.follow(["a", "a"])
    for second in range(3):
        fast = report(second, 0.75, {"compute": 0.1, "input": 0.1, "wait": 0.8})
        slow = report(second, 0.25, {"compute": 0.75, "wait": 0.25})
        assembler.add(second, {0: fast, 1: slow})
    first, second_rank = assembler.views(2.0)
    assert (first.network, first.wait) == (pytest.approx(0.25), pytest.approx(0.5))
    assert first.compute == first.input == pytest.approx(0.125)
    assert (second_rank.wait, second_rank.compute) == (pytest.approx(0.0), pytest.approx(0.75))


def test_a_wait_that_has_not_ended_is_seen_in_the_samples() -> None:
    assembler = Assembler(1.0)
    assembler.follow(["a", "a"])
    still = {"submitted": 8, "waited_s": 0.0}
    for second in range(4):
        seen = report(second, 0.0, {"wait": 1.0})
        assembler.add(second, dict.fromkeys(range(2), replace(seen, **still)))
    assert [view.network for view in assembler.views(3.0)] == [1.0, 1.0]


@pytest.mark.parametrize("phase", ["backward", "input"])
def test_the_rank_that_hardly_waits_is_named_with_its_phase(phase: str) -> None:
    normal = (0.8, {"compute": 0.1, "backward": 0.1, "wait": 0.8})
    slow = (0.0, {"compute": 0.1, "backward": 0.1, phase: 0.9})
    first = verdicts_of(normal, slow, normal)[0]
    assert (first.kind, first.rank, first.phase) == ("rank", 1, phase)
    assert "without it, a step would take 80 % less time" in first.text
    assert " ms per step longer" in first.text
    assert ("train.py:31 in hook" if phase == "backward" else "data.py:7 in read") in first.text


def test_equal_ranks_are_limited_by_input_network_or_nothing() -> None:
    kinds = [
        verdicts_of(*[(wait, {"compute": 1.0 - share, "input": share})] * 4)[0].kind
        for wait, share in ((0.05, 0.4), (0.5, 0.0), (0.05, 0.0))
    ]
    assert kinds == ["input", "network", "compute"]


@pytest.mark.parametrize(
    ("kind", "counter", "per_s"),
    [
        ("throttled", "throttled_s", 0.3),
        ("steal", "steal_s", 0.5),
        ("thermal", "thermal_events", 1),
    ],
)
def test_limits_of_hosts_come_first(kind: str, counter: str, per_s: float) -> None:
    ranks = [(0.05, {"compute": 1.0})] * 2
    first = verdicts_of(*ranks, **{counter: per_s})[0]
    assert first.kind == kind
    assert first.advice


@pytest.mark.parametrize(
    ("kind", "words", "advice", "gauges"),
    [
        ("swap", "reads 50 pages per second back", "a smaller batch", {"swapped_bytes": 1 << 30}),
        ("threads", "16 threads wait for a processor 0.9 s", "OMP_NUM_THREADS",
         {"threads": 16, "cores": 2.0}),
    ],
)  # fmt: skip
def test_hosts_without_memory_or_processors_are_named(
    kind: str, words: str, advice: str, gauges: dict[str, float]
) -> None:
    """Faults without a swap, and waits of a single thread, are no reason."""
    kinds = []
    for given in (gauges, {}):
        assembler = Assembler(1.0)
        assembler.follow(["a", "a"])
        for second in range(12):
            told = report(second, 0.05, {"compute": 1.0}, major_faults=50 * second)
            told = replace(told, run_delay_s=0.9 * second, **given)  # type: ignore[arg-type]
            assembler.add(float(second), dict.fromkeys(range(2), told))
        first = judge(assembler.windows(11.0))[0]
        kinds.append(first.kind)
        if given:
            assert words in first.text
            assert advice in first.advice
    assert kinds == [kind, "compute"]


@pytest.mark.parametrize("phase", ["backward", "optimizer", "compute"])
def test_what_only_works_is_named_with_its_phase_and_line(phase: str) -> None:
    first = verdicts_of(*[(0.02, {phase: 0.8, "input": 0.1})] * 2)[0]
    assert (first.kind, first.phase, first.rank) == ("compute", phase, -1)
    assert first.text.startswith("nothing holds the job up: the ranks work in 98 % of a step, 87 %")
    assert ("train.py:31 in hook" in first.text) == (phase == "backward")
    assert "if it is to be shorter" in first.advice


def test_a_step_of_many_parts_is_healthy() -> None:
    parts = {"backward": 0.3, "optimizer": 0.3, "compute": 0.3, "input": 0.1}
    (verdict,) = verdicts_of(*[(0.02, parts)] * 2)
    assert (verdict.kind, verdict.advice) == ("healthy", "")


@pytest.mark.parametrize(
    ("limit", "share_of"),
    [
        (0.5, lambda share: {"backward": share, "input": 0.1}),
        (0.2, lambda share: {"input": share, "backward": 0.9 - share}),
        (0.2, lambda share: {"network": share, "backward": 0.9 - share}),
    ],
)
def test_noise_near_a_limit_does_not_make_two_sentences_take_turns(
    limit: float, share_of: Callable[[float], dict[str, float]]
) -> None:
    """A reason comes at its limit, and stays until it is clearly below."""

    def verdicts_at(excess: float, said: Sequence[Verdict]) -> tuple[Verdict, ...]:
        shares = share_of(limit + excess)
        return judge(
            [RankView(rank, "a", "running", 8.0, **shares) for rank in range(2)], 0.0, said
        )

    said: tuple[Verdict, ...] = ()
    keys = []
    for excess in (-0.01, 0.01, -0.01, 0.01, -0.03, -0.2, -0.01):
        said = verdicts_at(excess, said)
        keys.append((said[0].kind, said[0].phase))
    before, found = keys[:2]
    assert before != found
    assert keys == [before, *[found] * 4, keys[5], keys[5]]
    assert keys[5] != found


def test_two_phases_of_about_the_same_length_do_not_take_turns() -> None:
    said: tuple[Verdict, ...] = ()
    for backward, optimizer in ((0.5, 0.45), (0.45, 0.5), (0.4, 0.55)):
        view = RankView(0, "a", "running", 8.0, backward=backward, optimizer=optimizer)
        said = judge([view], 0.0, said)
        assert said[0].phase == ("backward" if backward > 0.4 else "optimizer")


def test_a_limit_of_one_rank_is_the_cause_of_its_slowness() -> None:
    assembler = Assembler(1.0)
    assembler.follow(["a", "b"])
    for second in range(12):
        normal = report(second, 0.7, {"compute": 0.3, "wait": 0.7})
        slow = report(second, 0.0, {"compute": 1.0}, throttled_s=0.6 * second)
        assembler.add(second, {0: normal, 1: slow})
    (first,) = judge(assembler.windows(11.0))
    assert (first.kind, first.rank) == ("rank", 1)
    assert (
        "because its cgroup had used up its quota, which cost 0.6 s of processor time per second"
        in first.text
    )
    assert "cpu.max" in first.advice


def test_a_stall_names_who_is_missing_within_two_seconds() -> None:
    assembler = Assembler(1.0)
    assembler.follow(["a", "a"])
    for second in range(3):
        seen = report(10, 0.1, {"compute": 0.2})
        waits = replace(seen, at_s=110.0 + second, now="wait")
        works = replace(waits, now="backward", places={"backward": "train.py:31 in hook"})
        assembler.add(float(second), {0: waits, 1: works})
    (verdict,) = judge(assembler.windows(2.0), assembler.still_s(2.0))
    assert (verdict.kind, verdict.rank) == ("stall", 1)
    assert "rank 0 waits for rank 1 on a, which is at train.py:31 in hook" in verdict.text


def test_ranks_that_wait_for_different_operations_are_no_slow_network() -> None:
    assembler = Assembler(1.0)
    assembler.follow(["a", "a"])
    for second in range(4):
        waits = replace(report(10, 0.1, {"compute": 0.2}), at_s=110.0 + second, now="wait")
        assembler.add(float(second), {0: waits, 1: waits})
    (verdict,) = judge(assembler.windows(3.0), assembler.still_s(3.0))
    assert (verdict.kind, verdict.rank) == ("stall", -1)
    assert "all ranks wait, for data or for different operations" in verdict.text


@pytest.mark.parametrize("counts_steps", [True, False])
def test_a_stall_lasts_as_long_as_nothing_happens(counts_steps: bool) -> None:
    assembler = Assembler(0.5)
    assembler.follow(["a", "a"])
    kinds, close = [], []
    for tick in range(80):
        at_s = tick / 2
        told = report(min(at_s, 10), 0.1, {"compute": 0.2})
        told = replace(told, at_s=100 + at_s, step_s=0.25 if counts_steps and at_s <= 10 else 0.0)
        waits, works = replace(told, now="wait"), replace(told, now="backward")
        assembler.add(at_s, {0: waits, 1: works})
        windows, still_s = assembler.windows(at_s), assembler.still_s(at_s)
        kinds.append(judge(windows, still_s)[0].kind)
        close.append(is_nearly_stuck(windows, still_s))
    begins = kinds.index("stall") / 2
    assert begins == (11.5 if counts_steps else 20.0)
    assert kinds[int(2 * begins) :] == ["stall"] * (80 - int(2 * begins))
    # A third of the time before, and as long again after it.
    limit_s = 1.25 if counts_steps else 10.0
    watched = [tick / 2 - 10.0 for tick in range(80) if close[tick]]
    assert limit_s / 3 <= watched[0] < limit_s / 3 + 0.5
    assert watched[-1] < 2 * limit_s <= watched[-1] + 0.5


def test_no_verdict_before_all_ranks_have_reported() -> None:
    assembler = Assembler(1.0)
    assembler.follow(["a", "a"])
    assembler.add(0.0, {0: report(0, 0.0, {})})
    (verdict,) = judge(assembler.windows(0.0), assembler.still_s(0.0))
    assert (verdict.kind, verdict.text[:6]) == ("unknown", "0 of 2")


def test_a_rank_that_reports_no_more_is_silent_and_a_new_generation_begins_anew() -> None:
    assembler = Assembler(1.0)
    assembler.follow(["a", "b"])
    for second in range(9):
        told = {0: report(second, 0.0, {"compute": 1.0})}
        if second < 2:
            told[1] = told[0]
        assembler.add(float(second), told)
    assert [view.state for view in assembler.views(8.0)] == ["running", "silent"]
    assembler.follow(["a"])
    assert [view.state for view in assembler.views(8.0)] == ["starting"]
