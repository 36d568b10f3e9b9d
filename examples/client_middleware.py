"""Middlewares around starts: every chain is counted under its tenant, has a default key, and is traced.

Run it from the root of the repository: ``QUEUERT_URL=embedded:// python -m examples.client_middleware``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import SpanKind

from queuert import Client, Deduplicate, JobType, JobTypes, NewChain

Chains = Sequence[NewChain[Any]]

report = JobType("tenant_report", input=str, output=str)
job_types = JobTypes(report)
tenant: ContextVar[str] = ContextVar("tenant")
tracer = trace.get_tracer("example")


@contextmanager
def traced(chains: Chains) -> Iterator[Chains]:
    """A span around the start; an error of the start is recorded in it."""
    with tracer.start_as_current_span("start chains", kind=SpanKind.PRODUCER) as span:
        span.set_attribute("messaging.batch.message_count", len(chains))
        yield chains


@contextmanager
def in_tenant(chains: Chains) -> Iterator[Chains]:
    """What each chain is counted under; without a tenant nothing is started."""
    name = tenant.get(None)
    if name is None:
        raise PermissionError("no tenant")
    yield [chain.replace(limit_key=name) for chain in chains]


@contextmanager
def one_at_a_time(chains: Chains) -> Iterator[Chains]:
    """Reports of one input are not started twice at a time, unless the start says otherwise."""
    yield [
        chain if chain.deduplication else chain.replace(deduplication=Deduplicate(f"{chain.limit_key}/{chain.input}"))
        for chain in chains
    ]


def main() -> None:
    middlewares = [traced, in_tenant, one_at_a_time]
    with Client.from_url(os.environ["QUEUERT_URL"], job_types, middlewares=middlewares) as client:
        try:
            client.start_chain(report, "sales")
        except PermissionError as error:
            print(f"refused: {error}")
        for name in ("blue", "blue", "green"):
            tenant.set(name)
            chain = client.start_chain(report, "sales")
            print(f"{client.get_job(chain.id).limit_key}: {'already there' if chain.deduplicated else 'started'}")


if __name__ == "__main__":
    main()
