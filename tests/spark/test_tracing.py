"""Traces of Spark's writes; and the example whose client, driver and three workers make one connected picture."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyspark.sql import SparkSession

from examples import spark_tracing as example
from queuert import AsyncClient, InProcessWorker, NewChain, PostgresState
from queuert.observability.otel_tracing import OTelMiddleware
from queuert.spark import enqueue
from queuert.trace_context import decoded_context
from tests.spark.support import query

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Span:
    """What the pictures of both exporters have in common."""

    name: str
    service: str
    id: str
    parent: str
    links: frozenset[str]
    trace: str


def recorded(span: ReadableSpan) -> Span:
    assert span.context is not None
    parent = "" if span.parent is None else f"{span.parent.span_id:016x}"
    links = frozenset(f"{link.context.span_id:016x}" for link in span.links)
    trace, id = f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"
    return Span(span.name, str(span.resource.attributes["service.name"]), id, parent, links, trace)


class Receiver:
    """A collector that takes OTLP over HTTP."""

    def __init__(self) -> None:
        received = self.requests = list[ExportTraceServiceRequest]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def spans(self) -> list[Span]:
        found = []
        for resource in (resource for request in self.requests for resource in request.resource_spans):
            [service] = [one.value.string_value for one in resource.resource.attributes if one.key == "service.name"]
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                links = frozenset(link.span_id.hex() for link in span.links)
                parent = span.parent_span_id.hex()
                found.append(Span(span.name, service, span.span_id.hex(), parent, links, span.trace_id.hex()))
        return found


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


def connected(spans: Iterable[Span]) -> list[set[str]]:
    """The parts of the picture between which no parent and no link leads: the names of their spans."""
    spans = list(spans)
    parts: list[set[str]] = [{span.id} for span in spans]
    for span in spans:
        for other in (span.parent, *span.links):
            joined = [part for part in parts if span.id in part or other in part]
            parts = [part for part in parts if part not in joined] + [set().union(*joined)]
    names = {span.id: f"{span.service}: {span.name}" for span in spans}
    return [{names[id] for id in part if id in names} for part in parts]


JOBS = ("collect", "clean", "price", "render", "publish-report")


async def test_the_chain_of_five_in_memory(dsn: str) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    middlewares = [OTelMiddleware(tracer_provider=provider)]
    async with (
        AsyncClient(PostgresState(dsn), example.job_types, middlewares=middlewares) as client,
        AsyncExitStack() as stack,
    ):
        for group in (example.collecting, example.pricing, example.publishing):
            await stack.enter_async_context(InProcessWorker(client, group))
        with provider.get_tracer("test").start_as_current_span("request"):
            starts = [NewChain(example.measure, n, id=id) for n, id in enumerate(example.MEASURED, start=1)]
            await client.start_chains(starts)
            chain = await client.start_chain(example.collect, 0, blockers=example.MEASURED)
        assert await chain.result(timeout=60) == "report of 122"
    provider.shutdown()
    spans = [recorded(span) for span in exporter.get_finished_spans()]
    [part] = connected(spans)
    names = [span.name for span in spans]
    assert {name.partition(": ")[2] for name in part} == set(names)
    assert [names.count(f"process {job}") for job in ("measure", *JOBS)] == [3, 1, 1, 2, 1, 1]


@pytest.mark.quick
@pytest.mark.spark
def test_a_write_is_a_span_to_which_its_jobs_link(spark: SparkSession, dsn: str) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    rows = spark.createDataFrame([("1",), ("2",)], "input string")
    with provider.get_tracer("test").start_as_current_span("driver") as driver:
        enqueue(rows, "measure", url=dsn, tracing=OTelMiddleware(tracer_provider=provider))
    provider.shutdown()
    send = next(span for span in exporter.get_finished_spans() if span.name == "send measure")
    assert recorded(send).parent == f"{driver.get_span_context().span_id:016x}"
    assert dict(send.attributes or {})["messaging.batch.message_count"] == 2
    stored = query(dsn, "SELECT trace_context FROM queuert.job")
    assert {decoded_context(text)["traceparent"].split("-")[2] for text in stored} == {recorded(send).id}


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_example_is_one_picture_of_five_processes(dsn: str, receiver: Receiver) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    environment |= {"QUEUERT_URL": dsn, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.address, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "examples.spark_tracing"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert (done.returncode, done.stdout) == (0, "report of 122\n"), done.stderr
    spans = receiver.spans()
    [part] = connected(spans)
    assert {name.partition(": ")[0] for name in part} == {"client", "driver", "queuert-worker"}
    names = [span.name for span in spans]
    assert [names.count(f"process {job}") for job in ("measure", *JOBS)] == [3, 1, 1, 2, 1, 1]
    request = next(span for span in spans if span.name == "request")
    sends = {span.name: span.trace for span in spans if span.name.startswith("send ")}
    assert sends == {"send measure": request.trace, "send collect": request.trace}
