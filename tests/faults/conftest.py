"""The harness of a test; afterwards the witness checks what happened."""

from collections.abc import AsyncIterator, Iterator

import pytest

from queuert.testing.fault_proxy import FaultProxy
from tests.faults.harness import FaultHarness
from tests.faults.roles import Role, role_in


@pytest.fixture
async def harness(dsn: str) -> AsyncIterator[FaultHarness]:
    """Yield a database with a witness, and workers on it; afterwards check the invariants."""
    harness = FaultHarness(dsn)
    try:
        yield harness
        harness.witness.check()
    finally:
        await harness.close()


@pytest.fixture
def proxy(dsn: str) -> Iterator[FaultProxy]:
    """Yield a proxy of the test's database, for some of the connections."""
    with FaultProxy.before(dsn) as proxy:
        yield proxy


@pytest.fixture
def role(dsn: str) -> Iterator[Role]:
    """Yield a role with settings of its own, by which clients and workers connect."""
    with role_in(dsn) as role:
        yield role
