"""Waiting for chains: what is read of them meanwhile."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from queuert import AsyncClient, InProcessWorker, JobType, JobTypes, Processors
from queuert.jobs import ChainRecord, ChainStatus
from queuert.state.adapter import StateAdapter
from tests.support.waiting import WAIT

SIZE = 20_000
JOBS = 160
"""Twice as much of them, with their outputs, as one portion takes."""

large = JobType("large", input=str, output=str)
JOB_TYPES = JobTypes(large)


@pytest.fixture
async def client(state: StateAdapter, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncClient]:
    """A client that looks at its chains again and again."""
    for name in ("POLL_WITH_NOTIFY", "POLL_WITHOUT_NOTIFY"):
        monkeypatch.setattr(f"queuert.client.async_waiting.{name}", 0.02)
    async with AsyncClient(state, JOB_TYPES) as client:
        yield client


class Looks:
    """What the store of a client answers to who waits: how many answers, how much of open chains, how much at most."""

    def __init__(self, client: AsyncClient, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = self.of_open = self.most = 0
        self.looked = asyncio.Event()
        for name in ("get_chains", "closed_chains"):
            if hasattr(store, name):
                monkeypatch.setattr(store, name, self._noted(getattr(store, name)))

    def _noted(self, read: Any) -> Any:
        async def noted(*values: Any, **named: Any) -> Any:
            found = await read(*values, **named)
            records = [one for one in found if isinstance(one, ChainRecord)]
            self.count += 1
            self.of_open += sum(len(one.input) for one in records if one.status is ChainStatus.OPEN)
            self.most = max(self.most, sum(len(one.input) + len(one.output or "") for one in records))
            if self.count >= 3:
                self.looked.set()
            return found

        return noted


async def test_a_wait_reads_no_payload_of_chains_that_are_open(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it looks."""
    chains = [await client.start_chain(large, "x" * SIZE) for _ in range(3)]
    looks = Looks(client, await client._open_store(), monkeypatch)
    waiting = asyncio.create_task(client.wait(chains))
    async with asyncio.timeout(WAIT):
        await looks.looked.wait()
    waiting.cancel()
    assert looks.of_open == 0


async def test_a_wait_reads_what_closed_in_portions(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs of many megabytes do not come in one answer, and none of them is left out."""
    processors = Processors(JOB_TYPES)

    @processors.handles(large)
    async def echo(attempt: Any) -> Any:
        return attempt.input

    # Of letters that no store compresses.
    texts = [base64.b64encode(random.Random(n).randbytes(3 * SIZE)).decode() for n in range(JOBS)]
    chains = [await client.start_chain(large, text) for text in texts]
    async with InProcessWorker(client, processors):
        await client.wait(chains, timeout=WAIT)
    looks = Looks(client, await client._open_store(), monkeypatch)
    closed = await client.wait(chains, timeout=WAIT)
    assert [await chain.result() for chain in closed] == texts
    assert looks.count > 1
    assert looks.most < len(texts[0]) * JOBS
