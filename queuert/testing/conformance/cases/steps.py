"""Steps of jobs: recorded under the lease, read by later attempts, deleted with their job; and snoozes."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from queuert.errors import LeaseLostError, StateError
from queuert.jobs import AbortReason, JobStatus
from queuert.run_at import RunAt
from queuert.state import AsyncStore, Capability
from queuert.state.steps import NewStep, StepRecord
from queuert.state.types import ClaimedJob, Finish, FinishResult, PruneRequest
from queuert.testing.conformance.builders import (
    ask,
    cancel,
    claim_one,
    complete,
    error_of,
    eventually,
    fail,
    go_on,
    job,
    lost_to_reaper,
    read,
    retry,
    snooze,
    started_and_claimed,
    stolen,
    wait,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores

_NEEDS = Capability.USER_TRANSACTIONS
_LATER = RunAt(moment=datetime(2100, 1, 2, 3, 4, 5, 6, tzinfo=UTC))


class _OnPurpose(Exception):
    """Raised inside a transaction to see it rolled back."""


def _step(number: int, name: str = "", result: str | None = '"done"', **more: object) -> NewStep:
    return NewStep(number, name or f"step{number}", 1, result, **more)  # type: ignore[arg-type]


async def _names(store: AsyncStore, id: str) -> list[str]:
    return [one.name for one in await store.get_steps(id)]


@case()
async def are_read_back_in_order(stores: Stores) -> None:
    """Steps come back as they were recorded, by number: names and results with any characters, null too."""
    store = await stores.open()
    held, other = await started_and_claimed(store, 2)
    results = ['{"a":[1,2.5,null],"b":"naïve \U0001f4e6\\n"}', "null", "[]", '""']
    recorded = [
        await store.record_step(held.lease, _step(number, f"step[{number}\n'ü\"]", result))
        for number, result in enumerate(results, 1)
    ]
    assert [(one.number, one.name, one.attempt) for one in recorded] == [
        (number, f"step[{number}\n'ü\"]", 1) for number in range(1, 5)
    ]
    found = await store.get_steps(held.id)
    assert found == recorded
    assert [_compact(one) for one in found] == results
    assert [(one.wake_at, one.seconds_left) for one in found] == [(None, 0.0)] * 4
    assert held.started_at <= found[0].recorded_at <= found[3].recorded_at
    assert await store.get_steps(other.id) == await store.get_steps("unknown") == []


def _compact(step: StepRecord) -> str:
    return json.dumps(json.loads(step.result or ""), separators=(",", ":"), ensure_ascii=False)


@case()
async def of_more_than_ten_stay_in_order(stores: Stores) -> None:
    """The tenth step comes after the ninth, not after the first."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    for number in range(1, 13):
        await store.record_step(held.lease, _step(number))
    assert await _names(store, held.id) == [f"step{number}" for number in range(1, 13)]


@case()
async def of_a_lost_lease_are_refused(stores: Stores) -> None:
    """Without the lease no step is recorded, and the reason is said."""
    store = await stores.open()
    reasons: list[tuple[Callable[[ClaimedJob], Finish], AbortReason]] = [
        (complete, AbortReason.ALREADY_COMPLETED),
        (fail, AbortReason.ALREADY_COMPLETED),
        (retry, AbortReason.ALREADY_COMPLETED),
        (cancel, AbortReason.ALREADY_COMPLETED),
    ]
    for end, reason in reasons:
        [held] = await started_and_claimed(store, type=f"end{len(end.__name__)}{end.__name__}")
        await store.record_step(held.lease, _step(1))
        await store.finish([end(held)])
        error = await error_of(LeaseLostError, store.record_step(held.lease, _step(2)))
        assert (error.job_id, error.reason) == (held.id, reason)
        assert await _names(store, held.id) == ["step1"]
    lost = await lost_to_reaper(store)
    await error_of(LeaseLostError, store.record_step(lost.lease, _step(1)))
    again = await claim_one(store)
    for lease in (lost.lease, stolen(again).lease):
        error = await error_of(LeaseLostError, store.record_step(lease, _step(1)))
        assert error.reason == AbortReason.TAKEN_BY_ANOTHER_WORKER
    assert await store.get_steps(again.id) == []
    await store.cancel_chains([again.id], reason="x")
    error = await error_of(LeaseLostError, store.record_step(again.lease, _step(1)))
    assert error.reason == AbortReason.CANCELLED
    await store.delete_chains([again.id])
    error = await error_of(LeaseLostError, store.record_step(again.lease, _step(1)))
    assert error.reason == AbortReason.NOT_FOUND


@case()
async def with_a_number_twice_are_refused(stores: Stores) -> None:
    """A number is recorded once: the first result stays."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await store.record_step(held.lease, _step(1, "first", "1"))
    await error_of(StateError, store.record_step(held.lease, _step(1, "second", "2")))
    assert [(one.name, one.result) for one in await store.get_steps(held.id)] == [("first", "1")]
    await store.record_step(held.lease, _step(2, "second", "2"))
    assert await _names(store, held.id) == ["first", "second"]


@case()
async def survive_attempts(stores: Stores) -> None:
    """The next attempt reads them after each way in which an attempt leaves its chain open, and adds to them."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await store.record_step(held.lease, _step(1))
    ends: list[Callable[[ClaimedJob], Finish]] = [retry, snooze, lambda one: wait(one, job("child"))]
    for number, end in enumerate(ends, 2):
        await store.finish([end(held)])
        if end is ends[-1]:
            await store.finish([complete(await claim_one(store, "child"))])
        held = await claim_one(store)
        assert held.attempt == number
        await store.record_step(held.lease, NewStep(number, f"step{number}", held.attempt, "1"))
    assert [(one.name, one.attempt) for one in await store.get_steps(held.id)] == [
        (f"step{number}", number) for number in range(1, 5)
    ]


@case()
async def survive_a_retried_chain(stores: Stores) -> None:
    """A chain that is retried goes on after its steps, in an attempt whose number is not 1."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await store.record_step(held.lease, _step(1))
    await store.finish([fail(held)])
    await store.retry_chains([held.id])
    again = await claim_one(store)
    assert again.attempt == 2
    assert await _names(store, held.id) == ["step1"]


@case()
async def end_with_their_job(stores: Stores) -> None:
    """They are kept when the job ends, and deleted with it; an id that is used again has none."""
    store = await stores.open()
    for deletes in (True, False):
        [held] = await started_and_claimed(store, id="a", result_ttl=None if deletes else 0.001)
        await store.record_step(held.lease, _step(1))
        await store.finish([go_on(held, job("next", id="b"))])
        following = await claim_one(store, "next")
        await store.record_step(following.lease, _step(1, "other"))
        assert (await _names(store, "a"), await _names(store, "b")) == (["step1"], ["other"])
        await store.finish([complete(following)])
        if deletes:
            assert (await _names(store, "a"), await _names(store, "b")) == (["step1"], ["other"])
            await store.delete_chains(["a"])
        else:

            async def pruned() -> bool:
                return bool((await store.prune(PruneRequest())).chain_ids)

            await eventually(pruned)
        assert await store.get_steps("a") == await store.get_steps("b") == []
    [again] = await started_and_claimed(store, id="a")
    await store.record_step(again.lease, _step(1, "anew"))
    assert await _names(store, "a") == ["anew"]


@case()
async def that_sleep_have_an_end(stores: Stores) -> None:
    """A sleep ends at a moment, or so long after it was recorded; what is left of it is by the store's clock."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    sleeps = [_LATER, RunAt(delay=3600.0), RunAt(delay=0.0), RunAt(moment=datetime(2020, 1, 1, tzinfo=UTC))]
    for number, wake_at in enumerate(sleeps, 1):
        await store.record_step(held.lease, _step(number, result=None, wake_at=wake_at))
    moment, delay, none, past = await store.get_steps(held.id)
    assert moment.wake_at == _LATER.moment and moment.seconds_left > 3600.0
    assert delay.wake_at is not None and delay.result is None
    assert abs((delay.wake_at - delay.recorded_at) - timedelta(hours=1)) < timedelta(seconds=1)
    assert 0 < delay.seconds_left <= 3600.0
    assert none.seconds_left == past.seconds_left == 0.0
    assert none.wake_at is not None and past.wake_at == sleeps[3].moment


@case(_NEEDS)
async def commit_with_rows_of_the_caller(stores: Stores) -> None:
    """In a transaction the step and the caller's row are committed together, or neither; the job goes on."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    async with store.transaction(held) as transaction:
        await stores.user_data.add(transaction.connection, "mine")
        recorded = await transaction.record_step(_step(1, result="[1]"))
        assert await store.get_steps(held.id) == []
    assert await store.get_steps(held.id) == [recorded]
    error = _OnPurpose()

    async def block() -> None:
        async with store.transaction(held) as transaction:
            await stores.user_data.add(transaction.connection, "other")
            await transaction.record_step(_step(2))
            raise error

    assert await error_of(_OnPurpose, block()) is error
    assert await _names(store, held.id) == ["step1"]
    assert await stores.user_data.keys() == {"mine"}
    await store.record_step(held.lease, _step(2))
    assert (await store.finish([complete(held)]))[0].written


@case()
async def snooze_makes_due_later(stores: Stores) -> None:
    """SNOOZE makes the job due at its time, or at once if that has passed; it does not count, and is no failure."""
    store = await stores.open()
    [held] = await started_and_claimed(store, priority=3)
    for run_at in (RunAt(delay=0.0), RunAt(moment=datetime(2020, 1, 1, tzinfo=UTC))):
        assert await store.finish([snooze(held, run_at)]) == [FinishResult(held.id, due_types=("work",))]
        found = await read(store, held.id)
        assert (found.status, found.uncounted, found.attempt) == (JobStatus.READY, held.attempt, held.attempt)
        assert found.scheduled_at >= held.started_at
        held = await claim_one(store)
    assert (held.attempt, held.counted_attempts, held.rank) == (3, 1, -3)
    assert await store.finish([snooze(held, _LATER)]) == [FinishResult(held.id, due_types=("work",))]
    found = await read(store, held.id)
    assert (found.status, found.scheduled_at, found.uncounted) == (JobStatus.SCHEDULED, _LATER.moment, 3)
    assert (found.failures, found.last_error) == ((), None)
    assert await store.claim(ask("work")) == []
    assert await store.finish([snooze(held, _LATER)]) == [FinishResult(held.id)]
    assert (await store.finish([snooze(stolen(held))]))[0].lost is AbortReason.TAKEN_BY_ANOTHER_WORKER
    [triggered] = await store.trigger_jobs([held.id])
    assert triggered.id == held.id
    again = await claim_one(store)
    await store.finish([snooze(again, RunAt(delay=3600.0))])
    found = await read(store, held.id)
    assert found.status is JobStatus.SCHEDULED
    assert timedelta(hours=1) <= found.scheduled_at - again.started_at < timedelta(hours=2)


@case()
async def snooze_among_others(stores: Stores) -> None:
    """SNOOZE can be written in a batch with other kinds, and in a transaction."""
    store = await stores.open()
    held = await started_and_claimed(store, 3)
    assert [one.written for one in await store.finish([complete(held[0]), snooze(held[1]), retry(held[2])])] == [
        True
    ] * 3
    statuses = [(await read(store, one.id)).status for one in held]
    assert statuses == [JobStatus.COMPLETED, JobStatus.READY, JobStatus.READY]
    [inside] = await started_and_claimed(store, type="inside")
    async with store.transaction(inside) as transaction:
        assert (await transaction.finish(snooze(inside, _LATER))).written
    assert (await read(store, inside.id)).scheduled_at == _LATER.moment
