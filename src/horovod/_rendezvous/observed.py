"""What a rank reports to the launcher while somebody watches the job, and how it is asked to."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from horovod._rendezvous.bounds import number_in, one_line, seconds_in
from horovod.errors import StartError

INPUT, BACKWARD, OPTIMIZER, COMPUTE, WAIT = PHASES = (
    "input",
    "backward",
    "optimizer",
    "compute",
    "wait",
)
OBSERVED_PREFIX = "observed/"
"""Of the reports of all ranks."""
_MOST_S = 1e12
_MOST_PLACE = 200


def observed_key(generation: int, rank: int) -> str:
    """Return the key under which a rank of a generation reports."""
    return f"{OBSERVED_PREFIX}{generation}/{rank}"


def answer_key(number: int, rank: int) -> str:
    """Return the key under which a rank answers a command."""
    return f"observe/answer/{number}/{rank}"


@dataclass(frozen=True)
class Command:
    """A request to all ranks.

    Attributes:
        number: of the request; each has a higher one.
        kind: "stacks" or "trace".
        num_steps: how many steps a trace covers.
    """

    number: int
    kind: str
    num_steps: int = 0

    def to_json(self) -> bytes:
        """Serialize for the store."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_json(text: bytes) -> Command:
        """Read what :meth:`to_json` wrote.

        Raises:
            StartError: it is something else.
        """
        try:
            data = json.loads(text)
            number, num_steps = number_in(data["number"], 0, 2**53), data["num_steps"]
            return Command(number, str(data["kind"])[:20], number_in(num_steps, 0, 1000))
        except (TypeError, ValueError, LookupError, RecursionError):
            raise StartError(f"malformed command for ranks: {text[:200]!r}") from None


@dataclass(frozen=True)
class Observed:
    """Counters of one rank since its engine began. Seconds are of the host's monotonic clock.

    Attributes:
        at_s: when they were read.
        waited_s: time in which the rank waited for an operation, with nothing else to submit.
        submitted: operations.
        steps: training steps; 0 if the program does nothing that counts them.
        step_s: median length of the steps since the last report; 0 if there was none.
        slowest_step_s: length of the longest of them.
        cpu_s: processor time of all threads of the process.
        run_delay_s: time for which the threads were ready to run, but had no processor.
        throttled_s: time for which the cgroup had used up its quota.
        steal_s: time of the host's processors that the hypervisor gave to others.
        major_faults: pages that had to be read from a disk.
        thermal_events: how often the processor reduced its clock because of heat.
        network_bytes: sent and received by all network interfaces of the host but loopback.
        link_bytes_per_s: measured speed of the network between the hosts; 0 if unknown.
        memory_bytes: resident memory of the process.
        swapped_bytes: of the process.
        threads: of the process.
        cores: that the process may use.
        gpu_memory_bytes, gpu_total_bytes: in use on the GPUs of the process, and all that they
            have; 0 without GPUs.
        gpu_percent: of the last moments in which the busiest of them computed.
        samples: how often the main thread was seen in each phase.
        places: where it was seen most often in each phase since the last report, as "file:line".
        now: the phase in which it was seen last.
    """

    at_s: float
    waited_s: float = 0.0
    submitted: int = 0
    steps: int = 0
    step_s: float = 0.0
    slowest_step_s: float = 0.0
    cpu_s: float = 0.0
    run_delay_s: float = 0.0
    throttled_s: float = 0.0
    steal_s: float = 0.0
    major_faults: int = 0
    thermal_events: int = 0
    network_bytes: int = 0
    link_bytes_per_s: float = 0.0
    memory_bytes: int = 0
    swapped_bytes: int = 0
    threads: int = 0
    cores: float = 0.0
    gpu_memory_bytes: int = 0
    gpu_total_bytes: int = 0
    gpu_percent: int = 0
    samples: dict[str, int] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    now: str = ""

    def to_json(self) -> bytes:
        """Serialize for the store."""
        return json.dumps(vars(self), separators=(",", ":")).encode()

    @staticmethod
    def from_json(text: bytes) -> Observed:
        """Read what :meth:`to_json` wrote.

        Raises:
            StartError: it is something else.
        """
        try:
            data = json.loads(text)
            checked: dict[str, Any] = {name: _checked(name, data[name]) for name in _NAMES}
            return Observed(**checked)
        except (TypeError, ValueError, LookupError, RecursionError):
            raise StartError(f"malformed report of a rank: {text[:200]!r}") from None


_NAMES = tuple(Observed.__dataclass_fields__)
_TIMES = frozenset(name for name in _NAMES if name.endswith(("_s", "cores")))


def _checked(name: str, value: object) -> object:
    if name in _TIMES:
        return seconds_in(value, _MOST_S)
    if name == "samples":
        return {phase: number_in(_of(value, phase, 0), 0, 2**53) for phase in PHASES}
    if name == "places":
        places = {phase: _of(value, phase, "") for phase in PHASES}
        return {phase: one_line(str(place), _MOST_PLACE) for phase, place in places.items()}
    if name == "now":
        return value if value in PHASES else ""
    return number_in(value, 0, 2**63)


def _of(value: object, phase: str, default: object) -> object:
    if not isinstance(value, dict):
        raise ValueError("not a table")
    return value.get(phase, default)
