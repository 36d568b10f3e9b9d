"""A primary that dies, and a standby that takes its place: what is lost is bounded, and the rest goes on by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import TypeVar

import psycopg
import pytest

from queuert import (
    AsyncClient,
    Attempt,
    InProcessWorker,
    LeasePolicy,
    NewChain,
    Outcome,
    PostgresState,
    Processors,
    migrations,
)
from queuert.embedded import EmbeddedServerError
from queuert.errors import ChainNotFoundError, LeaseLostError, StateUnavailableError
from queuert.observability.events import ListenerRestored
from queuert.testing.events import EventLog
from tests.conftest import server_is_missing
from tests.faults.application import AT_ONCE, EFFECT, JOB_TYPES, quick
from tests.faults.harness import FaultHarness
from tests.faults.standby import Pair
from tests.faults.test_restarted_server import MANY, Producer
from tests.support.waiting import START, WAIT, until

pytestmark = pytest.mark.fault

HELD = 5
"""The input of the job whose handler waits."""

T = TypeVar("T")


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    try:
        pair.start()
        migrations.upgrade(pair.primary.dsn())
        yield pair
    except EmbeddedServerError as error:
        server_is_missing(error)
    finally:
        pair.close()


@pytest.fixture
async def harness(pair: Pair) -> AsyncIterator[FaultHarness]:
    """The harness, on whichever server can be written to."""
    harness = FaultHarness(pair.address)
    try:
        yield harness
        harness.witness.connect()
        harness.witness.check()
    finally:
        await harness.close()


class Side:
    """A worker of one slot, whose handler waits when it comes to one of the jobs. Its leases last."""

    def __init__(self, name: str, address: str) -> None:
        self.log = EventLog()
        self.may_go = asyncio.Event()
        self.arrived: asyncio.Future[Attempt[int, int]] = asyncio.get_running_loop().create_future()
        self.refused: list[LeaseLostError] = []
        processors = Processors(JOB_TYPES, retry=AT_ONCE, lease=LeasePolicy())
        processors.handles(quick)(self._handle)
        self.client = AsyncClient(PostgresState(address), JOB_TYPES, observability=self.log)
        self.worker = InProcessWorker(self.client, processors, name=name, concurrency=1)

    async def _handle(self, attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.input == HELD:
            self.arrived.set_result(attempt)
            await self._held()
        try:
            async with attempt.complete() as tx:
                await tx.connection.execute(EFFECT, (attempt.job_id, attempt.number))
                return tx.finish(attempt.input)
        except LeaseLostError as error:
            self.refused.append(error)
            raise

    async def _held(self) -> None:
        """Insists on going on when it is cancelled."""
        waiting = asyncio.ensure_future(self.may_go.wait())
        while not waiting.done():
            with suppress(asyncio.CancelledError):
                await asyncio.shield(waiting)

    async def close(self) -> None:
        self.may_go.set()
        await self.worker.stop(shutdown_timeout=0)
        await self.client.aclose()


@pytest.fixture
async def before(harness: FaultHarness, pair: Pair) -> AsyncIterator[Side]:
    """A worker that works on the primary, and finds the standby when it is let."""
    side = Side("before", pair.address_by_gate)
    yield side
    await side.close()


@pytest.fixture
async def after(harness: FaultHarness) -> AsyncIterator[Side]:
    """A worker that comes later."""
    side = Side("after", harness.dsn)
    yield side
    await side.close()


async def fail_over(pair: Pair, harness: FaultHarness) -> None:
    """The primary dies, and the witness looks at its successor."""
    await asyncio.to_thread(pair.fail_over)
    await until(lambda: reconnected(harness), "the standby can be written to")


def reconnected(harness: FaultHarness) -> bool:
    """Whether the witness has found a server that can be written to."""
    try:
        harness.witness.connect()
    except psycopg.OperationalError:
        return False
    return True


async def repeated(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask a client whose connections broke with the primary, as often as it needs to find the other server."""
    async with asyncio.timeout(WAIT):
        while True:
            try:
                return await ask()
            except StateUnavailableError:
                await asyncio.sleep(0.01)


async def test_asynchronous(pair: Pair, harness: FaultHarness, before: Side, after: Side) -> None:
    """Lost is what was acknowledged after the last that the standby got, and a claim of that time is made again.

    The worker of the first claim has the same job under the same number of attempt: the token alone tells them apart.
    """
    chains = await harness.client.start_chains([NewChain(quick, number) for number in range(HELD + 1)])
    await asyncio.to_thread(pair.caught_up)
    pair.proxy.black_hole()
    await before.worker.start()
    for chain in chains[:HELD]:
        await chain.result(WAIT)
    old = await asyncio.wait_for(before.arrived, WAIT)
    late = await harness.client.start_chains([NewChain(quick, number) for number in range(10, 13)])

    pair.gate.refuse()
    await fail_over(pair, harness)
    found = set(harness.witness.rows("select id, status, attempt, lease_token from queuert.job"))
    assert found == {(chain.id, "ready", 0, None) for chain in chains}

    await after.worker.start()
    new = await asyncio.wait_for(after.arrived, WAIT)
    assert (new.job_id, new.number) == (old.job_id, old.number)
    pair.gate.heal()
    before.may_go.set()
    await until(lambda: before.refused, "the first claim is refused")
    after.may_go.set()
    found_again = await repeated(lambda: harness.client.get_chains(chains))
    assert [await chain.result(WAIT) for chain in found_again] == list(range(HELD + 1))
    assert sorted(row[0] for row in harness.witness.rows("select job_id from effect")) == sorted(c.id for c in chains)
    for chain in late:
        with pytest.raises(ChainNotFoundError):
            await harness.client.get_chain(chain.id)

    # Whoever was there before goes on with the new server, notifications included.
    await after.worker.stop()
    await before.log.wait_for(ListenerRestored)
    assert await (await harness.client.start_chain(quick, 20)).result(WAIT) == 20


async def test_synchronous(pair: Pair, harness: FaultHarness) -> None:
    """Nothing that was acknowledged is lost, and what was not was told to be in doubt."""
    await asyncio.to_thread(pair.wait_for_standby)
    processes = [harness.spawn(concurrency=10, poll_interval=0.1), harness.command("--concurrency", "10")]
    registered = "select count(*) from queuert.worker"
    await until(lambda: harness.witness.one(registered) == 2, "both have begun", START)
    producer = Producer(harness.dsn)
    await producer.more(MANY)
    pair.proxy.black_hole()
    # That is enough to connect, and then there is no answer however long it waits.
    impatient = AsyncClient(PostgresState(harness.dsn, answer_timeout=5.0), JOB_TYPES)
    async with impatient:
        with pytest.raises(StateUnavailableError):
            await impatient.start_chain(quick, 1, id="in doubt")
    await fail_over(pair, harness)
    await producer.more(MANY)
    await producer.stop()

    again = await repeated(lambda: harness.client.start_chain(quick, 1, id="in doubt"))
    assert await again.result(WAIT) == 1
    open_chains = "select count(*) from queuert.job where status <> 'completed'"
    await until(lambda: harness.witness.one(open_chains) == 0, "all chains are completed", 2 * WAIT)
    stored = {row[0] for row in harness.witness.rows("select id from queuert.job")}
    assert stored >= set(producer.acknowledged)
    effects = [row[0] for row in harness.witness.rows("select job_id from effect")]
    assert sorted(effects) == sorted(stored)
    assert not any(process.has_ended for process in processes)
