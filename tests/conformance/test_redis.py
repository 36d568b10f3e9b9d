"""Redis honours the contract of a state adapter."""

from collections.abc import Iterator

import pytest
import redis

from queuert.embedded import EmbeddedRedis
from queuert.ids import new_id
from queuert.state.redis import RedisState
from queuert.testing.conformance.pytest_plugin import conformance_tests
from queuert.testing.redis_scan import scan

pytestmark = pytest.mark.every_case


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def state(server: EmbeddedRedis) -> Iterator[RedisState]:
    """Whatever a case does, it leaves the namespace whole."""
    state = RedisState(server.url(), namespace=new_id(), answer_timeout=10.0)
    yield state
    with redis.Redis.from_url(server.url()) as client:
        assert scan(client, state.namespace) == []


test_redis = conformance_tests("state")
