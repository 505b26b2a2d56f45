"""Sends the metrics of a job by OpenTelemetry's protocol, as OpenTelemetry's own variables say.

Needs ``opentelemetry-sdk`` and an exporter of it; where these are missing, nothing is sent.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from horovod._settings.exports import names_otlp, otlp_protocol
from horovod.runner.observation.metrics import COUNTER, metrics_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from horovod.runner.observation.metrics import Metric
    from horovod.runner.observation.records import JobView

_CLOSE_MS = 5000
_PACKAGES = {
    "http/protobuf": ("http", "opentelemetry-exporter-otlp-proto-http"),
    "grpc": ("grpc", "opentelemetry-exporter-otlp-proto-grpc"),
}
_UNITS = {"_seconds": "s", "_bytes": "By", "_bytes_per_second": "By/s", "_ratio": "1"}


def open_otlp(environ: Mapping[str, str], say: Callable[[str], object]) -> OtlpExporter | None:
    """Return what sends metrics; None if a package for it is missing.

    Args:
        environ: variables that ask for OTLP.
        say: takes one line that names the missing package, if OTEL_METRICS_EXPORTER itself asks.
            An endpoint alone may be for other programs.
    """
    protocol = otlp_protocol(environ)
    if protocol not in _PACKAGES:
        say(
            f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol} is not supported: no metrics are sent; set it "
            f"to {' or '.join(_PACKAGES)}"
        )
        return None
    folder, package = _PACKAGES[protocol]
    if not _is_there(folder):
        if names_otlp(environ):
            say(
                "OTEL_METRICS_EXPORTER asks for metrics by OTLP, but they are not sent: "
                f"pip install opentelemetry-sdk {package}"
            )
        return None
    return OtlpExporter(folder, say)


def _is_there(folder: str) -> bool:
    try:
        modules = "opentelemetry.sdk.metrics", f"opentelemetry.exporter.otlp.proto.{folder}"
        return all(find_spec(name) is not None for name in modules)
    except ModuleNotFoundError:  # of a package around it
        return False


class OtlpExporter:
    """Sends the metrics of the newest view in the interval of OTEL_METRIC_EXPORT_INTERVAL.

    Args:
        folder: of the exporter: "http" or "grpc".
        say: takes a line if OpenTelemetry refuses its variables, and nothing is sent then; and one
            if it fails at the end.
    """

    def __init__(self, folder: str, say: Callable[[str], object]) -> None:
        self._folder = folder
        self._say = say
        self._has_failed = False
        self._latest: dict[str, Metric] = {}
        self._provider: Any = None
        self._known: set[str] = set()

    def take(self, view: JobView) -> None:
        """Take the next view; the first one loads OpenTelemetry."""
        self._latest = {metric.name: metric for metric in metrics_of(view)}
        if self._has_failed or not self._is_open():
            return
        for name in self._latest.keys() - self._known:
            self._known.add(name)
            self._observe(self._latest[name])

    def _is_open(self) -> bool:
        if self._provider is None:
            try:
                self._provider = _open_provider(self._folder)
            except Exception as error:  # of a library that reads variables of the user
                self._has_failed = True
                self._say(f"no metrics are sent by OTLP: {type(error).__name__}: {error}")
                return False
            self._meter = self._provider.get_meter("horovod")
        return True

    def _observe(self, metric: Metric) -> None:
        name, kind = metric.name, metric.kind
        unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), "")
        create = self._meter.create_observable_gauge
        if kind == COUNTER:  # OpenTelemetry's names of counters have no suffix
            name, create = name.removesuffix("_total"), self._meter.create_observable_counter
        create(name, [lambda _: self._points(metric.name)], unit, metric.what)

    def _points(self, name: str) -> Iterable[Any]:
        from opentelemetry.metrics import Observation

        metric = self._latest.get(name)
        points = () if metric is None else metric.points
        return [Observation(value, dict(labels)) for labels, value in points]

    def close(self) -> None:
        """Send the last metrics, for at most 5 s."""
        if self._provider is None:
            return
        try:
            self._provider.shutdown(timeout_millis=_CLOSE_MS)
        except Exception as error:  # of a library: the end of the job is not its business
            self._say(f"the last metrics were not sent by OTLP: {type(error).__name__}: {error}")


def _open_provider(folder: str) -> Any:
    from importlib import import_module

    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    module = import_module(f"opentelemetry.exporter.otlp.proto.{folder}.metric_exporter")
    reader = PeriodicExportingMetricReader(module.OTLPMetricExporter())
    return MeterProvider([reader], shutdown_on_exit=False)
