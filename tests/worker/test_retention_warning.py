"""A worker warns of types whose chains are never deleted, where they fill the memory of a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from queuert import AsyncClient, InProcessWorker, JobType, JobTypes, Processors
from queuert.observability.events import RetentionMissing
from queuert.policies import Keep, Retention
from queuert.state.adapter import StateAdapter
from queuert.state.redis import RedisState
from queuert.state.sqlite import SQLiteState
from queuert.testing.events import EventLog

last = JobType("last", input=int, output=int)
first: JobType[int, int] = JobType("first", input=int, continues_with=last)
other = JobType("other", input=int, output=int)
kept = JobType("kept", input=int, output=int)
JOB_TYPES = JobTypes(first, last, other, kept)


async def _handle(attempt: Any) -> Any:
    return attempt.input


async def _warnings(state: StateAdapter, **settings: Any) -> list[tuple[str, ...]]:
    processors, log = Processors(JOB_TYPES, **settings), EventLog()
    for job_type in (first, last, other):
        processors.handles(job_type)(_handle)
    processors.handles(kept, retention=Retention(completed=Keep(count=0)))(_handle)
    async with AsyncClient(state, JOB_TYPES, observability=log) as client, InProcessWorker(client, processors):
        return [event.types for event in log.of(RetentionMissing)]


async def test_a_worker_on_redis_warns_once_of_types_without_retention(redis_url: str) -> None:
    """Not of a type that only continues others: the retention of a chain's first job counts."""
    assert await _warnings(RedisState(redis_url)) == [("first", "other")]


async def test_a_retention_of_all_types_is_warned_of_by_nobody(redis_url: str) -> None:
    """Also one that keeps all: somebody has thought of it."""
    assert await _warnings(RedisState(redis_url), retention=Retention()) == []


async def test_on_a_disk_nothing_is_warned_of(tmp_path: Path) -> None:
    """The guide says that chains are kept for ever."""
    assert await _warnings(SQLiteState(tmp_path / "queue.db")) == []
