"""Servers and grounds for the attacks on the Redis store."""

from collections.abc import AsyncIterator, Iterator

import pytest
import redis

from queuert.ids import new_id
from queuert.state.redis import RedisState
from queuert.state.redis.async_store import AsyncRedisStore
from queuert.state.redis.settings import key_prefix
from queuert.testing.fault_proxy import FaultProxy
from queuert.testing.redis_scan import scan
from tests.redis.harness import Keys, RedisHarness


@pytest.fixture
async def harness(redis_url: str) -> AsyncIterator[RedisHarness]:
    """A namespace on the shared server. Afterwards it is whole, and nothing has happened that must never happen."""
    harness = RedisHarness(redis_url)
    try:
        yield harness
        await harness.stop()
        harness.check()
    finally:
        await harness.close()


@pytest.fixture
def proxy(redis_url: str) -> Iterator[FaultProxy]:
    """A proxy before the shared server, for some of the connections."""
    with FaultProxy.before(redis_url) as proxy:
        yield proxy


@pytest.fixture
async def state(redis_url: str) -> AsyncIterator[RedisState]:
    """The state of a namespace of its own, which is whole afterwards."""
    state = RedisState(redis_url, namespace=new_id(), answer_timeout=10.0)
    yield state
    with redis.Redis.from_url(redis_url) as client:
        assert scan(client, state.namespace) == []


@pytest.fixture
async def store(state: RedisState) -> AsyncIterator[AsyncRedisStore]:
    """An open store on that namespace."""
    store = state.async_store(max_connections=1)
    await store.open()
    yield store
    await store.aclose()


@pytest.fixture
def keys(state: RedisState, redis_url: str) -> Iterator[Keys]:
    """The keys of that namespace, to damage them and to look at them."""
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        yield Keys(client, key_prefix(state.namespace))
