"""Runs one chain inside the call of a test, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from queuert.client import AsyncChain
from queuert.errors import ConfigurationError
from queuert.job_types import JobType, JobTypes
from queuert.jobs import ChainStatus
from queuert.state.sqlite import SQLiteState
from queuert.testing.async_queue import AsyncJobQueue
from queuert.worker import Processors
from queuert.worker.processors import groups_of

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")

_ROUNDS = 1_000
"""How often time is moved before the chain counts as one that never closes."""


def run_inline_sync(
    processors: Processors | Sequence[Processors],
    job_type: JobType[I, R],
    input: I,
    *,
    allow_failures: bool = False,
    timeout: float = 30.0,
) -> R:
    """Run one chain to its end, within this call, and return its output.

    The jobs are in memory (SQLite), so it needs no server; the worker, the handlers and their middlewares are real.
    Pauses before retries, ``run_at`` and the windows of rates do not take time: they are moved into the past. In
    ``attempt.complete()`` the connection is one of ``sqlite3``, and ``executor="process"`` does not work: test handlers
    that need these with :class:`JobQueue` on Postgres.

    Args:
        processors: the handlers of all jobs of the chain, and of the chains that it waits for.
        job_type: the job type of the first job.
        input: its input.
        allow_failures: retry attempts whose handlers raise, as the retry policy says, instead of raising at once.
        timeout: seconds, for the handlers between two pauses.

    Raises:
        UnexpectedFailureError: a handler raised; the message has its traceback.
        JobFailedError: the chain failed, with ``allow_failures``.
        ChainCancelledError: the chain was cancelled.
        AssertionError: the chain cannot close, as a job has no handler; the message says what is left.
        ConfigurationError: an event loop runs here: use :func:`run_inline`; or its clock is frozen, see the
            guide, *Test your jobs*.

    It also raises the errors of ``start_chain``.

    Example::

        def test_resizing():
            published = run_inline_sync(processors, resize, Resize(url="https://example/cat.png", width=200))
            assert published.address.endswith("/200/cat.png")
    """
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise ConfigurationError("run_inline_sync is for synchronous tests: use await run_inline(...) in a coroutine")
    return asyncio.run(run_inline(processors, job_type, input, allow_failures=allow_failures, timeout=timeout))


async def run_inline(
    processors: Processors | Sequence[Processors],
    job_type: JobType[I, R],
    input: I,
    *,
    allow_failures: bool = False,
    timeout: float = 30.0,
) -> R:
    """Run one chain to its end, within this call, and return its output: :func:`run_inline_sync` for coroutines."""
    groups = groups_of(processors)
    members = {one.name: one for group in groups for one in group.job_types}
    async with AsyncJobQueue(SQLiteState(), JobTypes(*members.values())) as queue:
        chain = await queue.client.start_chain(job_type, input)
        await _run_to_the_end(queue, groups, chain, allow_failures=allow_failures, timeout=timeout)
        return await chain.result(timeout=0)


async def _run_to_the_end(
    queue: AsyncJobQueue, groups: Sequence[Processors], chain: AsyncChain[Any], *, allow_failures: bool, timeout: float
) -> None:
    windows = {
        each.job_type.name: each.limits.rate.seconds
        for group in groups
        for each in group
        if each.limits is not None and each.limits.rate is not None
    }
    for _ in range(_ROUNDS):
        ran = await queue.run_until_idle(groups, allow_failures=allow_failures, timeout=timeout)
        if (await chain.refresh()).status is not ChainStatus.OPEN:
            return
        due = [left.due_at - datetime.now(UTC) for left in ran.left if left.due_at is not None]
        due += [timedelta(seconds=windows[left.type]) for left in ran.left if left.held_back and left.type in windows]
        if not due:
            break
        await queue.advance(max(min(due), timedelta(0)))
    for_clients = {one.name for one in queue.job_types if one.completed_by == "client"}
    unfinished = [job for job in await queue.jobs() if not job.status.final]
    lines = [
        f"  {job.type} {job.id}: {job.status.value}{', until a client completes it' if job.type in for_clients else ''}"
        for job in unfinished
    ]
    if any(job.type in for_clients for job in unfinished):
        lines.append("run it on a JobQueue, and complete it there with queue.client")
    raise AssertionError("\n".join(["the chain cannot close; these jobs have not ended:", *lines]))
