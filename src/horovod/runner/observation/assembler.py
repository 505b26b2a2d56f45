"""Makes the views of ranks out of their reports, which hold counters. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from horovod._rendezvous.observed import BACKWARD, COMPUTE, INPUT, OPTIMIZER, PHASES, WAIT
from horovod.runner.observation.records import RUNNING, SILENT, STARTING, RankView

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod._rendezvous.observed import Observed

# Verdicts look at so much of the past: long enough for the median of some steps, and short enough
# to notice within 20 s that a rank has become slow, or is no longer.
WINDOW_S = 8.0
# A rank that reports nothing for so many intervals is late, or silent.
_LATE, _MISSED = 1.8, 6.0
_WORK = (INPUT, BACKWARD, OPTIMIZER, COMPUTE)


class Assembler:
    """Follows the ranks of a job from report to report.

    Args:
        interval_s: how often ranks report.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._hosts: tuple[str, ...] = ()
        self._reports: dict[int, deque[Observed]] = {}
        self._heard_at: dict[int, float] = {}
        # By rank, for stalls that are longer than the window: when its number of submitted
        # operations changed last, on its own clock, and the length of its steps before.
        self._moved_at: dict[int, float] = {}
        self._usual_step_s: dict[int, float] = {}

    def follow(self, hosts: Sequence[str]) -> None:
        """Begin with the ranks of a new generation, which count from zero."""
        self._hosts = tuple(hosts)
        self._reports = {rank: deque() for rank in range(len(hosts))}
        self._heard_at, self._moved_at, self._usual_step_s = {}, {}, {}

    def add(self, now_s: float, told: Mapping[int, Observed]) -> None:
        """Take the last report of each rank.

        Args:
            now_s: on the launcher's monotonic clock.
            told: by rank; a report may be that of the last call again.
        """
        for rank, report in told.items():
            reports = self._reports.get(rank)
            if reports is None or (reports and report.at_s <= reports[-1].at_s):
                continue
            if not reports or report.submitted != reports[-1].submitted:
                self._moved_at[rank] = report.at_s
            reports.append(report)
            self._heard_at[rank] = now_s
            while len(reports) > 2 and report.at_s - reports[1].at_s >= WINDOW_S:
                reports.popleft()
            usual_s = max(each.step_s for each in reports)
            self._usual_step_s[rank] = usual_s or self._usual_step_s.get(rank, 0.0)

    def views(self, now_s: float) -> tuple[RankView, ...]:
        """Return each rank in its last interval."""
        return self._views(now_s, -2)

    def windows(self, now_s: float) -> tuple[RankView, ...]:
        """Return each rank in all of the last :data:`WINDOW_S`."""
        return self._views(now_s, 0)

    def still_s(self, now_s: float) -> float:
        """Return for how long no rank has submitted anything, as far as they report.

        Ranks that do not report now, as they are stopped or get no processor, do not count. 0 if a
        rank has never reported.
        """
        lengths = []
        for rank, reports in self._reports.items():
            if not reports:
                return 0.0
            if not self._is_late(rank, now_s):
                lengths.append(reports[-1].at_s - self._moved_at[rank])
        return min(lengths, default=0.0)

    def _is_late(self, rank: int, now_s: float, intervals: float = _LATE) -> bool:
        return now_s - self._heard_at[rank] > intervals * self._interval_s

    def _views(self, now_s: float, first: int) -> tuple[RankView, ...]:
        views = []
        for rank, host in enumerate(self._hosts):
            reports = self._reports[rank]
            view = RankView(rank, host, STARTING)
            if len(reports) > 1:
                begin = reports[max(first, -len(reports))]
                view = replace(
                    interval_of(begin, reports[-1]),
                    rank=rank,
                    host=host,
                    usual_step_s=self._usual_step_s[rank],
                )
                if self._is_late(rank, now_s):  # whatever it did last, it may be stopped now
                    view = replace(view, waiting=False)
                if self._is_late(rank, now_s, _MISSED):
                    view = replace(view, state=SILENT)
            views.append(view)
        return with_network(views)


def interval_of(begin: Observed, end: Observed) -> RankView:
    """Return what a rank did between two of its reports; all of the wait counts as ``wait``."""
    length_s = max(1e-9, end.at_s - begin.at_s)

    def rate(name: str) -> float:
        before, after = getattr(begin, name), getattr(end, name)
        return max(0.0, float(after - before) / length_s)

    seen = {phase: end.samples.get(phase, 0) - begin.samples.get(phase, 0) for phase in PHASES}
    total = sum(seen.values())
    waits = min(1.0, rate("waited_s"))
    if end.submitted == begin.submitted and total:  # a wait counts only when it has ended
        waits = max(waits, seen[WAIT] / total)
    at_work = sum(seen[phase] for phase in _WORK)
    shares = {phase: (1.0 - waits) * seen[phase] / at_work if at_work else 0.0 for phase in _WORK}
    if not at_work:
        shares[COMPUTE] = 1.0 - waits
    return RankView(
        rank=-1,
        state=RUNNING,
        length_s=length_s,
        wait=waits,
        waiting=end.now == WAIT,
        steps=end.steps,
        step_s=end.step_s,
        slowest_step_s=end.slowest_step_s,
        steps_per_s=rate("steps"),
        collectives_per_s=rate("submitted"),
        cpu=rate("cpu_s"),
        run_delay=rate("run_delay_s"),
        throttled=rate("throttled_s"),
        steal=rate("steal_s"),
        faults_per_s=rate("major_faults"),
        thermal_events=max(0, end.thermal_events - begin.thermal_events),
        network_bytes_per_s=rate("network_bytes"),
        link_bytes_per_s=end.link_bytes_per_s,
        memory_bytes=end.memory_bytes,
        swapped_bytes=end.swapped_bytes,
        threads=end.threads,
        cores=end.cores,
        gpu_memory_bytes=end.gpu_memory_bytes,
        gpu_total_bytes=end.gpu_total_bytes,
        gpu_busy=min(1.0, end.gpu_percent / 100),
        places={phase: place for phase, place in end.places.items() if place},
        input=shares[INPUT],
        backward=shares[BACKWARD],
        optimizer=shares[OPTIMIZER],
        compute=shares[COMPUTE],
    )


def with_network(views: Sequence[RankView]) -> tuple[RankView, ...]:
    """Split the wait of each rank into that for data and that for others.

    The last rank that arrives at an operation waits only while data moves. So what even the rank
    waits that waits least is the network's part, and the rest of the others' wait is for it.
    """
    known = [view.wait for view in views if view.state == RUNNING]
    if len(views) < 2 or len(known) < len(views):
        return tuple(views)
    moves = min(known)
    return tuple(replace(view, wait=view.wait - moves, network=moves) for view in views)
