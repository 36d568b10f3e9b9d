"""Workers and waiting clients on Postgres that are woken through Redis, and by nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis

from queuert.notify import Topic
from queuert.notify.redis import RedisNotify
from queuert.observability.events import AttemptCompleted, ListenerRestored, WorkerStarted
from tests.notify.support import Heard
from tests.worker.support import Stage, echo, in_time, number

NEVER = 3_600.0


@pytest.fixture
async def stage(dsn: str, redis_url: str, namespace: str) -> AsyncIterator[Stage]:
    """A client and workers on a Postgres of the test's own, with notifications through Redis."""
    stage = Stage(dsn, notify=RedisNotify(redis_url, namespace=namespace))
    yield stage
    await stage.close()


@pytest.fixture
async def silent(stage: Stage, redis_url: str) -> AsyncIterator[Stage]:
    """A client of the same database whose notifications nobody hears."""
    silent = Stage(stage.dsn, notify=RedisNotify(redis_url, namespace="elsewhere"))
    yield silent
    await silent.close()


async def listens(stage: Stage) -> None:
    """Wait until the adapter hears. Nobody waits for a chain yet, so this topic is joined last, and tells of it."""
    heard = Heard()
    subscription = stage.client.notify.subscribe(Topic.CHAINS, heard)
    heard.wait_for_wildcard()
    subscription.close()


async def test_a_worker_that_never_polls_is_woken(stage: Stage) -> None:
    stage.handles(number, echo)
    async with stage.worker(poll_interval=NEVER):
        await stage.log.wait_for(WorkerStarted)
        await listens(stage)
        for value in range(5):
            chain = await stage.client.start_chain(number, value)
            assert await in_time(chain.result()) == value


async def test_a_plain_message_wakes_it(stage: Stage, silent: Stage, redis_url: str, namespace: str) -> None:
    stage.handles(number, echo)
    async with stage.worker(poll_interval=NEVER):
        await listens(stage)
        await silent.client.start_chain(number, 1)
        with redis.Redis.from_url(redis_url) as client:
            client.publish(f"{{queuert:{namespace}}}:notify:jobs", "number")
        await stage.log.wait_for(AttemptCompleted)


async def test_it_looks_once_when_its_connection_was_lost(stage: Stage, silent: Stage, redis_url: str) -> None:
    stage.handles(number, echo)
    async with stage.worker(poll_interval=NEVER):
        await listens(stage)
        await silent.client.start_chain(number, 1)
        with redis.Redis.from_url(redis_url) as client:
            client.client_kill_filter(_type="pubsub")
        await stage.log.wait_for(AttemptCompleted)
        await stage.log.wait_for(ListenerRestored)
