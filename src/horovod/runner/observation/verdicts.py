"""Says why a step takes as long as it does, and what to do about it. Pure.

A rank that makes the others wait is found as :mod:`horovod.runner.supervision.slow_workers` does:
it is the one that hardly waits. The phase is where it spends more time per step than the others.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from horovod._rendezvous.observed import BACKWARD, COMPUTE, INPUT, OPTIMIZER
from horovod.runner.observation.records import FAILED, RUNNING, Verdict
from horovod.runner.supervision.slow_workers import SLOW_GAIN, gains, would_save

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod.runner.observation.records import RankView

# Of a step, from which on a reason is worth a sentence.
_MUCH = 0.2
_LEAST_WINDOW_S = 3.0
# Of a step, from which on one phase of work is what a step consists of.
_MOST_OF_A_STEP = 0.5
# Without progress for so long, and for so many steps, a job is said to be stuck; and for so long if
# nobody counts its steps.
_STALL_S = 0.9
_STALL_STEPS = 5.0
_STALL_UNCOUNTED_S = 10.0
# What has been said counts for so much more than what has not, or noise near a limit would make two
# sentences take turns.
_SAID = 1.25
_WORK = (INPUT, BACKWARD, OPTIMIZER, COMPUTE)
_PHASES = {
    INPUT: "loading its input",
    BACKWARD: "in its backward pass",
    OPTIMIZER: "in its optimizer",
    COMPUTE: "computing",
}
_PHASES_OF_WORK = BACKWARD, OPTIMIZER, COMPUTE
_FASTER = (
    "if it is to be shorter: half precision (torch.autocast, bfloat16), a compiled model "
    "(torch.compile, jax.jit), a faster device, or more ranks"
)
_MEANS_AGAINST_WORK = {
    BACKWARD: _FASTER,
    COMPUTE: _FASTER,
    OPTIMIZER: "if it is to be shorter: a fused optimizer (fused=True, foreach=True), or larger "
    "batches",
}
_MEANS_FOR_PHASE = {
    INPUT: "give its loader more workers or prefetching, or a faster disk",
    BACKWARD: "compare its batch, hooks and device with those of the other ranks",
    OPTIMIZER: "compare its parameters and device with those of the other ranks",
    COMPUTE: "compare its batch, its code for this rank alone and its host with the others'",
}


def judge(
    windows: Sequence[RankView], still_s: float = 0.0, said: Sequence[Verdict] = ()
) -> tuple[Verdict, ...]:
    """Return the reasons for the length of a step, the most important one first; never none.

    Args:
        windows: each rank over some seconds.
        still_s: for how long no rank has submitted anything.
        said: the verdicts before, which stay a little longer than they would come.
    """
    known = [view for view in windows if view.length_s >= _LEAST_WINDOW_S]
    stalled = _stall(windows, still_s)
    if stalled:
        return stalled
    if len(known) < len(windows) or not windows:
        ready = len(known)
        text = f"{ready} of {len(windows)} ranks have reported long enough for a verdict"
        return (Verdict("unknown", text),)
    found = [
        *_slow_rank(known, said),
        *_limits(known),
        *_input(known, said),
        *_network(known, said),
    ]
    if found:
        return tuple(found)
    return (_work(known, said),)


def _weight(said: Sequence[Verdict], kind: str, rank: int = -1, phase: str | None = None) -> float:
    """Return how much the share of a verdict counts; ``phase`` of None stands for any."""
    is_said = any(
        (verdict.kind, verdict.rank) == (kind, rank) and phase in (None, verdict.phase)
        for verdict in said
    )
    return _SAID if is_said else 1.0


def _work(views: Sequence[RankView], said: Sequence[Verdict]) -> Verdict:
    """Return what remains if nothing holds the ranks up: their own work."""
    works = median(1.0 - view.wait - view.network for view in views)
    text = f"nothing holds the job up: the ranks work in {_percent(works)} of a step"
    shares = {phase: median(getattr(view, phase) for view in views) for phase in _PHASES_OF_WORK}
    weighed = {each: shares[each] * _weight(said, "compute", phase=each) for each in shares}
    phase = max(weighed, key=lambda each: weighed[each])
    if weighed[phase] < _MOST_OF_A_STEP:
        return Verdict("healthy", text, share=works)
    place = next((view.places[phase] for view in views if view.places.get(phase)), "")
    where = f" ({place})" if place else ""
    text = f"{text}, {_percent(shares[phase])} {_PHASES[phase]}{where}"
    means = _MEANS_AGAINST_WORK[phase]
    return Verdict("compute", text, means, phase=phase, share=shares[phase], place=place)


def is_nearly_stuck(windows: Sequence[RankView], still_s: float) -> bool:
    """Return whether a job has done nothing for a third of what makes :func:`judge` call it stuck.

    It is false once that has been so long that it may have been said.
    """
    limit_s = _stall_limit_s(windows)
    return limit_s / 3.0 <= still_s < 2.0 * limit_s


def _stall_limit_s(windows: Sequence[RankView]) -> float:
    usual_s = max((view.usual_step_s for view in windows), default=0.0)
    return max(_STALL_S, _STALL_STEPS * usual_s) if usual_s else _STALL_UNCOUNTED_S


def _stall(windows: Sequence[RankView], still_s: float) -> tuple[Verdict, ...]:
    if still_s < _stall_limit_s(windows):
        return ()
    waiting = [view.rank for view in windows if view.waiting]
    missing = [view for view in windows if not view.waiting]
    if not waiting or any(view.state == FAILED for view in windows):
        return ()
    advice = "ask for the stacks of all ranks; see docs/debugging.md, A rank is missing"
    if not missing:
        why = "all ranks wait, for data or for different operations"
        return (Verdict("stall", f"nothing happens for {still_s:.0f} s: {why}", advice, share=1.0),)
    names = ", ".join(_where(view) for view in missing[:4])
    more = f" and {len(missing) - 4} more" if len(missing) > 4 else ""
    text = f"nothing happens for {still_s:.0f} s: {_ranks(waiting)} for {names}{more}"
    return (Verdict("stall", text, advice, missing[0].rank, "", 1.0),)


def _where(view: RankView) -> str:
    place = next((view.places[phase] for phase in _WORK if view.places.get(phase)), "")
    return f"rank {view.rank} on {view.host}" + (f", which is at {place}" if place else "")


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} waits"
    if len(ranks) <= 6:
        return f"ranks {', '.join(map(str, ranks))} wait"
    return f"{len(ranks)} ranks wait"


def _slow_rank(views: Sequence[RankView], said: Sequence[Verdict]) -> list[Verdict]:
    gain_of = gains({view.rank: view.wait + view.network for view in views})
    weighed = {rank: gain * _weight(said, "rank", rank) for rank, gain in gain_of.items()}
    slow = max(views, key=lambda view: weighed[view.rank])
    if weighed[slow.rank] < SLOW_GAIN or slow.state != RUNNING:
        return []
    gain = gain_of[slow.rank]
    others = [view for view in views if view is not slow]
    phase, excess = _excess(slow, others)
    place = slow.places.get(phase, "")
    at = f" ({place})" if place else ""
    text = (
        f"rank {slow.rank} on {slow.host} makes the others wait: {would_save(gain)}. "
        f"It spends {excess} longer {_PHASES[phase]}{at}"
    )
    cause = next((rule for rule in _LIMITS if rule.applies_to_one(slow, others)), None)
    if cause is None:
        return [Verdict("rank", text, _MEANS_FOR_PHASE[phase], slow.rank, phase, gain, place)]
    text = f"{text}, because {cause.describe(slow)}"
    return [Verdict("rank", text, cause.advice, slow.rank, phase, gain, place)]


def _excess(slow: RankView, others: Sequence[RankView]) -> tuple[str, str]:
    """Return the phase in which a rank takes longest beyond the others, and by how much."""
    counted = slow.steps_per_s > 0 and all(view.steps_per_s > 0 for view in others)

    def cost(view: RankView, phase: str) -> float:
        share: float = getattr(view, phase)
        return share / view.steps_per_s if counted else share

    more = {
        phase: cost(slow, phase) - median(cost(view, phase) for view in others) for phase in _WORK
    }
    phase = max(_WORK, key=lambda each: more[each])
    if counted:
        return phase, f"{_milliseconds(more[phase])} per step"
    return phase, f"{_percent(more[phase])} of the time"


def _milliseconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 10 else f"{1000 * seconds:.0f} ms"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _input(views: Sequence[RankView], said: Sequence[Verdict]) -> list[Verdict]:
    share = median(view.input for view in views)
    if share * _weight(said, "input") < _MUCH:
        return []
    place = next((view.places[INPUT] for view in views if view.places.get(INPUT)), "")
    at = f" (at {place})" if place else ""
    text = f"the ranks wait for their input in {_percent(share)} of a step{at}"
    advice = (
        "load in the background: more workers or prefetching, smaller files in fewer, "
        "data decoded once and for all; see docs/data.md"
    )
    return [Verdict("input", text, advice, phase=INPUT, share=share, place=place)]


def _network(views: Sequence[RankView], said: Sequence[Verdict]) -> list[Verdict]:
    share = median(view.network for view in views)
    if share * _weight(said, "network") < _MUCH:
        return []
    if len({view.host for view in views}) == 1:
        text = f"moving data between the ranks takes {_percent(share)} of a step, inside one host"
        advice = "reduce less often (backward_passes_per_step), or use larger batches"
        return [Verdict("network", text, advice, share=share)]
    busiest = max(views, key=lambda view: view.network_bytes_per_s)
    link = f" of {_rate(busiest.link_bytes_per_s)} measured" if busiest.link_bytes_per_s else ""
    text = (
        f"the network takes {_percent(share)} of a step; {busiest.host} moves "
        f"{_rate(busiest.network_bytes_per_s)}{link}"
    )
    advice = (
        "send less: compression=hvd.Compression.fp16, larger batches, backward_passes_per_step; or "
        "name a faster interface (--network-interfaces)"
    )
    return [Verdict("network", text, advice, share=share)]


def _rate(bytes_per_s: float) -> str:
    mbit = 8e-6 * bytes_per_s
    return f"{mbit / 1000:.1f} Gbit/s" if mbit >= 1000 else f"{mbit:.0f} Mbit/s"


class _Limit:
    """A limit of a host or its container that slows ranks down.

    Args:
        kind: of the verdict.
        share_of: what part of the time of a rank it takes, or a number that is at least
            ``least`` if it is much.
        words: says of a rank how it is hit.
        advice: what to do.
        least: from which on it matters.
    """

    def __init__(
        self,
        kind: str,
        share_of: Callable[[RankView], float],
        words: Callable[[RankView], str],
        advice: str,
        least: float = _MUCH,
    ) -> None:
        self.kind = kind
        self.advice = advice
        self.describe = words
        self._share_of = share_of
        self._least = least

    def applies_to_one(self, slow: RankView, others: Sequence[RankView]) -> bool:
        """Return whether it hits a rank, and the others less than half as hard."""
        share = self._share_of(slow)
        return share >= self._least and 2 * median(map(self._share_of, others)) < share

    def hit(self, views: Sequence[RankView]) -> list[RankView]:
        """Return the ranks that it hits, the one that it hits hardest first."""
        hit = [view for view in views if self._share_of(view) >= self._least]
        return sorted(hit, key=self._share_of, reverse=True)


_LIMITS = (
    _Limit(
        "throttled",
        lambda view: view.throttled,
        lambda view: (
            "its cgroup had used up its quota, which cost "
            f"{view.throttled:.1f} s of processor time per second"
        ),
        "raise the limit of processors of the container (cpu.max, --cpus, resources.limits.cpu), "
        "or start fewer threads (OMP_NUM_THREADS)",
        0.1,
    ),
    _Limit(
        "swap",
        lambda view: view.faults_per_s if view.swapped_bytes else 0.0,
        lambda view: (
            f"it reads {view.faults_per_s:.0f} pages per second back from the swap "
            f"({view.swapped_bytes / 2**20:.0f} MiB of it are there)"
        ),
        "use less memory: a smaller batch, fewer ranks or fewer loader workers on this host",
        20.0,
    ),
    _Limit(
        "threads",
        lambda view: view.run_delay if view.threads > 1 else 0.0,
        lambda view: (
            f"its {view.threads} threads wait for a processor {view.run_delay:.1f} s per second "
            f"(it may use {view.cores:g} of them)"
        ),
        "start fewer threads (OMP_NUM_THREADS) or fewer ranks on the host, and look for other "
        "programs there",
        0.4,
    ),
    _Limit(
        "steal",
        lambda view: view.steal / max(1.0, view.cores),
        lambda view: f"the hypervisor takes {view.steal:.1f} s of processor time per second",
        "the virtual machine gets less than it shows: use another host or size",
        0.1,
    ),
    _Limit(
        "thermal",
        lambda view: float(view.thermal_events),
        lambda view: "its processor reduces its clock because of heat",
        "look at the cooling of this host, or at its power limit",
        1.0,
    ),
)


def _limits(views: Sequence[RankView]) -> list[Verdict]:
    found = []
    for rule in _LIMITS:
        hit = rule.hit(views)
        if 2 * len(hit) > len(views):
            who = f"{len(hit)} of {len(views)} ranks are held up, rank {hit[0].rank} most"
            text = f"{who}: {rule.describe(hit[0])}"
            found.append(Verdict(rule.kind, text, rule.advice, share=_MUCH))
    return found
