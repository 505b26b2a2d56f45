"""What the network between the hosts costs a training step, and what would make it less. Pure.

A step has a part without communication, and the network adds what it cannot hide behind the
backward pass. Two sources tell of both: a forecast from the cost model of the engine
(:func:`forecast`), and what a job has measured (:func:`from_measurements`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from horovod import _native
from horovod._base.fast_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Below this share of the step, nobody needs to hear of it.
_LITTLE = 0.1
_LOCAL_STEPS = 8
# What 8 bits and their scales leave of the bytes of float32.
_QUANTIZED = (256 + 4) / (4 * 256)
# Forward and backward pass of a usual network, and where gradients become ready in the latter.
_FORWARD = 1 / 3
_PIECES = 50
_FUSED_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True)
class NetworkCost:
    """Times of a step, in seconds.

    Attributes:
        hosts: of the job.
        bytes_per_s: of the link that counts, in one direction: the slowest one in a forecast, the
            median in a job.
        alone_s: without communication.
        step_s: with gradients as they are.
        quantized_s: with gradients in 8 bits between hosts (``Compression.int8``).
        local_s: with an exchange every 8 steps (``hvd.LocalSGD``), on average.
    """

    hosts: int
    bytes_per_s: float
    alone_s: float
    step_s: float
    quantized_s: float
    local_s: float

    @property
    def is_much(self) -> bool:
        """Whether the network adds at least a tenth to a step."""
        return self.step_s - self.alone_s >= _LITTLE * self.alone_s

    def times(self) -> tuple[str, str]:
        """Return in words how long a step takes, and how long without communication."""
        return _seconds(self.step_s), _seconds(self.alone_s)

    def text(self) -> str:
        """Return a sentence of what it costs and what helps."""
        where, alone = f"{self.hosts} hosts at {rate_of(self.bytes_per_s)}", _seconds(self.alone_s)
        if not self.is_much:
            return f"{where}: the network adds less than 10 % to a step of {alone}"
        return (
            f"{where}: a step takes {_seconds(self.step_s)} instead of {alone}; with "
            "8-bit gradients (hvd.Compression.int8, if they are float32) about "
            f"{_seconds(self.quantized_s)}, with an exchange every {_LOCAL_STEPS} steps "
            "(backward_passes_per_step, or hvd.LocalSGD) about "
            f"{_seconds(self.local_s)} for each"
        )


def forecast(
    ranks: Sequence[int],
    link_bytes_per_s: Sequence[float],
    latency_s: float,
    step_s: float,
    gradient_bytes: float,
) -> NetworkCost:
    """Foretell the steps of a job with the engine's cost model.

    Gradients become ready evenly during the backward pass, which is two thirds of a step. What is
    ready when the network is free is reduced together.

    Args:
        ranks: on each host.
        link_bytes_per_s: of each host in one direction.
        latency_s: of a message between two hosts.
        step_s: of one rank without communication.
        gradient_bytes: of all gradients of one rank.
    """
    hosts = [host for host, count in enumerate(ranks) for _ in range(count)]
    costs = _native.CostConstants(
        network_latency_s=latency_s,
        network_bytes_per_s=min(link_bytes_per_s),
        link_bytes_per_s=list(link_bytes_per_s),
    )

    def reduce_s(num_bytes: float, quantized: bool = False) -> float:
        told = _native.estimate_allreduce(hosts, int(num_bytes), quantized=quantized, costs=costs)
        return told[1]

    return NetworkCost(
        hosts=len(ranks),
        bytes_per_s=min(link_bytes_per_s),
        alone_s=step_s,
        step_s=_overlapped_s(step_s, gradient_bytes, reduce_s),
        quantized_s=_overlapped_s(step_s, gradient_bytes, partial(reduce_s, quantized=True)),
        local_s=step_s + reduce_s(gradient_bytes) / _LOCAL_STEPS,
    )


def _overlapped_s(step_s: float, num_bytes: float, reduce_s: Callable[[float], float]) -> float:
    """Return how long a step takes whose gradients travel during its backward pass."""
    forward_s = _FORWARD * step_s
    piece_s = (step_s - forward_s) / _PIECES
    free_at, sent = forward_s, 0
    while sent < _PIECES:
        free_at = max(free_at, forward_s + (sent + 1) * piece_s)
        ready = min(_PIECES, int((free_at - forward_s) / piece_s + 1e-9))
        most = max(1, int(_FUSED_BYTES / num_bytes * _PIECES))
        count = min(max(1, ready - sent), most)
        free_at += reduce_s(count * num_bytes / _PIECES)
        sent += count
    return max(free_at, step_s)


def from_measurements(
    hosts: int, bytes_per_s: float, step_s: float, waited_s: float, moved_bytes: float
) -> NetworkCost:
    """Return what the network costs a job that trains.

    A rank also waits for slower ranks. So the network counts for at most as long as the link needs
    for what the host sends in a step.

    Args:
        hosts: of the job.
        bytes_per_s: measured speed of the link, in one direction.
        step_s: mean length of a step.
        waited_s: of it, in which this rank waited for communication.
        moved_bytes: that its host sent in a step.
    """
    link_s = moved_bytes / bytes_per_s
    # Operations of several process sets are waited for at the same time, and each wait counts.
    added_s = min(waited_s, link_s, step_s)
    hidden_s, alone_s = link_s - added_s, step_s - added_s
    return NetworkCost(
        hosts=hosts,
        bytes_per_s=bytes_per_s,
        alone_s=alone_s,
        step_s=step_s,
        quantized_s=alone_s + max(0.0, _QUANTIZED * link_s - hidden_s),
        local_s=alone_s + link_s / _LOCAL_STEPS,
    )


def rate_of(bytes_per_s: float) -> str:
    """Return the speed of a link in words, in bits."""
    bits = 8 * bytes_per_s
    return f"{bits / 1e9:.1f} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.0f} Mbit/s"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
