"""A primary that dies, and its standby that is promoted: losses are bounded, and everything else continues by
itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import TypeVar

import psycopg
import pytest

from queuert import AsyncClient, Attempt, InProcessWorker, NewChain, Outcome, PostgresState, Processors, migrations
from queuert.embedded import EmbeddedServerError
from queuert.errors import ChainNotFoundError, LeaseLostError, StateUnavailableError
from queuert.observability.events import ListenerRestored
from queuert.policies import LeasePolicy
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
    """Yield the harness, on the server that accepts writes."""
    harness = FaultHarness(pair.address)
    try:
        yield harness
        harness.witness.connect()
        harness.witness.check()
    finally:
        await harness.close()


class Side:
    """A worker of one slot, whose handler waits at one of the jobs. Its leases last long."""

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
            return await repeated(lambda: self._complete(attempt))
        except LeaseLostError as error:
            self.refused.append(error)
            raise

    async def _complete(self, attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.complete() as tx:
            await tx.connection.execute(EFFECT, (attempt.job_id, attempt.number))
            return tx.finish(attempt.input)

    async def _held(self) -> None:
        """Continue when it is cancelled."""
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
    """Return a worker that works on the primary, and that finds the standby once it is let through."""
    side = Side("before", pair.address_by_gate)
    yield side
    await side.close()


@pytest.fixture
async def after(harness: FaultHarness) -> AsyncIterator[Side]:
    """Return a worker that starts later."""
    side = Side("after", harness.dsn)
    yield side
    await side.close()


async def fail_over(pair: Pair, harness: FaultHarness) -> None:
    """Kill the primary, and connect the witness to the promoted standby."""
    await asyncio.to_thread(pair.fail_over)
    await until(lambda: reconnected(harness), "the standby can be written to")


def reconnected(harness: FaultHarness) -> bool:
    """Whether the witness has found a server that accepts writes."""
    try:
        harness.witness.connect()
    except psycopg.OperationalError:
        return False
    return True


async def repeated(ask: Callable[[], Awaitable[T]]) -> T:
    """Repeat a client's call until it has found the other server: its connections broke with the primary."""
    async with asyncio.timeout(WAIT):
        while True:
            try:
                return await ask()
            except StateUnavailableError:
                await asyncio.sleep(0.01)


@pytest.mark.quick
async def test_asynchronous(pair: Pair, harness: FaultHarness, before: Side, after: Side) -> None:
    """Writes acknowledged after the last one that the standby received are lost, and a claim among them is made again.

    The worker of the first claim has the same job with the same number of attempt: only the token distinguishes the
    two.
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

    # Clients and workers from before the failover continue with the new server, including notifications.
    await after.worker.stop()
    await before.log.wait_for(ListenerRestored)
    assert await (await harness.client.start_chain(quick, 20)).result(WAIT) == 20


async def test_synchronous(pair: Pair, harness: FaultHarness) -> None:
    """No acknowledged write is lost, and callers of the others got an unknown outcome."""
    await asyncio.to_thread(pair.wait_for_standby)
    processes = [harness.spawn(concurrency=10, poll_interval=0.1), harness.command("--concurrency", "10")]
    registered = "select count(*) from queuert.worker"
    await until(lambda: harness.witness.one(registered) == 2, "both have begun", START)
    producer = Producer(harness.dsn)
    await producer.more(MANY)
    pair.proxy.black_hole()
    # This is enough bytes to connect; then there is no answer, however long it waits.
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
