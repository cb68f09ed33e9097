"""Measure the clients of a process: metrics for Prometheus, spans for an OpenTelemetry collector."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from prometheus_client import CollectorRegistry, start_http_server

from cometmq import ClientMetrics
from cometmq.aio import Producer, PushConsumer
from cometmq.otel import OpenTelemetryHook

from .settings import Settings


@contextmanager
def measured(
    service: str, client: Producer | PushConsumer, settings: Settings
) -> Generator[None, None, None]:
    """Measure a client while the context is open, and send the remaining spans at its end."""
    with ExitStack() as stack:
        if settings.otlp_endpoint:
            spans = TracerProvider(resource=Resource.create({SERVICE_NAME: service}))
            stack.callback(spans.shutdown)
            exporter = OTLPSpanExporter(f"{settings.otlp_endpoint}/v1/traces")
            spans.add_span_processor(BatchSpanProcessor(exporter))
            OpenTelemetryHook(tracer_provider=spans).watch(client)
        if settings.metrics_port:
            registry = CollectorRegistry()
            ClientMetrics(registry).watch(client)
            server, _ = start_http_server(settings.metrics_port, settings.metrics_host, registry)
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
        yield
