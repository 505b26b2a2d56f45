"""The stream as text for Prometheus, version 0.0.4. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horovod.runner.observation.metrics import metrics_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from horovod.runner.observation.metrics import Metric
    from horovod.runner.observation.records import JobView


def exposition(view: JobView) -> str:
    """Return all that the stream says."""
    return "\n".join(line for metric in metrics_of(view) for line in _lines(metric)) + "\n"


def _lines(metric: Metric) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.what}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for labels, value in metric.points:
        yield f"{metric.name}{_labels(labels)} {value!r}"


def _labels(values: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in values.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
