"""Workers and waiting clients on Postgres that are woken through Redis, and by nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis

from queuert.notify import Topic
from queuert.notify.redis import RedisNotify
from queuert.observability.events import AttemptCompleted, ListenerRestored, WorkerStarted
from tests.notify.support import Heard
from tests.support.harness import PostgresHarness
from tests.support.job_types import echo, number
from tests.support.waiting import in_time

NEVER = 3_600.0


@pytest.fixture
async def harness(dsn: str, redis_url: str, namespace: str) -> AsyncIterator[PostgresHarness]:
    """A client and workers on a Postgres of the test's own, with notifications through Redis."""
    harness = PostgresHarness(dsn, notify=RedisNotify(redis_url, namespace=namespace))
    yield harness
    await harness.close()


@pytest.fixture
async def silent(harness: PostgresHarness, redis_url: str) -> AsyncIterator[PostgresHarness]:
    """A client of the same database whose notifications nobody hears."""
    silent = PostgresHarness(harness.dsn, notify=RedisNotify(redis_url, namespace="elsewhere"))
    yield silent
    await silent.close()


async def listens(harness: PostgresHarness) -> None:
    """Wait until the adapter hears. Nobody waits for a chain yet, so this topic is joined last, and tells of it."""
    heard = Heard()
    subscription = harness.client.notify.subscribe(Topic.CHAINS, heard)
    heard.wait_for_wildcard()
    subscription.close()


async def test_a_worker_that_never_polls_is_woken(harness: PostgresHarness) -> None:
    harness.handles(number, echo)
    async with harness.worker(poll_interval=NEVER):
        await harness.log.wait_for(WorkerStarted)
        await listens(harness)
        for value in range(5):
            chain = await harness.client.start_chain(number, value)
            assert await in_time(chain.result()) == value


async def test_a_plain_message_wakes_it(
    harness: PostgresHarness, silent: PostgresHarness, redis_url: str, namespace: str
) -> None:
    harness.handles(number, echo)
    async with harness.worker(poll_interval=NEVER):
        await listens(harness)
        await silent.client.start_chain(number, 1)
        with redis.Redis.from_url(redis_url) as client:
            client.publish(f"{{queuert:{namespace}}}:notify:jobs", "number")
        await harness.log.wait_for(AttemptCompleted)


async def test_it_looks_once_when_its_connection_was_lost(
    harness: PostgresHarness, silent: PostgresHarness, redis_url: str
) -> None:
    harness.handles(number, echo)
    async with harness.worker(poll_interval=NEVER):
        await listens(harness)
        await silent.client.start_chain(number, 1)
        with redis.Redis.from_url(redis_url) as client:
            client.client_kill_filter(_type="pubsub")
        await harness.log.wait_for(AttemptCompleted)
        await harness.log.wait_for(ListenerRestored)
