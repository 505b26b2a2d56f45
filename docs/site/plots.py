"""Plots of the figures in docs/data, as SVG in the page, whose colors follow the scheme.

Where a document has ``<!-- plot: NAME -->``, the site has the plot of that name.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DATA = Path(__file__).resolve().parents[1] / "data"
_WIDTH, _HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 112, 14, 48
_BAR = 24
_LABELS = {"horovod": "Horovod", "gloo": "gloo", "mpi": "Open MPI"}


@dataclass(frozen=True)
class Series:
    """A line of a plot.

    Attributes:
        label: at its end.
        points: x and y of each point, both above 0.
    """

    label: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """An axis.

    Attributes:
        title: what it shows, with the unit.
        ticks: value and text of each, in rising order; the first and the last one are its ends.
        logarithmic: whether equal factors have equal lengths.
    """

    title: str
    ticks: Sequence[tuple[float, str]]
    logarithmic: bool = True

    def share(self, value: float) -> float:
        """Return how far from the first to the last tick a value is, from 0 to 1."""
        scale: Callable[[float], float] = math.log if self.logarithmic else float
        first, last = scale(self.ticks[0][0]), scale(self.ticks[-1][0])
        return (scale(value) - first) / (last - first)


def plot(name: str) -> str:
    """Return a plot as HTML.

    Raises:
        KeyError: there is no plot of that name.
    """
    return _PLOTS[name]()


def _load(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text())
    return data


def _allreduce(num_ranks: int) -> str:
    (run,) = (each for each in _load("allreduce")["runs"] if each["np"] == num_ranks)
    names = list(run["sizes"][0]["contestants"])
    series = [
        Series(
            _LABELS[name],
            [(size["bytes"], size["contestants"][name]["median_us"]) for size in run["sizes"]],
        )
        for name in names
    ]
    sizes = [(4.0, "4 B"), (1024.0, "1 KiB"), (2.0**18, "256 KiB"), (2.0**28, "256 MiB")]
    times = [(1.0, "1 µs"), (100.0, "100 µs"), (1e4, "10 ms"), (1e6, "1 s")]
    title = f"Allreduce on {num_ranks} ranks: median time by size"
    return _lines(title, series, Axis("size of the tensor", sizes), Axis("time", times))


def _scaling() -> str:
    steps = _load("scaling")
    names = list(dict.fromkeys(step["model"] for step in steps))
    series = [
        Series(
            name.replace("_", " "),
            [(s["ranks"], 100 * s["efficiency"]) for s in steps if s["model"] == name],
        )
        for name in names
    ]
    ranks = [(8.0, "8"), (64.0, "64"), (512.0, "512"), (4096.0, "4096")]
    shares = [(50.0, "50 %"), (75.0, "75 %"), (100.0, "100 %")]
    title = "Scaling efficiency, calculated: 4 ranks a host, 25 Gbit/s"
    y = Axis("efficiency", shares, logarithmic=False)
    return _lines(title, series, Axis("ranks", ranks), y)


def _training_step() -> str:
    names = {"alone": "no communication", "horovod": "Horovod", "ddp": "DDP over gloo"}
    bars = [
        (f"{row['workload']}, {names[way]}", row["contestants"][way]["median_us"] / 1000, way)
        for row in _load("training_step")["runs"][0]["workloads"]
        for way in names
        if way in row["contestants"]
    ]
    return _bars("A training step on 2 ranks: median time", bars, "ms")


def _lines(title: str, series: Sequence[Series], x: Axis, y: Axis) -> str:
    def place(point: tuple[float, float]) -> tuple[float, float]:
        across, up = x.share(point[0]), y.share(point[1])
        return (
            _LEFT + across * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM),
        )

    parts = _grid(x, y, place)
    ends = _apart([place(each.points[-1])[1] for each in series])
    for index, (each, end) in enumerate(zip(series, ends, strict=True)):
        path = " ".join(f"{left:.1f},{top:.1f}" for left, top in map(place, each.points))
        parts.append(f'<polyline class="line s{index}" points="{path}"/>')
        parts.append(
            f'<text class="s{index}" x="{_WIDTH - _RIGHT + 6}" y="{end + 5:.1f}">'
            f"{escape(each.label)}</text>"
        )
    return _figure(title, _WIDTH, _HEIGHT, parts)


def _grid(
    x: Axis, y: Axis, place: Callable[[tuple[float, float]], tuple[float, float]]
) -> list[str]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for value, text in x.ticks:
        left, _ = place((value, y.ticks[0][0]))
        parts.append(f'<path class="grid" d="M{left:.1f} {_TOP}V{bottom}"/>')
        parts.append(f'<text class="middle" x="{left:.1f}" y="{bottom + 19}">{text}</text>')
    for value, text in y.ticks:
        _, top = place((x.ticks[0][0], value))
        parts.append(f'<path class="grid" d="M{_LEFT} {top:.1f}H{right}"/>')
        parts.append(f'<text class="end" x="{_LEFT - 6}" y="{top + 5:.1f}">{text}</text>')
    middle = (_LEFT + right) / 2
    parts.append(f'<text class="middle" x="{middle}" y="{_HEIGHT - 5}">{escape(x.title)}</text>')
    return parts


def _apart(places: Sequence[float], least: float = 18) -> list[float]:
    """Return places for labels that are at least so far from each other, in the same order."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    found = list(places)
    for before, after in pairwise(order):
        found[after] = max(found[after], found[before] + least)
    excess = max(0.0, found[order[-1]] - (_HEIGHT - _BOTTOM))
    return [place - excess for place in found]


def _bars(title: str, bars: Sequence[tuple[str, float, str]], unit: str) -> str:
    longest = max(value for _, value, _ in bars)
    parts = []
    for index, (label, value, kind) in enumerate(bars):
        top = _TOP + index * (_BAR + 8)
        length = value / longest * (_WIDTH - 290)
        parts.append(f'<text class="end" x="206" y="{top + 17}">{escape(label)}</text>')
        parts.append(
            f'<rect class="bar {kind}" x="214" y="{top}" width="{length:.1f}" height="{_BAR}"/>'
        )
        text = f"{value:.0f} {unit}"
        parts.append(f'<text x="{214 + length + 6:.1f}" y="{top + 17}">{text}</text>')
    return _figure(title, _WIDTH, _TOP + len(bars) * (_BAR + 8), parts)


def _figure(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    name = escape(title)
    return (
        f'<figure class="plot"><svg viewBox="0 0 {width} {height}" role="img" aria-label="{name}">'
        f"{''.join(parts)}</svg><figcaption>{name}</figcaption></figure>"
    )


_PLOTS: dict[str, Callable[[], str]] = {
    "allreduce 2": lambda: _allreduce(2),
    "allreduce 4": lambda: _allreduce(4),
    "training_step": _training_step,
    "scaling": _scaling,
}
