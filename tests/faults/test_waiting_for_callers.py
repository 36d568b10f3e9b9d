"""What handlers do while a caller's transaction has locked the row of their job: it waits, but not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import pytest

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Outcome, PostgresState, RetryPolicy
from queuert.errors import StateUnavailableError
from queuert.notify.in_process import InProcessNotify
from queuert.worker import Processors
from tests.support.waiting import WAIT

pytestmark = pytest.mark.fault

work = JobType("work", input=int, output=int, phases=("one",))
TYPES = JobTypes(work)


async def one() -> int:
    return 1


async def inside(_: Any) -> int:
    return 1


async def prepare(attempt: Attempt[int, int]) -> None:
    async with attempt.prepare():
        pass


async def complete(attempt: Attempt[int, int]) -> Outcome[int]:
    async with attempt.complete() as tx:
        return tx.finish(1)


WAITS: dict[str, Callable[[Attempt[int, int]], Awaitable[Any]]] = {
    "step": lambda attempt: attempt.step("one", one),
    "step_transaction": lambda attempt: attempt.step_transaction("one", inside),
    "phase": lambda attempt: attempt.phase("one", one),
    "sleep": lambda attempt: attempt.sleep("one", 0.001),
    "wait_for_event": lambda attempt: attempt.wait_for_event("one", int, 3600.0),
    "prepare": prepare,
    "complete": complete,
}


@pytest.fixture
async def clients(dsn: str) -> AsyncIterator[tuple[AsyncClient, AsyncClient]]:
    """The one of a worker, which does not wait for long, and the one of a caller, whose events it hears of."""
    notify = InProcessNotify()
    async with (
        AsyncClient(PostgresState(dsn, answer_timeout=2.0), TYPES, notify=notify) as hasty,
        AsyncClient(PostgresState(dsn), TYPES, notify=notify) as callers,
    ):
        yield hasty, callers


@pytest.mark.quick
@pytest.mark.parametrize("name", sorted(WAITS))
async def test_it_fails_in_the_end_and_is_repeated(
    dsn: str, clients: tuple[AsyncClient, AsyncClient], name: str
) -> None:
    processors = Processors(TYPES, retry=RetryPolicy(initial_delay=0.0, jitter=0.0, max_attempts=5))
    began, locked, failed = asyncio.Event(), asyncio.Event(), asyncio.Event()
    errors: list[str] = []

    @processors.handles(work)
    async def handler(attempt: Attempt[int, int]) -> Any:
        began.set()
        await locked.wait()
        try:
            ended = await WAITS[name](attempt)
        except StateUnavailableError as error:
            errors.append(str(error))
            failed.set()
            raise
        return ended if name == "complete" else 1

    client, callers = clients
    chain = await client.start_chain(work, 1)
    async with InProcessWorker(client, processors), asyncio.timeout(WAIT):
        await began.wait()
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            await callers.start_chain(work, 2, blockers=[chain], connection=connection)
            locked.set()
            await failed.wait()
            assert (await callers.get_job(chain.id)).attempt == 1  # Its lease is kept.
        if name == "wait_for_event":
            await callers.send_event(chain, "one", 1)
        assert await (await callers.get_chain(chain.id, work)).result(WAIT) == 1
    expected = (
        "the server sent no answer within 2 s (answer_timeout): it cannot be reached, or is overloaded, or another"
    )
    assert all(text.startswith(expected) for text in errors)
    assert "StateUnavailableError" in str((await callers.get_job(chain.id)).failures[0].error.type)
