"""The harness of a test, which is swept afterwards: nothing may be left of its workers and clients."""

import asyncio
import gc
import threading
from asyncio import constants
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.harness import PostgresHarness
from tests.support.waiting import none_left

STAYING = ("queuert-watchdog", "asyncio_")
"""Threads that serve the whole process and end by themselves when they have been idle for a while."""


# Debug mode keeps the stack of whoever calls the loop, which is most of what its checks cost.
setattr(constants, "DEBUG_STACK_DEPTH", 1)  # noqa: B010  (mypy and pyright know it as final)


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if not thread.name.startswith(STAYING)}


@pytest.fixture
def complaints() -> list[dict[str, Any]]:
    """What the event loop complained of: exceptions that nobody retrieved, tasks destroyed while pending."""
    return []


@pytest.fixture
async def harness(dsn: str, complaints: list[dict[str, Any]]) -> AsyncIterator[PostgresHarness]:
    """A client and workers on a database of the test's own; afterwards no task, thread or connection is left."""
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = 60
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    before, threads_before = asyncio.all_tasks(), _threads()

    def tasks() -> set[asyncio.Task[Any]]:
        return asyncio.all_tasks() - before - {asyncio.current_task()}

    harness = PostgresHarness(dsn)
    try:
        yield harness
        for worker in harness.workers:
            await worker.stop(shutdown_timeout=0)
        await harness.client.aclose()
        await none_left(tasks, "tasks")
        await none_left(lambda: _threads() - threads_before, "threads")
        await none_left(harness.sessions, "connections")
    finally:
        await harness.close()
    gc.collect()
    gc.freeze()  # What is left is no garbage: the next test need not look at it again.
    assert complaints == []
