"""Where the variables of others ask for what a job reports: OpenTelemetry, Kubeflow. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

KUBEFLOW_URL = "KUBEFLOW_TRAINER_STATUS_URL"
KUBEFLOW_CA = "KUBEFLOW_TRAINER_STATUS_CA_CERT"
KUBEFLOW_TOKEN = "KUBEFLOW_TRAINER_STATUS_TOKEN"
_OTLP_ENDPOINTS = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
_OTLP_PROTOCOLS = "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"


def names_otlp(variables: Mapping[str, str]) -> bool:
    """Return whether OTEL_METRICS_EXPORTER itself names OTLP."""
    return "otlp" in variables.get("OTEL_METRICS_EXPORTER", "").replace(" ", "").split(",")


def wants_otlp(variables: Mapping[str, str]) -> bool:
    """Return whether OpenTelemetry's variables ask for metrics by OTLP.

    They do if OTEL_METRICS_EXPORTER names it, or if an endpoint is given and that variable is not.
    """
    if variables.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    has_endpoint = any(variables.get(name) for name in _OTLP_ENDPOINTS)
    return names_otlp(variables) or (
        has_endpoint and not variables.get("OTEL_METRICS_EXPORTER", "").strip()
    )


def otlp_protocol(variables: Mapping[str, str]) -> str:
    """Return how OTLP is to be sent, "grpc" or "http/protobuf"."""
    given = (variables.get(name, "").strip() for name in _OTLP_PROTOCOLS)
    return next((text for text in given if text), "http/protobuf")


def exports_in(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return who asks for what a job reports: "kubeflow" and "otlp"."""
    asked = {"kubeflow": bool(variables.get(KUBEFLOW_URL)), "otlp": wants_otlp(variables)}
    return tuple(name for name, is_asked in asked.items() if is_asked)
