"""The stage of a test, which is swept afterwards: nothing may be left of its workers and clients."""

import asyncio
import gc
import threading
from asyncio import constants
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.worker.support import Stage, none_left

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
async def stage(dsn: str, complaints: list[dict[str, Any]]) -> AsyncIterator[Stage]:
    """A client and workers on a database of the test's own; afterwards no task, thread or connection is left."""
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = 60
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    before, threads_before = asyncio.all_tasks(), _threads()

    def tasks() -> set[asyncio.Task[Any]]:
        return asyncio.all_tasks() - before - {asyncio.current_task()}

    stage = Stage(dsn)
    try:
        yield stage
        for worker in stage.workers:
            await worker.stop(shutdown_timeout=0)
        await stage.client.aclose()
        await none_left(tasks, "tasks")
        await none_left(lambda: _threads() - threads_before, "threads")
        await none_left(stage.sessions, "connections")
    finally:
        await stage.close()
    gc.collect()
    assert complaints == []
