"""The records of the stream. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_PARTS = "ranks", "verdicts", "events"
STARTING, RUNNING, SILENT, ENDED, FAILED = "starting", "running", "silent", "ended", "failed"


@dataclass(frozen=True)
class RankView:
    """A rank in one interval. Shares are of its time, from 0 to 1; those of the phases add up to 1.

    Attributes:
        rank, host: which one, and where.
        state: "starting" before its first report, "running", "silent" if reports are missing,
            "ended", or "failed".
        length_s: length of the interval; 0 if there is no report yet.
        input, backward, optimizer, compute: shares of the phases in which it works.
        wait: share in which it waited for another rank.
        network: share in which data moved: what even the rank waited that waited least.
        waiting: whether it waits at the end of the interval.
        steps: since the beginning.
        step_s, slowest_step_s: median and longest step of the interval; 0 if unknown.
        usual_step_s: the longest of the medians of late, or before a stall; 0 if unknown.
        steps_per_s, collectives_per_s: rates.
        cpu: processors in use.
        run_delay, throttled, steal: seconds per second that its threads waited for a processor, its
            cgroup had no quota left, and the hypervisor took from its host.
        faults_per_s: pages per second that were read from a disk.
        thermal_events: in the interval.
        network_bytes_per_s, link_bytes_per_s: traffic of its host, and the measured speed of the
            link; 0 if unknown.
        memory_bytes, swapped_bytes, threads, cores: of the process.
        gpu_memory_bytes, gpu_total_bytes: in use on its GPUs, and all that they have; 0 if it uses
            none.
        gpu_busy: share of the last moments in which the busiest of them computed.
        places: the line of the program for each phase.
        said: last line of output.
    """

    rank: int
    host: str = ""
    state: str = STARTING
    length_s: float = 0.0
    input: float = 0.0
    backward: float = 0.0
    optimizer: float = 0.0
    compute: float = 0.0
    wait: float = 0.0
    network: float = 0.0
    waiting: bool = False
    steps: int = 0
    step_s: float = 0.0
    slowest_step_s: float = 0.0
    usual_step_s: float = 0.0
    steps_per_s: float = 0.0
    collectives_per_s: float = 0.0
    cpu: float = 0.0
    run_delay: float = 0.0
    throttled: float = 0.0
    steal: float = 0.0
    faults_per_s: float = 0.0
    thermal_events: int = 0
    network_bytes_per_s: float = 0.0
    link_bytes_per_s: float = 0.0
    memory_bytes: int = 0
    swapped_bytes: int = 0
    threads: int = 0
    cores: float = 0.0
    gpu_memory_bytes: int = 0
    gpu_total_bytes: int = 0
    gpu_busy: float = 0.0
    places: dict[str, str] = field(default_factory=dict)
    said: str = ""


@dataclass(frozen=True)
class JobEvent:
    """Something that happened to the job.

    Attributes:
        at: seconds since the epoch.
        kind: "warning", "launcher", "generation", "exit", "verdict" or "end".
        text: one line, or a report of several.
        rank: which rank it is about; -1 for none.
    """

    at: float
    kind: str
    text: str
    rank: int = -1


@dataclass(frozen=True)
class Verdict:
    """A reason for the length of a step.

    Attributes:
        kind: "stall", "rank", "input", "network", "threads", "swap", "throttled", "thermal",
            "steal", "compute", "healthy" or "unknown".
        text: the reason in a sentence.
        advice: what to do about it.
        rank: the culprit; -1 for none.
        phase: of the culprit; empty for none.
        share: of a step that it costs; for limits of a host, whose share is unknown, 0.2.
        place: the line that the text names; empty if none was seen in this window.
    """

    kind: str
    text: str
    advice: str = ""
    rank: int = -1
    phase: str = ""
    share: float = 0.0
    place: str = ""


@dataclass(frozen=True)
class JobView:
    """The job at one moment. Each view is complete, so a reader may leave out any number of them.

    Attributes:
        number: of this view, growing.
        at: seconds since the epoch.
        job: key for ``horovodrun dashboard``.
        command: what the ranks run.
        began_at: seconds since the epoch.
        generation: of an elastic job.
        ranks: each one.
        verdicts: the most important one first; never empty.
        events: the latest ones.
        logged_step, logged: what ``hvd.log`` reported last.
        ended: how the job ended; empty while it runs.
    """

    number: int
    at: float
    job: str
    command: str
    began_at: float
    generation: int
    ranks: tuple[RankView, ...]
    verdicts: tuple[Verdict, ...]
    events: tuple[JobEvent, ...] = ()
    logged_step: int = -1
    logged: dict[str, float] = field(default_factory=dict)
    ended: str = ""

    def to_data(self) -> dict[str, Any]:
        """Return plain values for JSON, which belong to this view."""
        parts = {name: [vars(each) for each in getattr(self, name)] for name in _PARTS}
        return {**vars(self), **parts}

    @staticmethod
    def from_data(data: dict[str, Any]) -> JobView:
        """Return the view of which :meth:`to_data` made ``data``."""
        parts = {
            "ranks": tuple(RankView(**each) for each in data["ranks"]),
            "verdicts": tuple(Verdict(**each) for each in data["verdicts"]),
            "events": tuple(JobEvent(**each) for each in data["events"]),
        }
        return JobView(**{**data, **parts})
