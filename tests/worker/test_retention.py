"""Workers delete what need not be kept, by the handlers' retention and by each chain's own end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, NewChain, Processors
from queuert.errors import ConfigurationError, EventsLostError
from queuert.event_log import EventFilter
from queuert.observability.events import AttemptFailed, ChainsBecameStale, ChainsPruned, RetentionHookFailed
from queuert.policies import Keep, Retention
from queuert.state import async_unread
from queuert.state.paging import PageRequest
from queuert.state.webhooks import DISPATCHER, DISPATCHER_CURSOR, WebhookWrite
from queuert.worker import maintenance, pruning
from tests.support.harness import PostgresHarness
from tests.support.job_types import AT_ONCE, JOB_TYPES, anything, echo, number, relay, text
from tests.support.waiting import WAIT, until

NONE = Keep(count=0)


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    """A worker looks at once again."""
    before = maintenance.INTERVAL, maintenance._MAX_FIRST_PAUSE
    maintenance.INTERVAL, maintenance._MAX_FIRST_PAUSE = 0.01, 0.01
    yield
    maintenance.INTERVAL, maintenance._MAX_FIRST_PAUSE = before


def left(harness: PostgresHarness) -> set[str]:
    return {row[0] for row in harness.rows("select id from queuert.job")}


def reported(harness: PostgresHarness) -> int:
    """How many chains went, by what workers told."""
    return sum(event.count for event in harness.log.of(ChainsPruned))


async def test_what_the_handlers_do_not_keep(harness: PostgresHarness) -> None:
    """By outcome, and by the type that the chain began with."""

    async def fails(attempt: Attempt[Any, Any]) -> Any:
        return attempt.fail("on purpose")

    async def goes_on(attempt: Attempt[Any, Any]) -> Any:
        return attempt.continue_with(number, 1)

    processors = Processors(JOB_TYPES, retry=AT_ONCE, retention=Retention(completed=NONE))
    processors.handles(number)(echo)
    processors.handles(anything)(fails)
    processors.handles(text, retention=Retention(failed=NONE))(echo)
    processors.handles(relay, retention=Retention(failed=NONE))(goes_on)
    ids = ["completed", "failed", "own rule", "began otherwise"]
    async with harness.worker(processors) as worker:
        await harness.client.start_chain(number, 1, id="completed")
        await harness.client.start_chain(anything, 1, id="failed")
        await harness.client.start_chain(text, "a", id="own rule")
        await harness.client.start_chain(relay, 1, id="began otherwise")
        pruned = await harness.log.wait_for(ChainsPruned)
        assert (pruned.worker, pruned.count, pruned.chain_ids) == (worker.name, 1, ("completed",))
        waited = [await harness.client.get_chain(id) for id in ids[1:]]
        await harness.client.wait(waited, timeout=WAIT)
    assert set(ids[1:]) <= left(harness)
    assert "completed" not in left(harness)


async def test_chains_that_begin_with_a_job_that_a_client_completes(harness: PostgresHarness) -> None:
    """Any worker that knows the type prunes them, as the type says: no handler could say it."""
    approve = JobType("approve", input=int, output=int, completed_by="client", retention=Retention(completed=NONE))
    answer = JobType("answer", input=int, output=int, completed_by="client")
    job_types = JobTypes(number, approve, answer)
    processors = Processors(job_types)
    processors.handles(number)(echo)
    async with AsyncClient(harness.state, job_types, observability=harness.log) as client:
        for type in (approve, answer):
            await client.complete_chain(await client.start_chain(type, 1, id=type.name), 2)
        async with InProcessWorker(client, processors):
            assert (await harness.log.wait_for(ChainsPruned)).chain_ids == ("approve",)
    assert left(harness) == {"answer"}


async def test_what_has_expired_goes_whoever_handles_it(harness: PostgresHarness) -> None:
    """The TTL is the chain's: any worker deletes it, with or without a retention, of types that it does not know."""
    harness.handles(number, echo)
    async with harness.worker():
        kept = await harness.client.start_chain(number, 1, result_ttl=3_600)
        assert await kept.result(WAIT) == 1
        gone = await harness.client.start_chain(text, "nobody handles it", result_ttl=0.001)
        await harness.client.cancel_chain(gone.id)
        await until(lambda: gone.id not in left(harness), "the expired chain is deleted")
    assert left(harness) == {kept.id}


async def test_many_pages(harness: PostgresHarness) -> None:
    """More than one look has, behind more than one look has that stay: all of it goes, in one walk."""
    harness.handles(number, echo, retention=Retention(completed=Keep(count=5)))
    harness.rows(
        "insert into queuert.job (id, chain_id, type, chain_type, chain_status, chain_closed_at, status, input, output,"
        " expires_at) select id, id, 'number', 'number', 'completed', now(), 'completed', '1', '1',"
        " case when id <= '1200' then now() + interval '1 hour' end"
        " from (select to_char(n, 'FM0000') as id from generate_series(1, 3700) as n) as ids"
    )
    async with harness.worker():
        await until(lambda: len(left(harness)) == 1_205, "all but those are deleted")
        # A moment later: a worker that stops before it hears of what was deleted does not tell.
        await until(lambda: reported(harness) >= 2_495, "all that went is told of")
    assert reported(harness) == 2_495
    assert len(left(harness)) == 1_205


async def test_two_workers(harness: PostgresHarness) -> None:
    """Each chain is deleted once."""
    harness.handles(number, echo, retention=Retention(completed=NONE))
    async with harness.worker(), harness.worker(name="second"):
        chains = await harness.client.start_chains([NewChain(number, value) for value in range(50)])
        await until(lambda: not left(harness), "all are deleted")
        await until(lambda: reported(harness) >= len(chains), "all that went is told of")
    assert reported(harness) == len(chains)


async def test_a_job_that_is_retried_after_its_blocker_went(harness: PostgresHarness) -> None:
    """It cannot find what it waited for, and says so, rather than run without it."""
    calls: list[int] = []

    async def fails(attempt: Attempt[Any, Any]) -> Any:
        calls.append(len(attempt.blockers))
        return attempt.fail("on purpose")

    harness.handles(number, echo, retention=Retention(completed=NONE))
    harness.handles(anything, fails)
    # Before there is a worker, which would delete the blocker as soon as nothing waits for it.
    blocker = await harness.client.start_chain(number, 1)
    chain = await harness.client.start_chain(anything, 1, blockers=[blocker])
    async with harness.worker():
        await chain.wait(WAIT)
        await until(lambda: blocker.id not in left(harness), "the blocker is deleted")
        await harness.client.retry_chain(chain)
        await until(lambda: len(harness.log.of(AttemptFailed)) == 2, "the job has failed again")
    assert calls == [1]
    error = (await harness.job(chain.id)).last_error
    assert error is not None
    assert (error.kind, "not kept any more" in error.message) == ("blocker_failed", True)


def test_what_is_refused() -> None:
    wrong: Any = Keep(count=1)
    with pytest.raises(ConfigurationError, match="Retention"):
        Processors(JOB_TYPES, retention=wrong)
    with pytest.raises(ConfigurationError, match="Retention"):
        Processors(JOB_TYPES).handles(number, retention=wrong)


# --- stale, then deleted, with hooks ----------------------------------------------------------------------------------

STALE = Keep(count=0, stale_for=0.001)


async def test_hooks_run_before_a_chain_is_stale_and_before_it_is_deleted(harness: PostgresHarness) -> None:
    """In this order, a coroutine and a plain function alike; both see the chain and its output."""
    called: list[tuple[str, str, Any, bool]] = []

    async def before_stale(chain: Any) -> None:
        called.append(("stale", chain.id, chain.output, chain.stale_at is not None))

    def before_delete(chain: Any) -> None:
        called.append(("delete", chain.id, chain.output, chain.stale_at is not None))

    harness.handles(
        number, echo, retention=Retention(completed=STALE, before_stale=before_stale, before_delete=before_delete)
    )
    async with harness.worker():
        chain = await harness.client.start_chain(number, 7)
        await until(lambda: not left(harness), "it is deleted")
        await until(lambda: reported(harness) == 1, "it is reported")
    # A worker that dies between a hook and the write calls the hook again; this one did not.
    assert called == [("stale", chain.id, 7, False), ("delete", chain.id, 7, True)]
    [stale] = harness.log.of(ChainsBecameStale)
    assert (stale.count, stale.chain_ids) == (1, (chain.id,))


async def test_a_hook_holds_a_chain_back(harness: PostgresHarness) -> None:
    """As long as it says so, this one alone; one that raises or hangs does the same, and observers are told."""
    let_go = False

    async def before_delete(chain: Any) -> bool | None:
        if chain.id == "raises":
            raise ValueError("no bucket")
        if chain.id == "hangs":
            await asyncio.sleep(WAIT)
        return chain.id == "goes" or let_go

    harness.handles(number, echo, retention=Retention(completed=NONE, before_delete=before_delete))
    pruning.HOOK_TIMEOUT, before = 0.01, pruning.HOOK_TIMEOUT
    try:
        async with harness.worker():
            for id in ("goes", "held", "raises", "hangs"):
                await harness.client.start_chain(number, 1, id=id)
            await until(lambda: left(harness) == {"held", "raises", "hangs"}, "one is deleted")
            await until(lambda: {"raises", "hangs"} <= failed_hooks(harness).keys(), "the failures are reported")
            let_go = True
            await until(lambda: left(harness) == {"raises", "hangs"}, "the one that was held is deleted")
    finally:
        pruning.HOOK_TIMEOUT = before
    assert failed_hooks(harness) == {"raises": "ValueError", "hangs": "TimeoutError"}


async def test_what_webhooks_have_still_to_read_is_not_deleted(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attributes and webhooks of a chain are read with its events, so it stays until the dispatcher has read these."""
    monkeypatch.setattr(async_unread, "_OUT_OF_ORDER", timedelta(0))
    monkeypatch.setattr(async_unread, "_CLOCKS", timedelta(0))
    harness.handles(number, echo, retention=Retention(completed=NONE))
    store = harness.client.state.async_store()
    await store.open()

    async def has_read_all(tag: str, expected: str | None) -> None:
        body = json.dumps({"cursor": (await store.event_log_end()).cursor, "holder": None})
        assert await store.put_webhook_record(WebhookWrite(DISPATCHER, DISPATCHER_CURSOR, body, tag, expected))

    first = await harness.client.start_chain(number, 1)
    await harness.client.complete_chain(first, 1)
    await has_read_all("one", None)
    second = await harness.client.start_chain(number, 2)
    await harness.client.complete_chain(second, 2)
    async with harness.worker():
        await until(lambda: left(harness) == {second.id}, "what was read is deleted")
        await has_read_all("two", "one")
        await until(lambda: not left(harness), "the other one is deleted as well")
    await store.aclose()


async def test_lost_events_hold_nothing_but_those_that_the_log_still_has_do(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_unread, "_OUT_OF_ORDER", timedelta(0))
    store = harness.client.state.async_store()
    await store.open()
    await harness.client.start_chain(number, 1)
    first = (await store.list_events(EventFilter(), PageRequest(1, None, oldest_first=True))).items[0]
    body = json.dumps({"cursor": first.cursor, "holder": None})
    assert await store.put_webhook_record(WebhookWrite(DISPATCHER, DISPATCHER_CURSOR, body, "one", None))
    second = await harness.client.start_chain(number, 2)
    await harness.client.start_chain(number, 3)
    harness.rows(
        """WITH newest AS (SELECT tx FROM queuert.job_event WHERE chain_id = %s),
                gone AS (DELETE FROM queuert.job_event WHERE tx <= (SELECT tx FROM newest))
           UPDATE queuert.event_log SET dropped_tx = (SELECT tx FROM newest)""",
        second.id,
    )
    with pytest.raises(EventsLostError):
        await store.list_events(EventFilter(), PageRequest(1, first.cursor, oldest_first=True))
    left_over = (await store.list_events(EventFilter(), PageRequest(1, None, oldest_first=True))).items[0]
    assert await async_unread.unread_since(store) == left_over.happened_at
    await store.aclose()


def failed_hooks(harness: PostgresHarness) -> dict[str, str | None]:
    """The chains whose hook failed, and how."""
    return {event.chain_id: event.error.type for event in harness.log.of(RetentionHookFailed)}


def test_hooks_are_functions() -> None:
    with pytest.raises(ConfigurationError, match="before_stale must be a function of a chain, got 1"):
        Retention(before_stale=1)  # type: ignore[arg-type]
    wrong: tuple[Any, ...] = (lambda: None, lambda chain, client: None, lambda *, chain: None)
    for hook in wrong:
        with pytest.raises(ConfigurationError, match="before_delete must be a function of a chain, but its parameters"):
            Retention(before_delete=hook)
    right: tuple[Any, ...] = (lambda *chains: None, lambda chain, client=None: None, [].append, print)
    assert all(Retention(before_delete=hook).before_delete is hook for hook in right)
    with pytest.raises(ConfigurationError, match="stale_for must be seconds or a timedelta, above 0"):
        Keep(count=0, stale_for=0)
    assert str(Retention(completed=Keep(age=3_600, count=2, stale_for=86_400))).startswith(
        "completed for 1 hour, the last 2, then stale for 1 day; failed"
    )
