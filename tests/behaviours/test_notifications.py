"""Several workers and callers on one store, with notifications from Postgres, notifications in the process, and none
at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from queuert import AsyncClient, Attempt, Client, NewChain
from queuert.jobs import AbortReason
from queuert.notify import Notification, Topic
from queuert.notify.in_process import InProcessNotify
from queuert.observability.events import AttemptAborted, AttemptStarted, JobReaped, WorkerStarted
from queuert.policies import LeasePolicy
from tests.behaviours.support import QUICK, CallerHarness
from tests.support.harness import NoNotifications
from tests.support.job_types import BRIEF, WATCHED, echo, first, last, middle, number, text, total
from tests.support.waiting import WAIT, Gate, in_time, until

NEVER_RENEWED = LeasePolicy(seconds=600)
"""Not within a test: only a notification can tell of the loss of such a lease."""


async def test_an_idle_worker_begins_soon(notify_harness: CallerHarness) -> None:
    """Nobody polls within the test where notifications arrive: it is the notification that wakes the worker."""
    notify_harness.handles(number, echo)
    async with notify_harness.worker():
        await notify_harness.log.wait_for(WorkerStarted)
        for value in range(3):
            assert await notify_harness.caller.result(await notify_harness.caller.start_chain(number, value)) == value


async def test_jobs_are_spread_over_workers(notify_harness: CallerHarness) -> None:
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> int:
        await gate.pass_through(attempt)
        return attempt.input

    notify_harness.handles(number, handler)
    workers = [notify_harness.worker(name=f"w{place}") for place in range(3)]
    for worker in workers:
        await worker.start()
    chains = await notify_harness.caller.start_chains([NewChain(number, value) for value in range(3)])
    for _ in chains:
        await gate.next()
    assert len({event.worker for event in notify_harness.log.of(AttemptStarted)}) == 3
    gate.open()
    assert [await notify_harness.caller.result(chain) for chain in chains] == [0, 1, 2]


async def test_blockers_of_another_workers_jobs(notify_harness: CallerHarness) -> None:
    """The end of a chain at one worker releases a job of another."""
    numbers, totals = notify_harness.new_processors(), notify_harness.new_processors()
    numbers.handles(number)(echo)
    totals.handles(total)(lambda attempt: sum(attempt.outputs_of(number)))
    async with notify_harness.worker(totals), notify_harness.worker(numbers):
        blockers = [await notify_harness.caller.start_chain(number, value) for value in (1, 2, 3)]
        chain = await notify_harness.caller.start_chain(total, "sum", blockers=blockers)
        assert await notify_harness.caller.result(chain) == 6


async def test_a_chain_over_several_workers(notify_harness: CallerHarness) -> None:
    """Each worker knows one type of the chain; the chain goes from one to the next."""
    one, two, three = notify_harness.new_processors(), notify_harness.new_processors(), notify_harness.new_processors()
    one.handles(first)(lambda attempt: attempt.continue_with(middle, attempt.input * 10))
    two.handles(middle)(lambda attempt: attempt.continue_with(last, attempt.input + 1))
    three.handles(last)(lambda attempt: str(attempt.input))
    async with notify_harness.worker(three), notify_harness.worker(two), notify_harness.worker(one):
        chains = await notify_harness.caller.start_chains([NewChain(first, value) for value in range(3)])
        assert [await notify_harness.caller.result(chain) for chain in chains] == ["1", "11", "21"]
    assert len({event.worker for event in notify_harness.log.of(AttemptStarted)}) == 3


@pytest.mark.parametrize(
    ("intervene", "reason"),
    [
        ("complete_chain", AbortReason.ALREADY_COMPLETED),
        ("cancel_chain", AbortReason.CANCELLED),
        ("delete_chain", AbortReason.NOT_FOUND),
    ],
)
async def test_a_handler_learns_what_was_done_from_outside(
    notify_harness: CallerHarness, intervene: str, reason: AbortReason
) -> None:
    """By a notification; without any, at the next renewal of its lease."""
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> int:
        await gate.pass_through(attempt)
        return attempt.input

    lease = WATCHED if isinstance(notify_harness.notify, NoNotifications) else NEVER_RENEWED
    notify_harness.handles(number, handler, lease=lease)
    chain = await notify_harness.caller.start_chain(number, 1)
    async with notify_harness.worker():
        await gate.next()
        await getattr(notify_harness.caller, intervene)(*[chain, 7][: 2 if intervene == "complete_chain" else 1])
        await notify_harness.log.wait_for(AttemptAborted, job_id=chain.id, reason=reason)


@pytest.mark.parametrize("notify_harness", ["postgres", "in process"], indirect=True)
async def test_a_holder_whose_lease_was_reaped_is_reported(notify_harness: CallerHarness) -> None:
    """Long before its next renewal; the next attempt is another worker's, or its own."""
    gate, reported = Gate(), asyncio.Event()

    async def handler(attempt: Attempt[int, int]) -> int:
        await (gate.pass_through(attempt) if attempt.number == 1 else reported.wait())
        return attempt.number

    slow, quick = notify_harness.new_processors(), notify_harness.new_processors()
    slow.handles(number, lease=NEVER_RENEWED)(handler)
    quick.handles(number, lease=NEVER_RENEWED)(handler)
    quick.handles(text, lease=BRIEF)(echo)  # its reaper looks as often as the shortest lease lasts
    chain = await notify_harness.caller.start_chain(number, 1)
    async with notify_harness.worker(slow, name="slow"):
        attempt = await gate.next()
        async with notify_harness.worker(quick, name="quick"):
            notify_harness.rows(
                "update queuert.job set lease_expires_at = now() - interval '1 second' where status = 'running'"
            )
            await notify_harness.log.wait_for(
                AttemptAborted, job_id=chain.id, reason=AbortReason.TAKEN_BY_ANOTHER_WORKER
            )
            assert attempt.abort.reason is AbortReason.TAKEN_BY_ANOTHER_WORKER
            reported.set()
            assert await notify_harness.caller.result(chain) == 2
    assert len(notify_harness.log.of(JobReaped, job_id=chain.id)) == 1


@pytest.mark.parametrize("notify_harness", ["in process"], indirect=True)
@pytest.mark.parametrize("slots", [1, 3])
async def test_running_jobs_are_not_reaped_by_their_own_worker(notify_harness: CallerHarness, slots: int) -> None:
    """However often its reaper looks, and for longer than a lease lasts."""
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> int:
        await gate.pass_through(attempt)
        return attempt.number

    # Short, since all of it must pass, and long enough for a renewal that is held up.
    notify_harness.handles(number, handler, lease=LeasePolicy(seconds=5.0, renew_every=0.2))
    chains = await notify_harness.caller.start_chains([NewChain(number, 0)] * slots)
    async with notify_harness.worker(concurrency=slots):
        for _ in chains:
            await gate.next()
        await until(
            lambda: notify_harness.rows("select min(clock_timestamp() - started_at) > '5.2 s' from queuert.job")[0][0],
            "the first lease would be over",
        )
        gate.open()
        assert [await notify_harness.caller.result(chain) for chain in chains] == [1] * slots
    assert notify_harness.log.of(JobReaped) == []


# --- notifications that cannot be relied upon
# ---------------------------------------------------------------------------------


class Unreliable(InProcessNotify):
    """Loses every other notification, doubles the rest, tells of what never happened, and says that all is well."""

    def __init__(self) -> None:
        super().__init__()
        self.published = 0

    def publish(self, topic: Topic, keys: Iterable[str]) -> None:
        self.published += 1
        if self.published % 2:
            return
        for reported in (list(keys), ["nobody", "knows", "this"], list(keys)):
            super().publish(topic, reported)

    def subscribe(self, topic: Topic, callback: Any) -> Any:
        callback(Notification(topic, None))
        callback(Notification(topic, frozenset({"nonsense"})))
        return super().subscribe(topic, callback)


async def test_unreliable_notifications(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything comes to its end, by polls where a notification is lost; nothing is done twice for a doubled one."""
    monkeypatch.setattr("queuert.client.async_waiting.POLL_WITH_NOTIFY", QUICK)
    notifications = Unreliable()
    caller_harness = CallerHarness(dsn, notify=notifications)
    caller_harness.handles(number, echo)
    caller_harness.handles(middle, lambda attempt: attempt.continue_with(last, attempt.input))
    caller_harness.handles(last, lambda attempt: str(attempt.input))
    caller_harness.handles(total, lambda attempt: sum(attempt.outputs_of(number)))
    try:
        async with (
            caller_harness.worker(poll_interval=QUICK),
            caller_harness.worker(poll_interval=QUICK, concurrency=3),
        ):
            numbers = [await caller_harness.caller.start_chain(number, value) for value in range(10)]
            sums = [await caller_harness.caller.start_chain(total, "x", blockers=numbers[:size]) for size in (1, 5, 10)]
            chains = [await caller_harness.caller.start_chain(middle, value) for value in range(5)]
            assert [await caller_harness.caller.result(chain) for chain in sums] == [0, 10, 45]
            assert [await caller_harness.caller.result(chain) for chain in chains] == ["0", "1", "2", "3", "4"]
    finally:
        await caller_harness.close()
    assert notifications.published > 5
    assert len(caller_harness.log.of(AttemptStarted)) == 10 + 3 + 2 * 5


class Vague(InProcessNotify):
    """Never says whom a notification concerns, as a carrier does that was cut off for a while."""

    def publish(self, topic: Topic, keys: Iterable[str]) -> None:
        if self.healthy:
            self._subscribers.dispatch(Notification(topic, None))


@pytest.fixture
async def vague_harness(dsn: str, mode: type[AsyncClient] | type[Client]) -> AsyncIterator[CallerHarness]:
    """A caller async and sync, whose notifications name no chain or job."""
    harness = CallerHarness(dsn, mode=mode, notify=Vague())
    yield harness
    await harness.close()


async def test_notifications_that_name_nobody_concern_everybody(vague_harness: CallerHarness) -> None:
    """Nobody polls within the test: who waits for a chain, for jobs, or holds a lease looks at all that is his."""
    gate = Gate()

    async def handler(attempt: Attempt[str, str]) -> str:
        await gate.pass_through(attempt)
        return attempt.input

    vague_harness.handles(number, echo)
    vague_harness.handles(text, handler, lease=NEVER_RENEWED)
    async with vague_harness.worker(poll_interval=3600.0, concurrency=2):
        await vague_harness.log.wait_for(WorkerStarted)
        # A wait looks once more at its own end: here that would be too late.
        requested = vague_harness.caller.result(await vague_harness.caller.start_chain(number, 1), 3 * WAIT)
        assert await in_time(requested) == 1
        chain = await vague_harness.caller.start_chain(text, "x")
        await gate.next()
        await vague_harness.caller.cancel_chain(chain)
        assert (await vague_harness.log.wait_for(AttemptAborted)).reason is AbortReason.CANCELLED
