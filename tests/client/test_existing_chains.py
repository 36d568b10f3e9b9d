"""Handles of chains that were there: they say at once how these stand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from queuert import AsyncClient, ChainStatus, Client, Deduplicate, JobType, JobTypes, PostgresState
from queuert.errors import ChainCancelledError
from queuert.state.adapter import StateAdapter
from tests.support.waiting import WAIT

number = JobType("number", input=int, output=int)
JOB_TYPES = JobTypes(number)
KEY = Deduplicate("key", scope="any")


async def _completed(client: AsyncClient) -> None:
    await client.complete_chain("mine", 7)


async def _cancelled(client: AsyncClient) -> None:
    await client.cancel_chain("mine")


async def _open(client: AsyncClient) -> None:
    """Nothing becomes of it."""


@pytest.mark.parametrize(
    ("end", "status"),
    [(_open, ChainStatus.OPEN), (_completed, ChainStatus.COMPLETED), (_cancelled, ChainStatus.CANCELLED)],
    ids=["open", "completed", "cancelled"],
)
@pytest.mark.parametrize("how", [{"id": "mine", "attach": True}, {"deduplication": KEY}], ids=["attach", "key"])
async def test_a_start_that_finds_a_chain_says_how_it_stands(
    state: StateAdapter, how: dict[str, Any], end: Callable[[AsyncClient], Awaitable[None]], status: ChainStatus
) -> None:
    """Without another look."""
    async with AsyncClient(state, JOB_TYPES) as client:
        first = await client.start_chain(number, 1, id="mine", deduplication=KEY)
        assert (first.deduplicated, first.status) == (False, ChainStatus.OPEN)
        await end(client)
        again = await client.start_chain(number, 1, **how)
        assert (again.id, again.deduplicated, again.status) == ("mine", True, status)
        assert status.value in repr(again)


async def test_the_result_of_a_chain_that_was_there_is_read(state: StateAdapter) -> None:
    """Its handle knows how it stands, and reads what it ended with."""
    async with AsyncClient(state, JOB_TYPES) as client:
        for name in "ab":
            await client.start_chain(number, 1, id=name)
        await client.complete_chain("a", 7)
        await client.cancel_chain("b")
        done, cancelled = [await client.start_chain(number, 1, id=name, attach=True) for name in "ab"]
        assert await done.result(WAIT) == 7
        with pytest.raises(ChainCancelledError):
            await cancelled.result(WAIT)


def test_the_synchronous_client_says_it_too(dsn: str) -> None:
    """Both modes have the same handles."""
    with Client(PostgresState(dsn), JOB_TYPES) as client:
        client.start_chain(number, 1, id="mine")
        client.complete_chain("mine", 7)
        chain = client.start_chain(number, 1, id="mine", attach=True)
        assert (chain.status, chain.result(WAIT)) == (ChainStatus.COMPLETED, 7)
