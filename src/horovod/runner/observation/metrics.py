"""The metrics of a job, the same for Prometheus and OpenTelemetry. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from horovod.runner.observation.records import RUNNING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from horovod.runner.observation.records import JobView, RankView

COUNTER, GAUGE = "counter", "gauge"


@dataclass(frozen=True)
class Metric:
    """One metric with all its points.

    Attributes:
        name: as Prometheus has it; that of a counter ends with ``_total``.
        kind: :data:`COUNTER` or :data:`GAUGE`.
        what: its meaning.
        points: labels and value of each point.
    """

    name: str
    kind: str
    what: str
    points: tuple[tuple[Mapping[str, str], float], ...] = ()


_RANK: tuple[tuple[str, str, str, Callable[[RankView], float]], ...] = (
    ("up", GAUGE, "1 while a rank runs and reports", lambda v: int(v.state == RUNNING)),
    ("steps_total", COUNTER, "training steps", lambda v: v.steps),
    ("step_seconds", GAUGE, "median step of the last interval", lambda v: v.step_s),
    ("slowest_step_seconds", GAUGE, "longest step of the interval", lambda v: v.slowest_step_s),
    ("collectives_per_second", GAUGE, "submitted operations", lambda v: v.collectives_per_s),
    ("cpu_cores", GAUGE, "processors in use", lambda v: v.cpu),
    ("run_delay_ratio", GAUGE, "seconds per second that threads wait for a processor",
     lambda v: v.run_delay),
    ("throttled_ratio", GAUGE, "seconds per second without quota of the cgroup",
     lambda v: v.throttled),
    ("major_faults_per_second", GAUGE, "pages read from a disk", lambda v: v.faults_per_s),
    ("memory_bytes", GAUGE, "resident memory", lambda v: v.memory_bytes),
    ("swapped_bytes", GAUGE, "memory in the swap", lambda v: v.swapped_bytes),
    ("network_bytes_per_second", GAUGE, "traffic of its host", lambda v: v.network_bytes_per_s),
    ("link_bytes_per_second", GAUGE, "measured speed of the link", lambda v: v.link_bytes_per_s),
)  # fmt: skip
_GPU: tuple[tuple[str, str, Callable[[RankView], float]], ...] = (
    ("gpu_memory_bytes", "memory in use on its GPU", lambda v: v.gpu_memory_bytes),
    ("gpu_memory_total_bytes", "memory of its GPU", lambda v: v.gpu_total_bytes),
    ("gpu_busy_ratio", "share of the time in which its GPU computed", lambda v: v.gpu_busy),
)
_PHASES = ("input", "backward", "optimizer", "compute", "wait", "network")


def metrics_of(view: JobView) -> Iterator[Metric]:
    """Yield all that the stream says."""
    yield from _of_ranks(view)
    yield from _of_job(view)


def _of_ranks(view: JobView) -> Iterator[Metric]:
    for name, kind, what, value_of in _RANK:
        points = tuple((_place(view, rank), value_of(rank)) for rank in view.ranks)
        yield Metric(f"horovod_rank_{name}", kind, what, points)
    with_gpu = [rank for rank in view.ranks if rank.gpu_total_bytes]
    for name, what, value_of in _GPU if with_gpu else ():
        points = tuple((_place(view, rank), value_of(rank)) for rank in with_gpu)
        yield Metric(f"horovod_rank_{name}", GAUGE, what, points)
    shares = [
        ({**_place(view, rank), "phase": phase}, float(f"{getattr(rank, phase):.4g}"))
        for rank in view.ranks
        for phase in _PHASES
    ]
    what = "share of its time in each phase"
    yield Metric("horovod_rank_phase_ratio", GAUGE, what, tuple(shares))


def _place(view: JobView, rank: RankView) -> dict[str, str]:
    return {"job": view.job, "rank": str(rank.rank), "host": rank.host}


def _of_job(view: JobView) -> Iterator[Metric]:
    job = {"job": view.job}
    yield Metric("horovod_job_ranks", GAUGE, "ranks of the job", ((job, len(view.ranks)),))
    changes = "changes of the ranks of an elastic job"
    yield Metric("horovod_job_generation", GAUGE, changes, ((job, view.generation),))
    verdicts = []
    for each in view.verdicts:
        rank = "" if each.rank < 0 else str(each.rank)
        labels = {**job, "kind": each.kind, "rank": rank, "phase": each.phase}
        verdicts.append((labels, float(f"{each.share:.4g}")))
    why = "why steps are slow: share of a step"
    yield Metric("horovod_job_verdict", GAUGE, why, tuple(verdicts))
    logged = tuple(({**job, "name": name}, value) for name, value in view.logged.items())
    yield Metric("horovod_job_logged", GAUGE, "last value of hvd.log", logged)
