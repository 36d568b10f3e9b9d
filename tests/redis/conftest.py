"""Servers and grounds for the attacks on the Redis store."""

from collections.abc import AsyncIterator, Iterator

import pytest

from queuert.testing.fault_proxy import FaultProxy
from tests.redis.ground import Ground


@pytest.fixture
async def ground(redis_url: str) -> AsyncIterator[Ground]:
    """A namespace on the shared server. Afterwards it is whole, and nothing has happened that must never happen."""
    ground = Ground(redis_url)
    try:
        yield ground
        await ground.stop()
        ground.check()
    finally:
        await ground.close()


@pytest.fixture
def proxy(redis_url: str) -> Iterator[FaultProxy]:
    """A proxy before the shared server, for some of the connections."""
    with FaultProxy.before(redis_url) as proxy:
        yield proxy
