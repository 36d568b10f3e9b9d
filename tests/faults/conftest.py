"""The harness of a test, and what the witness says of it afterwards."""

from collections.abc import AsyncIterator, Iterator

import pytest

from queuert.testing.fault_proxy import FaultProxy
from tests.faults.harness import FaultHarness
from tests.faults.roles import Role, role_in


@pytest.fixture
async def harness(dsn: str) -> AsyncIterator[FaultHarness]:
    """A database with a witness, and workers on it. Afterwards nothing has happened that must never happen."""
    harness = FaultHarness(dsn)
    try:
        yield harness
        harness.witness.check()
    finally:
        await harness.close()


@pytest.fixture
def proxy(dsn: str) -> Iterator[FaultProxy]:
    """A proxy before the test's database, for some of the connections."""
    with FaultProxy.before(dsn) as proxy:
        yield proxy


@pytest.fixture
def role(dsn: str) -> Iterator[Role]:
    """A role by which clients and workers connect, that things can be set for."""
    with role_in(dsn) as role:
        yield role
