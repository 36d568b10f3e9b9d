"""Middlewares around each attempt, as an onion, and a log in which every line knows its job.

Run it from the root of the repository: ``QUEUERT_URL=embedded:// python -m examples.attempt_middleware``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from typing import Any

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Outcome, Processors
from queuert.observability.context import ContextFilter
from queuert.worker import CallNext

greet = JobType("hello", input=str, output=str)
job_types = JobTypes(greet)
log = logging.getLogger("greetings")


async def outer(attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
    log.info("before, outer")
    outcome = await call_next()
    log.info("after, outer")
    return outcome


async def inner(attempt: Attempt[Any, Any], call_next: CallNext) -> Any:
    log.info("before, inner")
    outcome = await call_next()
    log.info("after, inner")
    return outcome


processors = Processors(job_types, middlewares=[outer, inner])


@processors.handles(greet)
def say_hello(attempt: Attempt[str, str]) -> Outcome[str]:
    log.info("the handler, in a thread")
    return f"hello, {attempt.input}"


async def main() -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.addFilter(ContextFilter())
    handler.setFormatter(logging.Formatter("%(queuert_type)s attempt %(queuert_attempt)s: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)

    client = AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types)
    async with client, InProcessWorker(client, processors):
        chain = await client.start_chain(greet, "world")
        print(await chain.result(timeout=30))


if __name__ == "__main__":
    asyncio.run(main())
