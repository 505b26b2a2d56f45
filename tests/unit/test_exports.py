"""Variables of OpenTelemetry and Kubeflow."""

from __future__ import annotations

import pytest

from horovod._settings.exports import exports_in, otlp_protocol

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ()),
        (ENDPOINT, ("otlp",)),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c/v1/metrics"}, ("otlp",)),
        ({"OTEL_METRICS_EXPORTER": "console, otlp"}, ("otlp",)),
        ({**ENDPOINT, "OTEL_METRICS_EXPORTER": "none"}, ()),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "True"}, ()),
        ({"KUBEFLOW_TRAINER_STATUS_URL": "https://t/status", **ENDPOINT}, ("kubeflow", "otlp")),
    ],
)
def test_who_asks_for_metrics(variables: dict[str, str], expected: tuple[str, ...]) -> None:
    assert exports_in(variables) == expected


def test_the_protocol_for_metrics_is_stronger() -> None:
    given = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
    assert (otlp_protocol({}), otlp_protocol(given)) == ("http/protobuf", "grpc")
    given["OTEL_EXPORTER_OTLP_METRICS_PROTOCOL"] = "http/protobuf"
    assert otlp_protocol(given) == "http/protobuf"
