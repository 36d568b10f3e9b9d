"""Bytes and secrets go through every store unharmed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from queuert import AsyncClient, Attempt, InProcessWorker, JobTypes, Outcome, PostgresState, Processors
from queuert.embedded import EmbeddedRedis
from queuert.ids import new_id
from queuert.notify.in_process import InProcessNotify
from queuert.state import StateAdapter
from queuert.state.redis import RedisState
from queuert.state.sqlite import SQLiteState
from queuert.testing.events import EventLog
from tests.codecs.secret import WORD, Patient, examine, gather, heal, job_types, whisper

WAIT = 20.0
SCAN = b"\x00\xff\\\"'" + bytes(range(256))


@pytest.fixture(params=["postgres", "sqlite file", "sqlite memory", "redis"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateAdapter]:
    match request.param:
        case "postgres":
            yield PostgresState(request.getfixturevalue("dsn"))
        case "sqlite file":
            yield SQLiteState(tmp_path / "queue.db")
        case "sqlite memory":
            memory = SQLiteState()
            yield memory
            memory.close()
        case _:
            yield RedisState(request.getfixturevalue("redis").url(), namespace=new_id())


@pytest.fixture(scope="module")
def redis() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


async def test_bytes_and_secrets(state: StateAdapter) -> None:
    processors = Processors(job_types)

    @processors.handles(examine)
    async def examining(attempt: Attempt[Patient, str | Patient]) -> Outcome[str | Patient]:
        return attempt.continue_with(heal, attempt.input, output=WORD)

    @processors.handles(heal)
    async def healing(attempt: Attempt[Patient, Patient]) -> Outcome[Patient]:
        return attempt.input.model_copy(update={"scan": attempt.input.scan[::-1]})

    @processors.handles(gather)
    async def gathering(attempt: Attempt[str, list[str]]) -> Outcome[list[str]]:
        return [attempt.input, *attempt.outputs_of(whisper)]

    async with AsyncClient(state, job_types, notify=InProcessNotify(), observability=EventLog()) as client:
        chain = await client.start_chain(examine, Patient(name=WORD, scan=SCAN))
        reported = await client.start_chain(whisper, WORD)
        gathered = await client.start_chain(gather, "é", blockers=[reported])
        await client.complete_chain(reported, WORD * 2)
        async with InProcessWorker(client, processors):
            assert await chain.result(WAIT) == Patient(name=WORD, scan=SCAN[::-1])
            assert await gathered.result(WAIT) == ["é", WORD * 2]
        [first, second] = await client.list_chain_jobs(chain)
        assert (first.input["scan"], first.output, second.output["scan"]) == (SCAN, WORD, SCAN[::-1])

    async with AsyncClient(state, JobTypes(), notify=InProcessNotify()) as stranger:
        stored = await stranger.get_job(chain.id)
        assert stored.input["queuert.codec"] == stored.output["queuert.codec"] == ["msgpack", "aes-gcm:2030-02"]
