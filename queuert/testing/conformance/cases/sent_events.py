"""Events that are sent to chains: taken once by a step that waits, never lost, kept within limits."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

from queuert.errors import ChainAlreadyClosedError, ChainNotFoundError, EventLimitError, LeaseLostError, StateError
from queuert.jobs import JobStatus
from queuert.run_at import RunAt
from queuert.state import AsyncStore, Capability
from queuert.state.steps import MAX_EVENT_BYTES, MAX_EVENTS, EventWait, NewEvent, NewStep, StepRecord
from queuert.state.types import ClaimedJob, Finish, FinishKind, TriggeredJob
from queuert.testing.conformance.builders import (
    ask,
    cancel,
    claim_one,
    complete,
    error_of,
    go_on,
    job,
    read,
    retry,
    started_and_claimed,
    stolen,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores


class _OnPurpose(Exception):
    """Raised inside a transaction to see it rolled back."""


def _event(id: str, name: str = "approved", payload: str = '"ada"') -> NewEvent:
    return NewEvent(id, name, payload)


def _wait(number: int = 1, event: str = "approved", timeout: float = 3600.0) -> EventWait:
    return EventWait(number, event, 1, event, timeout)


async def _sleeps(store: AsyncStore, held: ClaimedJob, wait: StepRecord) -> JobStatus:
    """End the attempt until the wait ends, and return the status of its job."""
    assert wait.waits
    run_at = RunAt(moment=wait.wake_at)
    [result] = await store.finish([Finish(held, FinishKind.SNOOZE, run_at=run_at, waits_for_event=wait.event)])
    assert result.written
    assert result.due_types == ("work",)
    return (await read(store, held.id)).status


@case()
async def sent_before_the_wait_are_taken_in_order(stores: Stores) -> None:
    """An event that was sent before the wait is taken by it: the first one of the name, once. Others are kept."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    sent = [
        await store.send_event(held.id, _event("1", "other", "0")),
        await store.send_event(held.id, _event("2", payload='{"a":[1.5,null,"ü\\n"]}')),
        await store.send_event(held.id, _event("3", payload="null")),
    ]
    assert [(one.written, one.chain_type, one.woken) for one in sent] == [(True, "work", ())] * 3
    first = await store.wait_for_event(held.lease, _wait())
    assert (first.number, first.name, first.event, first.waits) == (1, "approved", "approved", False)
    assert json.loads(first.result or "") == {"a": [1.5, None, "ü\n"]}
    assert await store.wait_for_event(held.lease, _wait()) == first
    second = await store.wait_for_event(held.lease, EventWait(2, "approved[2]", 1, "approved", 3600.0))
    assert (second.result, second.waits) == ("null", False)
    third = await store.wait_for_event(held.lease, EventWait(3, "approved[3]", 1, "approved", 3600.0))
    assert (third.result, third.waits, third.answered_at) == (None, True, None)
    assert await store.get_steps(held.id) == [first, second, third]


@case()
async def of_an_id_are_kept_once(stores: Stores) -> None:
    """An event whose id was sent to the chain before is not written, also after that was taken. Ids are of a chain."""
    store = await stores.open()
    held, other = await started_and_claimed(store, 2)
    assert (await store.send_event(held.id, _event("same"))).written
    assert not (await store.send_event(held.id, _event("same", "other", "1"))).written
    assert (await store.send_event(other.id, _event("same", payload="2"))).written
    assert not (await store.wait_for_event(held.lease, _wait())).waits
    assert not (await store.send_event(held.id, _event("same"))).written
    assert (await store.wait_for_event(held.lease, EventWait(2, "approved[2]", 1, "approved", 3600.0))).waits
    assert (await store.wait_for_event(other.lease, _wait())).result == "2"


@case()
async def wake_the_job_that_waits(stores: Stores) -> None:
    """A job that was snoozed until the end of its wait is due when its event is sent, and only then."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    wait = await store.wait_for_event(held.lease, _wait())
    assert wait.wake_at is not None
    assert 3590 < wait.seconds_left <= 3600
    assert await _sleeps(store, held, wait) is JobStatus.SCHEDULED
    assert (await read(store, held.id)).scheduled_at == wait.wake_at
    facts = await store.get_wait_facts(held.id)
    assert facts is not None
    assert (facts.event, facts.kept_events) == ("approved", ())
    assert (await store.send_event(held.id, _event("1", "other"))).woken == ()
    facts = await store.get_wait_facts(held.id)
    assert facts is not None
    assert facts.kept_events == ("other",)
    assert (await read(store, held.id)).status is JobStatus.SCHEDULED
    assert (await store.send_event(held.id, _event("2"))).woken == (TriggeredJob(held.id, "work"),)
    assert (await store.send_event(held.id, _event("3"))).woken == ()
    again = await claim_one(store)
    assert (again.id, again.counted_attempts) == (held.id, 1)
    taken = await store.wait_for_event(again.lease, _wait())
    assert (taken.result, taken.attempt, taken.wake_at) == ('"ada"', 1, wait.wake_at)
    facts = await store.get_wait_facts(held.id)
    assert facts is not None
    assert (facts.event, facts.kept_events) == (None, ("approved", "other"))


@case()
async def sent_between_wait_and_snooze_are_not_lost(stores: Stores) -> None:
    """An event that is sent after the wait was recorded and before the attempt has ended makes the job due at once."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    wait = await store.wait_for_event(held.lease, _wait())
    assert (await store.send_event(held.id, _event("1"))).woken == ()
    assert await _sleeps(store, held, wait) is JobStatus.READY
    again = await claim_one(store)
    assert (await store.wait_for_event(again.lease, _wait())).result == '"ada"'


@case()
async def do_not_wake_what_waits_for_another_reason(stores: Stores) -> None:
    """A job in the pause after a failed attempt stays in it, though its last step waits for the event."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await store.wait_for_event(held.lease, _wait())
    await store.finish([retry(held, delay=600.0)])
    assert (await store.send_event(held.id, _event("1"))).woken == ()
    assert (await read(store, held.id)).status is JobStatus.SCHEDULED


@case()
async def time_out(stores: Stores) -> None:
    """A wait whose timeout is over ends without an event and stays so; an event that was sent in time comes first."""
    store = await stores.open()
    held, other = await started_and_claimed(store, 2)
    over = await store.wait_for_event(held.lease, _wait(timeout=0.0))
    assert (over.result, over.waits) == (None, False)
    assert over.answered_at is not None
    await store.send_event(held.id, _event("late"))
    assert await store.wait_for_event(held.lease, _wait(timeout=0.0)) == over
    assert await store.get_steps(held.id) == [over]
    assert (await store.wait_for_event(held.lease, EventWait(2, "approved[2]", 1, "approved", 1.0))).result is not None
    await store.send_event(other.id, _event("early"))
    assert (await store.wait_for_event(other.lease, _wait(timeout=0.0))).result == '"ada"'


@case()
async def belong_to_the_chain(stores: Stores) -> None:
    """A later job of the chain takes what an earlier one did not; they are gone with the chain."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await store.send_event(held.id, _event("1"))
    await store.finish([go_on(held, job("work"))])
    following = await claim_one(store)
    assert (await store.send_event(held.id, _event("2", "other", "2"))).written
    assert (await store.wait_for_event(following.lease, _wait())).result == '"ada"'
    await store.delete_chains([held.id])
    await error_of(ChainNotFoundError, store.send_event(held.id, _event("3")))


@case()
async def of_closed_and_unknown_chains_are_refused(stores: Stores) -> None:
    """A closed chain takes no event, but tells of one that it has had; one that does not exist takes none, nor does the
    id of a later job."""
    store = await stores.open()
    done, cancelled, continued = await started_and_claimed(store, 3)
    await store.send_event(done.id, _event("1"))
    await store.finish([complete(done), cancel(cancelled)])
    following = job("work")
    await store.finish([go_on(continued, following)])
    for chain, status in (done, "completed"), (cancelled, "cancelled"):
        error = await error_of(ChainAlreadyClosedError, store.send_event(chain.id, _event("2")))
        assert error.status == status
    assert not (await store.send_event(done.id, _event("1"))).written, "it was sent before"
    for id in ("unknown", following.id):
        await error_of(ChainNotFoundError, store.send_event(id, _event("2")))
    await store.delete_chains([done.id])


@case()
async def waits_without_the_lease_are_refused(stores: Stores) -> None:
    """Without the lease nothing is recorded or taken; a number that another step has is refused."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await store.send_event(held.id, _event("1"))
    await error_of(LeaseLostError, store.wait_for_event(stolen(held).lease, _wait()))
    assert await store.get_steps(held.id) == []
    await store.record_step(held.lease, NewStep(1, "first", 1, "1"))
    await error_of(StateError, store.wait_for_event(held.lease, _wait(1)))
    assert [one.name for one in await store.get_steps(held.id)] == ["first"]
    assert (await store.wait_for_event(held.lease, _wait(2))).result == '"ada"'
    await store.cancel_chains([held.id], reason="enough")
    await error_of(LeaseLostError, store.wait_for_event(held.lease, _wait(3)))


@case()
async def are_limited(stores: Stores) -> None:
    """A chain keeps at most so many events and bytes; those that were taken do not count."""
    store = await stores.open()
    many, large = await started_and_claimed(store, 2)
    for number in range(MAX_EVENTS):
        assert (await store.send_event(many.id, _event(str(number), payload="1"))).written
    error = await error_of(EventLimitError, store.send_event(many.id, _event("more")))
    assert f"{MAX_EVENTS:,} events" in str(error)
    assert not (await store.send_event(many.id, _event("0"))).written
    await store.wait_for_event(many.lease, _wait())
    assert (await store.send_event(many.id, _event("more"))).written
    text = '"' + "ü" * (MAX_EVENT_BYTES // 4 - 1) + '"'
    assert (await store.send_event(large.id, _event("1", payload=text))).written
    assert (await store.send_event(large.id, _event("2", payload=text))).written
    error = await error_of(EventLimitError, store.send_event(large.id, _event("3")))
    assert "bytes" in str(error)


@case(Capability.USER_TRANSACTIONS)
async def sent_in_a_transaction_of_the_caller(stores: Stores) -> None:
    """In the caller's transaction the event is sent, and the job due, when that commits; not if it is rolled back."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    assert await _sleeps(store, held, await store.wait_for_event(held.lease, _wait())) is JobStatus.SCHEDULED
    with suppress(_OnPurpose):
        async with stores.user_transaction() as connection:
            await store.send_event(held.id, _event("1"), connection=connection)
            raise _OnPurpose
    assert await store.claim(ask("work")) == []
    async with stores.user_transaction() as connection:
        sent = await store.send_event(held.id, _event("1", payload="2"), connection=connection)
        assert sent.woken == (TriggeredJob(held.id, "work"),)
    again = await claim_one(store)
    assert (await store.wait_for_event(again.lease, _wait())).result == "2"


@case()
async def raced_by_waits(stores: Stores) -> None:
    """Of sends, waits and ends of attempts at the same time, each event is taken once and no job sleeps on."""
    store = await stores.open()
    number = 20
    held = await started_and_claimed(store, number)

    async def attempt(one: ClaimedJob) -> StepRecord | JobStatus:
        wait = await store.wait_for_event(one.lease, _wait())
        return await _sleeps(store, one, wait) if wait.waits else wait

    sends = (store.send_event(one.id, _event("1")) for one in held)
    ends = await asyncio.gather(*(attempt(one) for one in held), *sends)
    waiting = [one for one, end in zip(held, ends[:number], strict=True) if not isinstance(end, StepRecord)]
    claimed = await store.claim(ask("work", limit=number))
    assert {one.id for one in claimed} == {one.id for one in waiting}
    for one in claimed:
        assert (await store.wait_for_event(one.lease, _wait())).result == '"ada"'
