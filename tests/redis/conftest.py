"""Servers and grounds for the attacks on the Redis store."""

from collections.abc import AsyncIterator, Iterator

import pytest

from queuert.testing.fault_proxy import FaultProxy
from tests.redis.harness import RedisHarness


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
