"""Following the log of Postgres, where transactions end in another order than they begin."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from queuert import AsyncClient, JobType, JobTypes, PostgresState
from tests.support.waiting import WAIT

number = JobType("number", input=int, output=int)
JOB_TYPES = JobTypes(number)


@pytest.mark.quick
async def test_nothing_is_skipped_or_repeated_while_a_transaction_is_held_open_and_a_thousand_commit(dsn: str) -> None:
    async with (
        AsyncClient(PostgresState(dsn), JOB_TYPES, max_connections=8) as client,
        await psycopg.AsyncConnection.connect(dsn) as held,
        client.follow_events() as first,
        client.follow_events() as second,
    ):
        late = await client.start_chain(number, 0, connection=held)
        started = await asyncio.gather(*(client.start_chain(number, one) for one in range(1_000)))
        assert await first.next(timeout=0) is None
        await held.commit()
        expected = {late.id, *(chain.id for chain in started)}
        async with asyncio.timeout(WAIT):
            events = [await anext(first) for _ in range(501)]
            # Another follower continues after the cursor of the first.
            async with client.follow_events(after=first.cursor) as resumed:
                events += [await anext(resumed) for _ in range(500)]
                assert [one.seq for one in events] == [(await anext(second)).seq for _ in range(1_001)]
        assert {one.job_id for one in events} == expected
        for follower in (resumed, second):
            assert await follower.next(timeout=0) is None
