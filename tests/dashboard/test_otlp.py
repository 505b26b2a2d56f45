"""Metrics through OpenTelemetry's SDK, as a collector receives them."""

from __future__ import annotations

import gzip
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from horovod.runner.observation import otlp
from horovod.runner.observation.prometheus import exposition
from horovod.runner.observation.records import RUNNING, JobView, RankView, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator


def view_of(number: int, *ranks: RankView) -> JobView:
    verdict = Verdict("rank", "rank 1 is slow", "", 1, "backward", 0.75)
    return JobView(number, 0.0, "7", "train", 0.0, 0, ranks, (verdict,), logged={"loss": 0.5})


def ranks(steps: int, size: int = 2) -> list[RankView]:
    return [RankView(rank, "a", RUNNING, 1.0, steps=steps + rank) for rank in range(size)]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[queue.Queue[bytes]]:
    """What the variables of OpenTelemetry name as the endpoint; its requests."""
    received: queue.Queue[bytes] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            is_gzip = self.headers.get("Content-Encoding") == "gzip"
            received.put(gzip.decompress(body) if is_gzip else body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        port = server.server_address[1]
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        yield received
        server.shutdown()
        thread.join(10)


def lines_in(request: bytes) -> set[str]:
    """The points of a request as Prometheus writes them."""
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
        ExportMetricsServiceRequest,
    )

    lines = set()
    parsed = ExportMetricsServiceRequest.FromString(request)
    for metric in parsed.resource_metrics[0].scope_metrics[0].metrics:
        is_sum = metric.HasField("sum")
        for point in (metric.sum if is_sum else metric.gauge).data_points:
            value = point.as_int if point.HasField("as_int") else point.as_double
            labels = sorted((each.key, each.value.string_value) for each in point.attributes)
            lines.add(f"{metric.name}{'_total' if is_sum else ''} {labels} {float(value)}")
    return lines


def lines_of(view: JobView) -> set[str]:
    lines = set()
    for line in exposition(view).splitlines():
        if not line.startswith("#"):
            head, value = line.rsplit(" ", 1)
            name, labels = head.rstrip("}").split("{")
            pairs = sorted(tuple(each.split("=")) for each in labels.replace('"', "").split(","))
            lines.add(f"{name} {pairs} {float(value)}")
    return lines


def test_a_collector_gets_what_prometheus_gets(collector: queue.Queue[bytes]) -> None:
    said: list[str] = []
    exporter = otlp.open_otlp({"OTEL_METRICS_EXPORTER": "otlp"}, said.append)
    assert exporter is not None
    exporter.take(view_of(1, *ranks(5, size=4)))
    last = view_of(2, *ranks(9))
    exporter.take(last)
    exporter.close()
    assert lines_in(collector.get(timeout=60)) == lines_of(last)
    assert said == []


def test_a_missing_package_is_named_if_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "_is_there", lambda folder: False)
    said: list[str] = []
    assert otlp.open_otlp({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, said.append) is None
    assert said == []
    environ = {"OTEL_METRICS_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    assert otlp.open_otlp(environ, said.append) is None
    assert "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-grpc" in said[0]
    environ["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/json"
    assert otlp.open_otlp(environ, said.append) is None
    assert "http/json is not supported" in said[1]


def test_variables_that_opentelemetry_refuses_end_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "-1")
    said: list[str] = []
    exporter = otlp.open_otlp({"OTEL_METRICS_EXPORTER": "otlp"}, said.append)
    assert exporter is not None
    for number in range(3):
        exporter.take(view_of(number, *ranks(1)))
    exporter.close()
    assert len(said) == 1
    assert said[0].startswith("no metrics are sent by OTLP: ")
    assert "interval value -1.0 is invalid" in said[0]


class _Failing:
    def shutdown(self, timeout_millis: float) -> None:
        raise RuntimeError("a reader failed")


def test_a_failure_at_the_end_is_named_and_ends_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    exporter = otlp.OtlpExporter("http", said.append)
    monkeypatch.setattr(exporter, "_provider", _Failing())
    exporter.close()
    assert said == ["the last metrics were not sent by OTLP: RuntimeError: a reader failed"]
