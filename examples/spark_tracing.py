"""One connected picture of a client, a Spark driver and three workers: a chain of five jobs that begins with a join.

The Spark driver writes three `measure` chains from a DataFrame. The client starts a chain that waits for them:
`collect`, `clean`, `price`, `render`, `publish`. Three worker processes share the jobs. All export their spans to an
OpenTelemetry collector, whose address is in OTEL_EXPORTER_OTLP_ENDPOINT.

Needs ``queuert[spark,otel]`` and a Java. Run it from the root of the repository, after ``queuert migrate up``:
``QUEUERT_URL=... OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 python -m examples.spark_tracing``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from queuert import Attempt, Client, JobType, JobTypes, Outcome, PostgresState, Processors
from queuert.observability.otel_tracing import OTelMiddleware

measure = JobType("measure", input=int, output=int)
publish = JobType("publish-report", input=int, output=str)
render = JobType("render", input=int, continues_with=publish)
price = JobType("price", input=int, continues_with=render)
clean = JobType("clean", input=int, continues_with=price)
collect = JobType("collect", input=int, continues_with=clean, blockers=(measure, ...))
job_types = JobTypes(measure, collect, clean, price, render, publish)

MEASURED = ("measured 1", "measured 2", "measured 3")

# --- what the three workers do ----------------------------------------------------------------------------------------

collecting, pricing, publishing = Processors(job_types), Processors(job_types), Processors(job_types)


@collecting.handles(measure)
def run_measure(attempt: Attempt[int, int]) -> Outcome[int]:
    return attempt.input * 10


@collecting.handles(collect)
async def run_collect(attempt: Attempt[int, str]) -> Outcome[str]:
    return attempt.continue_with(clean, sum(attempt.outputs_of(measure)))


@pricing.handles(clean)
async def run_clean(attempt: Attempt[int, str]) -> Outcome[str]:
    return attempt.continue_with(price, attempt.input + 1)


@pricing.handles(price)
async def run_price(attempt: Attempt[int, str]) -> Outcome[str]:
    if attempt.number == 1:
        raise ConnectionError("the list of prices cannot be reached")
    return attempt.continue_with(render, attempt.input * 2)


@publishing.handles(render)
async def run_render(attempt: Attempt[int, str]) -> Outcome[str]:
    return attempt.continue_with(publish, attempt.input)


@publishing.handles(publish)
async def run_publish(attempt: Attempt[int, str]) -> Outcome[str]:
    return f"report of {attempt.input}"


# --- the client and the driver ----------------------------------------------------------------------------------------


def request(client: Client) -> str:
    """Start the chain of five, which waits for what is measured, and wait for its report."""
    chain = client.start_chain(collect, 0, blockers=MEASURED)
    return chain.result(timeout=120)


def drive(url: str) -> None:
    """The Spark driver: a row a measurement."""
    from queuert.spark import enqueue, local_session

    spark = local_session(1, settings={"spark.log.level": "OFF"})
    rows: list[tuple[str, int]] = [(name, number) for number, name in enumerate(MEASURED, start=1)]
    with tracer().start_as_current_span("spark driver", context=propagate.extract(dict(os.environ), None)):
        enqueue(spark.createDataFrame(rows, "id string, input string"), measure, url=url, tracing=OTelMiddleware())
    spark.stop()


def tracer() -> trace.Tracer:
    return trace.get_tracer("examples.spark_tracing")


@contextmanager
def exported(service: str) -> Iterator[None]:
    """OpenTelemetry's SDK, as its own documents set it up."""
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


@contextmanager
def workers() -> Iterator[None]:
    """Three worker processes, stopped as a container is."""
    command = [sys.executable, "-m", "queuert", "worker", "--otel", "--log-level", "error"]
    groups: Sequence[str] = ("collecting", "pricing", "publishing")
    processes: list[subprocess.Popen[Any]] = [
        subprocess.Popen([*command, "--name", group, f"examples.spark_tracing:{group}"]) for group in groups
    ]
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            process.wait(timeout=60)


def main() -> None:
    url = os.environ["QUEUERT_URL"]
    if sys.argv[1:] == ["driver"]:
        with exported("driver"):
            drive(url)
        return
    with exported("client"), workers(), tracer().start_as_current_span("request"):
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        subprocess.run([sys.executable, "-m", "examples.spark_tracing", "driver"], env=os.environ | carrier, check=True)
        with Client(PostgresState(url), job_types, middlewares=[OTelMiddleware()]) as client:
            print(request(client))


if __name__ == "__main__":
    main()
