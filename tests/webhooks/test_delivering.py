"""Deliveries: what is sent to whom, again until it is accepted, and each at least once."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from queuert import AsyncClient, ChainStatus, JobStatus, NewChain, PostgresState
from queuert.codecs import EncryptionCodec, PayloadFormat
from queuert.errors import (
    ChainNotFoundError,
    ConfigurationError,
    DatabaseMovedError,
    EventsLostError,
    RightMissingError,
    SchemaMissingError,
    StateError,
    StateUnavailableError,
)
from queuert.event_log import EventFilter, EventKind, JobEvent
from queuert.ids import new_token
from queuert.jobs import JobProgress
from queuert.observability.events import WebhookDisabled, WebhookEventSkipped, WebhookEventsLost
from queuert.state.paging import PageRequest
from queuert.state.types import NewJob
from queuert.state.webhooks import DISPATCHER, DISPATCHER_CURSOR, ENDPOINT, HEALTH, WebhookWrite
from queuert.webhooks import CHAIN_WEBHOOKS, ForbiddenTargetError, TargetPolicy, WebhookNotFoundError, endpoints
from queuert.webhooks.deliveries import KEY, event_body
from queuert.webhooks.endpoints import (
    DELIVERY_TYPE,
    FAILURES_TO_OPEN,
    WebhookCodec,
    WebhookHealth,
)
from queuert.worker.webhooks import WebhookDispatcher, WebhookSettings
from tests.codecs.secret import NEW_KEY
from tests.support.receiver import NO_CONTENT, status
from tests.support.waiting import START, WAIT, until
from tests.webhooks.deliveries import Deliveries, double, other


async def test_the_end_of_a_chain_is_delivered_once_and_signed(deliveries: Deliveries) -> None:
    made = await deliveries.webhook()
    await deliveries.work()
    chain = await deliveries.client.start_chain(double, 21)
    failed = await deliveries.client.start_chain(double, -1)
    attempts = await deliveries.attempted(made.webhook.id, 2)
    found = {one["data"]["chain_id"]: one for one in deliveries.received(made.secret)}
    assert {id: one["type"] for id, one in found.items()} == {chain.id: "chain.completed", failed.id: "chain.failed"}
    data = found[chain.id]["data"]
    assert (data["chain_type"], data["status"], data["attempt"]) == ("double", "completed", 1)
    assert "output" not in data
    assert "error" not in found[failed.id]["data"]
    assert {one.delivery_id for one in attempts} == set(deliveries.receiver.ids)
    assert all(one.delivered and one.status == 204 and one.attempt == 1 for one in attempts)
    assert all("." not in id for id in deliveries.receiver.ids)


async def test_what_a_webhook_delivers_is_chosen(deliveries: Deliveries) -> None:
    client = deliveries.client
    made = await deliveries.webhook(
        events=["chain.completed", "job.started"], job_types=[double], attributes={"user": 17}, payloads=True
    )
    all_failures = await deliveries.webhook(events=["chain.failed"], payloads=True)
    await client.start_chain(other, 1, attributes={"user": 17})
    await client.start_chain(double, 2, attributes={"user": 18})
    chosen = await client.start_chain(double, 3, attributes={"user": 17, "more": "x"})
    await client.start_chain(other, -4)
    await deliveries.work()
    await deliveries.attempted(made.webhook.id, 2)
    await deliveries.attempted(all_failures.webhook.id, 1)
    by_type = {}
    for request in deliveries.receiver.requests:
        webhook = made if made.webhook.id in request.headers["webhook-id"] else all_failures
        body = json.loads(request.body)
        by_type[body["type"], webhook.webhook.id] = body["data"]
    assert {key[0] for key in by_type} == {"job.started", "chain.completed", "chain.failed"}
    assert by_type["chain.completed", made.webhook.id]["chain_id"] == chosen.id
    assert by_type["chain.completed", made.webhook.id]["output"] == 6
    assert by_type["chain.failed", all_failures.webhook.id]["error"]["message"] == "below zero"


async def test_only_the_end_of_a_chain_tells_its_output(deliveries: Deliveries) -> None:
    """Whatever else is delivered at the same time, also to another webhook."""
    made = await deliveries.webhook(
        events=["chain.started", "job.created", "job.started", "job.completed", "chain.completed"], payloads=True
    )
    starts = await deliveries.webhook(events=["chain.started"], payloads=True)
    async with deliveries.worker([deliveries.processors]):
        await (await deliveries.client.start_chain(double, 3)).result(timeout=WAIT)
    await deliveries.work()
    await deliveries.attempted(made.webhook.id, 5)
    await deliveries.attempted(starts.webhook.id, 1)
    bodies = [json.loads(request.body) for request in deliveries.receiver.requests]
    assert len(bodies) == 6
    assert {body["type"]: body["data"]["output"] for body in bodies if "output" in body["data"]} == {
        "chain.completed": 6
    }


async def test_what_happens_before_any_worker_delivers_is_delivered(deliveries: Deliveries) -> None:
    """From its creation on, and from the moment on at which it is enabled again."""
    made = await deliveries.webhook(events=["chain.started"])
    disabled = await deliveries.webhook(events=["chain.started"])
    first = await deliveries.client.start_chain(double, 1)
    await deliveries.client.disable_webhook(disabled.webhook.id)
    await deliveries.client.enable_webhook(disabled.webhook.id)
    second = await deliveries.client.start_chain(double, 2)
    await deliveries.work()
    await deliveries.attempted(made.webhook.id, 2)
    await deliveries.attempted(disabled.webhook.id, 1)
    found = {
        (json.loads(one.body)["data"]["chain_id"], one.headers["webhook-id"].rpartition("-")[2])
        for one in deliveries.receiver.requests
    }
    expected = {(first.id, made.webhook.id), (second.id, made.webhook.id), (second.id, disabled.webhook.id)}
    assert found == expected


async def test_an_event_without_a_body_holds_up_no_other(
    deliveries: Deliveries, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(event: JobEvent, event_type: str, **how: Any) -> str:
        if event.chain_id == "poison":
            raise ValueError("no text can be made of it")
        return event_body(event, event_type, **how)

    monkeypatch.setattr("queuert.client.async_webhooks.event_body", body)
    made = await deliveries.webhook()
    for id in ("before", "poison", "after"):
        await deliveries.client.start_chain(double, 1, id=id)
    await deliveries.work()
    await deliveries.attempted(made.webhook.id, 2)
    await until(lambda: deliveries.log.of(WebhookEventSkipped), "the worker emits it")
    [event] = deliveries.log.of(WebhookEventSkipped)
    assert (event.chain_id, event.kind, event.error.message) == ("poison", "completed", "no text can be made of it")
    assert {one["data"]["chain_id"] for one in deliveries.received(made.secret)} == {"before", "after"}


async def test_a_webhook_whose_secrets_cannot_be_read_holds_up_no_other(deliveries: Deliveries) -> None:
    """It is listed, disabled, enabled and deleted all the same."""
    client = deliveries.client
    made, unreadable = await deliveries.webhook(), await deliveries.webhook(headers={"x-key": "hidden"})
    id = unreadable.webhook.id
    other_codec = WebhookCodec(PayloadFormat(codecs=[EncryptionCodec([NEW_KEY])]))
    store = await client._open_store()
    [record] = await store.get_webhook_records(ENDPOINT, [id])
    assert await store.put_webhook_record(other_codec.write(client.webhook_codec.read(record), record.tag))
    [record] = await store.get_webhook_records(ENDPOINT, [id])
    sealed = json.loads(record.body)["secret"]
    await deliveries.work()
    await client.start_chain(double, 1)
    await deliveries.attempted(made.webhook.id, 1)
    assert {one.id: one.secret_ends for one in await client.list_webhooks()}[id] == ()
    assert not (await client.disable_webhook(id)).enabled
    assert (await client.enable_webhook(id)).headers == ()
    [record] = await store.get_webhook_records(ENDPOINT, [id])
    assert json.loads(record.body)["secret"] == sealed, "it stays as it is"
    await client.delete_webhook(id)
    assert [one.id for one in await client.list_webhooks()] == [made.webhook.id]


def test_a_body_is_text_whatever_the_output_is() -> None:
    """JSON can write half a surrogate pair."""
    event = JobEvent(
        tx=1, seq=1, kind=EventKind.COMPLETED, happened_at=datetime.now(UTC), job_id="a", chain_id="a", chain_index=0,
        type="t", chain_type="t", status=JobStatus.COMPLETED, attempt=1, scheduled_at=None, started_at=None,
        worker=None, error=None, progress=None, cursor="",
    )  # fmt: skip
    body = event_body(event, "chain.completed", payloads=True, output='"\\ud800"')
    assert json.loads(body.encode())["data"]["output"] == "\ud800"


def test_a_body_has_no_message_of_progress() -> None:
    """The guide promises outputs and errors; a message is the handler's own text, or an envelope of its format."""
    event = JobEvent(
        tx=1, seq=1, kind=EventKind.PROGRESSED, happened_at=datetime.now(UTC), job_id="a", chain_id="a", chain_index=0,
        type="t", chain_type="t", status=JobStatus.RUNNING, attempt=1, scheduled_at=None, started_at=None,
        worker="w", error=None, progress=JobProgress(0.5, 1.0, 2.0, "secret", datetime.now(UTC)), cursor="",
    )  # fmt: skip
    body = event_body(event, "job.progressed", payloads=True)
    assert json.loads(body)["data"]["progress"]["fraction"] == 0.5
    assert "secret" not in body


async def test_a_chain_may_have_a_webhook_of_its_own(deliveries: Deliveries) -> None:
    client = deliveries.client
    secret = (await client.rotate_webhook_secret(CHAIN_WEBHOOKS)).secret
    await deliveries.work()
    found = await client.start_chain(double, 1, webhook=deliveries.receiver.url, attributes={"user": 1}, result_ttl=0)
    await client.start_chain(double, 2)
    await deliveries.attempted(CHAIN_WEBHOOKS, 1)
    [body] = deliveries.received(secret)
    assert (body["type"], body["data"]["chain_id"]) == ("chain.completed", found.id)
    with pytest.raises(ForbiddenTargetError):
        await client.start_chain(double, 3, webhook="https://user:pw@example.com/")


@pytest.mark.parametrize("others", [False, True], ids=["alone", "before another webhook is made"])
async def test_a_webhook_of_a_chain_that_closed_before_any_worker_delivers(
    deliveries: Deliveries, others: bool
) -> None:
    client = deliveries.client
    found = await client.start_chain(double, 1, webhook=deliveries.receiver.url)
    await client.cancel_chain(found)
    made = await deliveries.webhook() if others else None
    await deliveries.work()
    await deliveries.attempted(CHAIN_WEBHOOKS, 1)
    [request] = deliveries.receiver.requests
    assert json.loads(request.body)["data"]["chain_id"] == found.id
    assert made is None or await deliveries.attempts(made.webhook.id) == []


async def test_chains_are_kept_for_a_webhook_only_until_the_log_has_lost_their_events(deliveries: Deliveries) -> None:
    """Where no worker delivers: what is kept begins where the webhook was made, not at the beginning of the log."""
    client = deliveries.client
    await client.cancel_chain(await client.start_chain(double, 1))
    await deliveries.webhook()
    store = await client._open_store()
    [record] = await store.get_webhook_records(DISPATCHER, [DISPATCHER_CURSOR])
    page = PageRequest(10, json.loads(record.body)["cursor"], oldest_first=True)
    assert not (await store.list_events(EventFilter(), page)).items


@pytest.mark.parametrize("error", [RightMissingError, SchemaMissingError, DatabaseMovedError, StateUnavailableError])
async def test_an_event_is_not_skipped_when_the_store_is_not_as_it_must_be(
    deliveries: Deliveries, monkeypatch: pytest.MonkeyPatch, error: type[StateError]
) -> None:
    client = deliveries.client
    store = await client._open_store()
    await deliveries.webhook()
    dispatcher = WebhookDispatcher(client, store, deliveries.settings())
    assert await dispatcher._take()
    await client.cancel_chain(await client.start_chain(double, 1))

    async def refuse(store: Any, jobs: list[NewJob]) -> None:
        if jobs:
            raise error("not now")

    async def started() -> int:
        return len((await client.list_chains(job_types=[DELIVERY_TYPE])).items)

    async def dispatch_until_one_is_started() -> None:
        async with asyncio.timeout(START):
            while await started() == 0:
                await dispatcher.dispatch()

    monkeypatch.setattr(client, "_start_deliveries", refuse)
    with pytest.raises(error):
        await dispatch_until_one_is_started()
    monkeypatch.undo()
    await dispatch_until_one_is_started()
    assert await started() == 1


async def test_a_delivery_is_repeated_until_it_is_accepted(deliveries: Deliveries) -> None:
    """The id stays, the signature is of the attempt, and the log has each attempt with its answer."""
    deliveries.receiver.answer = status(500, body="not now")
    made = await deliveries.webhook()
    await deliveries.work()
    chain = await deliveries.client.start_chain(double, 1)
    await deliveries.attempted(made.webhook.id, 1)
    deliveries.receiver.answer = status(503, "retry-after: 999999999")
    for count in (2, 3):
        await deliveries.due()
        await deliveries.attempted(made.webhook.id, count)
        deliveries.receiver.answer = NO_CONTENT
    third, second, first = await deliveries.attempts(made.webhook.id)
    assert (first.status, first.error, first.response, first.attempt) == (500, "http", "not now", 1)
    assert (second.status, second.attempt) == (503, 2)
    assert (third.delivered, third.attempt, third.retry_in) == (True, 3, None)
    assert 5.0 <= (first.retry_in or 0.0) <= 7.0
    assert 600.0 <= (second.retry_in or 0.0) <= 660.0, "Retry-After is bounded"
    assert len(set(deliveries.receiver.ids)) == 1
    assert [one["data"]["chain_id"] for one in deliveries.received(made.secret)] == [chain.id] * 3
    await deliveries.until(lambda: deliveries.client.get_webhook(made.webhook.id), lambda one: not one.failing_since)


async def test_a_secret_is_rotated_and_both_sign(deliveries: Deliveries) -> None:
    made = await deliveries.webhook()
    rotated = await deliveries.client.rotate_webhook_secret(made.webhook.id)
    assert rotated.secret != made.secret
    assert rotated.webhook.secret_ends == (rotated.secret[-4:], made.secret[-4:])
    await deliveries.work()
    await deliveries.client.ping_webhook(made.webhook.id)
    await deliveries.attempted(made.webhook.id, 1)
    for secret in (made.secret, rotated.secret):
        assert deliveries.received(secret)[0]["type"] == "webhook.ping"
    at_once = await deliveries.client.rotate_webhook_secret(made.webhook.id, overlap=0.0)
    assert at_once.webhook.secret_ends == (at_once.secret[-4:],)


async def test_the_circuit_opens_and_a_probe_closes_it(deliveries: Deliveries) -> None:
    """While it is open deliveries wait, and none of their attempts is used up."""
    deliveries.receiver.answer = status(500)
    made = await deliveries.webhook()
    await deliveries.client.start_chains(_starts(11))
    worker = await deliveries.work(deliveries.settings(per_webhook=1))
    await deliveries.attempted(made.webhook.id, endpoints.FAILURES_TO_OPEN)
    shown = await deliveries.client.get_webhook(made.webhook.id)
    assert (shown.circuit, shown.failures) == ("open", endpoints.FAILURES_TO_OPEN)
    sent = len(deliveries.receiver.requests)
    await deliveries.due(11)
    await deliveries.until(worker.is_idle, bool)
    assert len(deliveries.receiver.requests) == sent, "the eleventh waits"
    deliveries.receiver.answer = NO_CONTENT
    await _probe_now(deliveries, made.webhook.id)
    await deliveries.due()
    await deliveries.attempted(made.webhook.id, sent + 1)
    await deliveries.until(lambda: deliveries.client.get_webhook(made.webhook.id), lambda one: one.circuit == "closed")
    await deliveries.due(0)
    found = await deliveries.attempted(made.webhook.id, sent + 11)
    assert {one.delivery_id for one in found if one.delivered} == set(deliveries.receiver.ids)
    assert len(set(deliveries.receiver.ids)) == 11


async def test_a_receiver_that_is_down_for_an_hour_gets_everything_later(deliveries: Deliveries) -> None:
    """The hour passes for the jobs of the store: attempts at 0 s, 5 s, 5 min and 30 min are made in it."""
    deliveries.receiver.answer = status(502)
    made = await deliveries.webhook()
    chains = await deliveries.client.start_chains(_starts(3))
    await deliveries.work()
    await deliveries.attempted(made.webhook.id, 3)
    for minutes, count in ((1.2, 6), (6, 9)):
        await deliveries.scheduled(3)
        deliveries.pass_time(minutes * 60)
        await deliveries.attempted(made.webhook.id, count)
    deliveries.receiver.answer = NO_CONTENT
    await deliveries.scheduled(3)
    deliveries.pass_time(53 * 60)
    found = await deliveries.attempted(made.webhook.id, 12)
    assert {one["data"]["chain_id"] for one in deliveries.received(made.secret)} == {chain.id for chain in chains}
    assert sorted(one.attempt for one in found) == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    assert sum(one.delivered for one in found) == 3


async def test_a_receiver_that_is_gone_is_disabled(deliveries: Deliveries) -> None:
    deliveries.receiver.answer = status(410)
    made = await deliveries.webhook()
    await deliveries.work()
    await deliveries.client.start_chain(double, 1)
    shown = await deliveries.until(lambda: deliveries.client.get_webhook(made.webhook.id), lambda one: not one.enabled)
    assert shown.disabled_reason == "its receiver answered 410 Gone"
    await until(lambda: deliveries.log.of(WebhookDisabled), "the worker emits it")
    [event] = deliveries.log.of(WebhookDisabled)
    assert event.webhook == made.webhook.id


async def test_a_receiver_that_fails_for_days_is_disabled_and_what_it_missed_is_replayed(
    deliveries: Deliveries,
) -> None:
    deliveries.receiver.answer = status(500)
    before = datetime.now(UTC) - timedelta(minutes=1)
    made = await deliveries.webhook()
    await deliveries.work(deliveries.settings(disable_after_days=0.01))
    chains = await deliveries.client.start_chains(_starts(2))
    await deliveries.scheduled(2)
    # Two failures are too few, however long ago.
    await _failing_since(deliveries, made.webhook.id, datetime.now(UTC) - timedelta(days=6))
    await deliveries.due()
    await deliveries.attempted(made.webhook.id, 4)
    await deliveries.scheduled(2)
    assert (await deliveries.client.get_webhook(made.webhook.id)).enabled
    await _change_health(deliveries, made.webhook.id, failures=FAILURES_TO_OPEN, probe_at=None)
    await deliveries.due()
    shown = await deliveries.until(lambda: deliveries.client.get_webhook(made.webhook.id), lambda one: not one.enabled)
    assert "0.01 days" in (shown.disabled_reason or "")
    missed = await deliveries.client.start_and_wait(double, 7, id="missed")
    assert missed == 14
    deliveries.receiver.answer = NO_CONTENT
    deliveries.receiver.requests.clear()
    shown = await deliveries.client.enable_webhook(made.webhook.id)
    assert (shown.enabled, shown.failures, shown.disabled_reason) == (True, 0, None)
    assert await deliveries.client.replay_webhook(made.webhook.id, since=before) == 3
    await deliveries.receiver.wait_for(3)
    found = {one["data"]["chain_id"] for one in deliveries.received(made.secret)}
    assert found == {"missed", *(chain.id for chain in chains)}
    await deliveries.until(
        lambda: deliveries.attempts(made.webhook.id), lambda found: sum(one.delivered for one in found) == 3
    )
    assert await deliveries.client.replay_webhook(made.webhook.id, since=before) == 0, "all was accepted"
    assert await deliveries.client.replay_webhook(made.webhook.id, since=before, failed_only=False) == 3


async def test_a_probe_that_is_far_away_is_made_now(deliveries: Deliveries) -> None:
    """It was set by the clock of a store before this one."""
    deliveries.receiver.answer = status(500)
    made = await deliveries.webhook()
    await deliveries.work()
    await deliveries.client.start_chain(double, 1)
    await deliveries.scheduled()
    deliveries.receiver.answer = NO_CONTENT
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    await _change_health(deliveries, made.webhook.id, failures=FAILURES_TO_OPEN, probe_at=tomorrow)
    await deliveries.due()
    await deliveries.until(
        lambda: deliveries.attempts(made.webhook.id), lambda found: any(one.delivered for one in found)
    )


@pytest.mark.parametrize("ahead", [timedelta(days=6), timedelta(days=-6)])
async def test_the_clock_of_a_worker_opens_no_circuit_and_disables_nothing(
    deliveries: Deliveries, monkeypatch: pytest.MonkeyPatch, ahead: timedelta
) -> None:
    made = await deliveries.webhook()
    deliveries.receiver.answer = status(500)
    await deliveries.work()
    await deliveries.client.start_chain(double, 1)
    await deliveries.scheduled()
    an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
    await _change_health(deliveries, made.webhook.id, failures=FAILURES_TO_OPEN, failing_since=an_hour_ago)

    class Clock(datetime):
        """This machine's, days away."""

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(tz) + ahead

    monkeypatch.setattr("queuert.worker.webhooks.datetime", Clock)
    await deliveries.due()
    await deliveries.attempted(made.webhook.id, 2)
    shown = await deliveries.client.get_webhook(made.webhook.id)
    assert (shown.enabled, shown.failures, shown.circuit) == (True, FAILURES_TO_OPEN + 1, "open")
    health = await _health(deliveries, made.webhook.id)
    assert health.probe_at is not None
    assert abs(health.probe_at - datetime.now(UTC)) < timedelta(minutes=10)


async def test_a_replay_that_is_accepted_closes_the_circuit(deliveries: Deliveries) -> None:
    deliveries.receiver.answer = status(500)
    made = await deliveries.webhook()
    await deliveries.work()
    await deliveries.client.start_chain(double, 1)
    [waiting] = await deliveries.scheduled()
    soon = datetime.now(UTC) + timedelta(seconds=25)
    await _change_health(deliveries, made.webhook.id, failures=FAILURES_TO_OPEN, probe_at=soon)
    deliveries.receiver.answer = NO_CONTENT
    await deliveries.client.replay_webhook_delivery(waiting)

    async def circuit() -> str:
        return (await deliveries.client.get_webhook(made.webhook.id)).circuit

    await deliveries.until(circuit, lambda found: found == "closed")


async def test_a_ping_closes_no_circuit(deliveries: Deliveries) -> None:
    deliveries.receiver.answer = status(500)
    made = await deliveries.webhook()
    await deliveries.work()
    await deliveries.client.start_chain(double, 1)
    [waiting] = await deliveries.scheduled()
    await deliveries.client.cancel_chain(waiting)  # It would close the circuit.
    await _change_health(
        deliveries, made.webhook.id, failures=FAILURES_TO_OPEN, probe_at=datetime.now(UTC) + timedelta(seconds=25)
    )
    deliveries.receiver.answer = NO_CONTENT
    await deliveries.client.ping_webhook(made.webhook.id)
    await deliveries.until(
        lambda: deliveries.attempts(made.webhook.id), lambda found: any(one.delivered for one in found)
    )
    shown = await deliveries.client.get_webhook(made.webhook.id)
    assert (shown.failures, shown.circuit) == (FAILURES_TO_OPEN, "open")


async def test_a_worker_takes_a_key_that_was_made_since_it_started(deliveries: Deliveries) -> None:
    """The first one is lost with its record, as by a failover of Redis. What was sealed with it is still sent."""
    made = await deliveries.webhook()
    deliveries.receiver.answer = status(500)
    await deliveries.work()
    await deliveries.client.start_chain(double, 1)
    [waiting] = await deliveries.scheduled()
    deliveries.receiver.answer = NO_CONTENT
    store = await deliveries.client._open_store()
    [record] = await store.get_webhook_records(DISPATCHER, [KEY])
    assert await store.put_webhook_record(WebhookWrite(DISPATCHER, KEY, None, new_token(), record.tag))
    await deliveries.client.start_chain(double, 2)
    attempts = await deliveries.attempted(made.webhook.id, 2)
    assert [one.delivered for one in attempts] == [True, False]
    await deliveries.client.trigger_jobs([waiting])
    attempts = await deliveries.attempted(made.webhook.id, 3)
    assert (attempts[0].delivery_id, attempts[0].delivered) == (waiting, True)


async def test_what_is_sent_by_hand_disables_nothing(deliveries: Deliveries) -> None:
    """A ping that fails says that the receiver is not ready yet."""
    made = await deliveries.webhook()
    await deliveries.work(deliveries.settings(disable_after_days=0.01))
    for number, answer in enumerate((500, 410), 1):
        deliveries.receiver.answer = status(answer)
        await deliveries.client.ping_webhook(made.webhook.id)
        await deliveries.attempted(made.webhook.id, number)
    shown = await deliveries.client.get_webhook(made.webhook.id)
    assert (shown.enabled, shown.failures, shown.circuit) == (True, 0, "closed")


async def test_one_delivery_is_replayed_by_its_id(deliveries: Deliveries) -> None:
    made = await deliveries.webhook()
    await deliveries.work()
    await deliveries.client.start_chain(double, 1)
    [first] = await deliveries.attempted(made.webhook.id, 1)
    deliveries.receiver.answer = status(500)
    await deliveries.client.replay_webhook_delivery(first.delivery_id)
    second, _ = await deliveries.attempted(made.webhook.id, 2)
    assert (second.delivery_id, second.retry_in, second.status) == (first.delivery_id, None, 500), "once, by hand"
    assert deliveries.receiver.requests[0].body == deliveries.receiver.requests[1].body
    other = await deliveries.webhook()
    with pytest.raises(ConfigurationError, match=f"one of webhook '{other.webhook.id}'"):
        await deliveries.client.replay_webhook_delivery(first.delivery_id, webhook=other.webhook.id)
    with pytest.raises(WebhookNotFoundError):
        await deliveries.client.replay_webhook_delivery(first.delivery_id, webhook="wh_none")
    for id in ("evt_1-1-wh_0", await _chain(deliveries)):
        with pytest.raises(ChainNotFoundError):
            await deliveries.client.replay_webhook_delivery(id)


async def test_a_replay_reads_on_behind_events_of_a_long_transaction(
    deliveries: Deliveries, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has it in the place of its beginning, though some of it happened later than what is behind it."""
    client = deliveries.client
    if not isinstance(client.state, PostgresState):
        pytest.skip("only there transactions overlap")
    made = await deliveries.webhook(events=["chain.started"])
    monkeypatch.setattr("queuert.client.async_webhooks.MAX_PAGE", 1)
    async with await psycopg.AsyncConnection.connect(dsn) as first:
        await first.execute("SELECT pg_current_xact_id()")
        await client.start_chain(double, 1, id="before")
        since = datetime.now(UTC)
        await client.start_chain(double, 1, id="after", connection=first)
    assert await client.replay_webhook(made.webhook.id, since=since, failed_only=False) == 1


async def test_a_deleted_or_disabled_webhook_gets_nothing(deliveries: Deliveries) -> None:
    deleted, disabled = await deliveries.webhook(), await deliveries.webhook()
    kept = await deliveries.webhook()
    await deliveries.client.disable_webhook(disabled.webhook.id, reason="maintenance")
    await deliveries.client.delete_webhook(deleted.webhook.id)
    await deliveries.work()
    await deliveries.client.start_chain(double, 1)
    await deliveries.attempted(kept.webhook.id, 1)
    assert {id.rpartition("-")[2] for id in deliveries.receiver.ids} == {kept.webhook.id}
    assert [one.id for one in await deliveries.client.list_webhooks()] == sorted((disabled.webhook.id, kept.webhook.id))
    calls = (deliveries.client.get_webhook, deliveries.client.delete_webhook, deliveries.client.ping_webhook)
    for call in (*calls, deliveries.client.enable_webhook, deliveries.client.rotate_webhook_secret):
        with pytest.raises(WebhookNotFoundError):
            await call(deleted.webhook.id)


async def test_an_event_before_the_webhook_is_not_delivered(deliveries: Deliveries) -> None:
    worker = await deliveries.work()
    await deliveries.client.start_and_wait(double, 1)
    made = await deliveries.webhook()
    chain = await deliveries.client.start_chain(double, 2)
    await deliveries.attempted(made.webhook.id, 1)
    await deliveries.until(worker.is_idle, bool)
    assert [one["data"]["chain_id"] for one in deliveries.received(made.secret)] == [chain.id]


async def test_a_delivery_that_somebody_has_written_by_hand_is_not_sent(deliveries: Deliveries) -> None:
    """Whoever may start chains may not have workers sign what they like."""
    made = await deliveries.webhook()
    store = await deliveries.client._open_store()
    input = (
        '{"webhook_id": "%s", "id": "evt_1", "event_type": "x", "body": "{}", "url": null, "once": false, "seal": "x"}'
    )
    await store.start_jobs([NewJob("forged", DELIVERY_TYPE, input % made.webhook.id, id_chosen=True)])
    await deliveries.work()
    chain = await deliveries.until(
        lambda: deliveries.client.get_chain("forged"), lambda one: one.status is not ChainStatus.OPEN
    )
    assert chain.status is ChainStatus.FAILED
    assert deliveries.receiver.connections == 0


async def test_a_target_that_is_not_allowed_is_a_failed_attempt_without_details(deliveries: Deliveries) -> None:
    made = await deliveries.webhook()
    await deliveries.work(WebhookSettings(interval=0.05, targets=TargetPolicy(allow_http=True)))
    await deliveries.client.start_chain(double, 1)
    [found] = await deliveries.attempted(made.webhook.id, 1)
    assert (found.error, found.status, found.response) == ("forbidden_target", None, None)
    assert deliveries.receiver.connections == 0


def _starts(count: int) -> list[Any]:
    return [NewChain(double, number) for number in range(count)]


async def _chain(deliveries: Deliveries) -> str:
    return (await deliveries.client.start_chain(double, 5)).id


async def _probe_now(deliveries: Deliveries, webhook: str) -> None:
    """Let the next probe of an open circuit be due."""
    await _change_health(deliveries, webhook, probe_at=datetime.now(UTC) - timedelta(seconds=1))


async def _failing_since(deliveries: Deliveries, webhook: str, since: datetime) -> None:
    await _change_health(deliveries, webhook, failing_since=since)


async def _health(deliveries: Deliveries, webhook: str) -> WebhookHealth:
    store = await deliveries.client._open_store()
    [record] = await store.get_webhook_records(HEALTH, [webhook])
    return WebhookHealth.decode(record.body)


async def _change_health(deliveries: Deliveries, webhook: str, **changes: Any) -> None:
    store = await deliveries.client._open_store()
    async with asyncio.timeout(30):
        while True:
            [record] = await store.get_webhook_records(HEALTH, [webhook])
            body = replace(WebhookHealth.decode(record.body), **changes).encode()
            if await store.put_webhook_record(WebhookWrite(HEALTH, webhook, body, new_token(), record.tag)):
                return


@pytest.mark.parametrize(
    "given",
    [
        {"url": "ftp://example.com/"}, {"url": "https://10.0.0.1:x/"}, {"events": ["chain.open"]}, {"events": []},
        {"events": "chain.failed"}, {"headers": {"Host": "x"}}, {"headers": {"webhook-id": "x"}},
        {"headers": {"x": "a\r\nb"}}, {"headers": {"x": " a"}}, {"secret": "whsec_short"}, {"job_types": []},
        {"events": ["job.deleted"], "attributes": {"customer": 17}},
    ],
)  # fmt: skip
async def test_a_webhook_is_checked_before_it_is_stored(deliveries: Deliveries, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        await deliveries.client.create_webhook(**{"url": "https://example.com/", **given})
    assert await deliveries.client.list_webhooks() == []


# --- a dispatcher that dies -------------------------------------------------------------------------------------------


class Died(BaseException):
    """The worker is killed here."""


class Hasty(WebhookDispatcher):
    """Mutant 17: what is to be delivered counts as delivered before it is."""

    async def dispatch(self) -> bool:
        before = self._cursor
        page = await self._store.list_events(EventFilter(), PageRequest(200, before, oldest_first=True))
        await self._write(page.items[-1].cursor if page.items else before, self._mine)
        self._cursor = before
        return await super().dispatch()


async def deliveries_of_one_event(
    deliveries: Deliveries, monkeypatch: pytest.MonkeyPatch, kind: type[WebhookDispatcher], *, started: bool
) -> int:
    """How many deliveries of one event there are after a dispatcher has died, and another one has taken over."""
    client, clock = deliveries.client, [0.0]
    store = await client._open_store()
    await deliveries.webhook()
    first, second = (
        dispatcher(client, store, deliveries.settings(), clock=lambda: clock[0])
        for dispatcher in (kind, WebhookDispatcher)
    )
    assert await first._take()
    chain = await client.start_chain(double, 1)
    await client.cancel_chain(chain)

    start = client._start_deliveries

    async def start_and_die(store: Any, jobs: list[NewJob]) -> None:
        if started:
            await start(store, jobs)
        if jobs:
            raise Died

    async def dispatch_until_it_dies() -> None:
        async with asyncio.timeout(START):
            while True:
                await first.dispatch()

    monkeypatch.setattr(client, "_start_deliveries", start_and_die)
    with pytest.raises(Died):
        await dispatch_until_it_dies()
    monkeypatch.undo()
    assert not await second._take(), "the first one may live"
    clock[0] += 60.0
    assert await second._take()
    for _ in range(3):
        await second.dispatch()
    return len((await client.list_chains(job_types=[DELIVERY_TYPE])).items)


@pytest.mark.parametrize("started", [False, True], ids=["before it starts deliveries", "before it stores its cursor"])
async def test_what_a_dispatcher_leaves_the_next_one_delivers_once(
    deliveries: Deliveries, monkeypatch: pytest.MonkeyPatch, started: bool
) -> None:
    assert await deliveries_of_one_event(deliveries, monkeypatch, WebhookDispatcher, started=started) == 1


async def test_a_cursor_that_is_stored_first_would_lose_deliveries(
    deliveries: Deliveries, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await deliveries_of_one_event(deliveries, monkeypatch, Hasty, started=False) == 0


async def test_a_dispatcher_keeps_its_place_while_a_page_takes_long(
    deliveries: Deliveries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else another one takes over, and begins with the same page, which takes as long."""
    client, clock = deliveries.client, [0.0]
    store = await client._open_store()
    await deliveries.webhook(events=["chain.started"])
    dispatcher = WebhookDispatcher(client, store, deliveries.settings(), clock=lambda: clock[0])
    monkeypatch.setattr("queuert.worker.webhooks.STARTED_AT_ONCE", 1)
    await client.start_chains(_starts(3))
    assert await dispatcher._take()
    start, tags = client._start_deliveries, list[str]()

    async def slowly(store: Any, jobs: list[NewJob]) -> None:
        tags.append((await store.get_webhook_records(DISPATCHER, [DISPATCHER_CURSOR]))[0].tag)
        clock[0] += 10.0
        await start(store, jobs)

    monkeypatch.setattr(client, "_start_deliveries", slowly)
    async with asyncio.timeout(START):
        while len(tags) < 3:
            await dispatcher.dispatch()
    assert len(set(tags)) == 3


async def test_a_dispatcher_that_was_replaced_leaves_the_page(
    deliveries: Deliveries, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, clock = deliveries.client, [0.0]
    store = await client._open_store()
    await deliveries.webhook(events=["chain.started"])
    first, second = (WebhookDispatcher(client, store, deliveries.settings(), clock=lambda: clock[0]) for _ in range(2))
    monkeypatch.setattr("queuert.worker.webhooks.STARTED_AT_ONCE", 1)
    await client.start_chains(_starts(3))
    assert await first._take()
    assert not await second._take(), "it sees the record for the first time"
    start, started = client._start_deliveries, list[str]()

    async def while_the_other_takes_over(store: Any, jobs: list[NewJob]) -> None:
        clock[0] += 60.0
        started.extend(job.id for job in jobs)
        await start(store, jobs)
        assert await second._take()

    monkeypatch.setattr(client, "_start_deliveries", while_the_other_takes_over)
    async with asyncio.timeout(START):
        while not started:
            assert not await first.dispatch()
    assert len(started) == 1
    assert first._mine is None
    monkeypatch.undo()
    async with asyncio.timeout(START):
        while len((await client.list_chains(job_types=[DELIVERY_TYPE])).items) < 3:
            await second.dispatch()


async def test_a_failover_that_lost_the_place_of_the_dispatcher_is_no_loss_of_events(
    deliveries: Deliveries, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = deliveries.client
    store = await client._open_store()
    await deliveries.webhook(events=["chain.started"])
    dispatcher = WebhookDispatcher(client, store, deliveries.settings())
    assert await dispatcher._take()
    [before] = await store.get_webhook_records(DISPATCHER, [DISPATCHER_CURSOR])
    await client.start_chain(double, 1)
    await dispatched(dispatcher, client, 1)
    [after] = await store.get_webhook_records(DISPATCHER, [DISPATCHER_CURSOR])
    await store.put_webhook_record(
        WebhookWrite(DISPATCHER, DISPATCHER_CURSOR, before.body, before.tag, after.tag)
    )  # As the server has it that was promoted.
    read, lost = store.list_events, [dispatcher._cursor]

    async def of_the_new_server(filter: Any, page: PageRequest) -> Any:
        if page.cursor in lost:
            raise EventsLostError("the server does not have the event that was read last")
        return await read(filter, page)

    monkeypatch.setattr(store, "list_events", of_the_new_server)
    assert not await dispatcher.dispatch()
    assert await dispatcher._take()
    await client.start_chain(double, 2)
    await dispatched(dispatcher, client, 2)
    assert not deliveries.log.of(WebhookEventsLost)


async def dispatched(dispatcher: WebhookDispatcher, client: AsyncClient, count: int) -> None:
    """Dispatch until there are so many deliveries."""
    async with asyncio.timeout(START):
        while len((await client.list_chains(job_types=[DELIVERY_TYPE])).items) < count:
            await dispatcher.dispatch()


@pytest.mark.parametrize("url", ["x", "https:/x", "https://"])
async def test_an_attribute_that_is_no_address_stops_no_other_delivery(deliveries: Deliveries, url: str) -> None:
    await deliveries.webhook()
    client = deliveries.client
    store = await client._open_store()
    dispatcher = WebhookDispatcher(client, store, deliveries.settings())
    assert await dispatcher._take()
    await client.cancel_chain(await client.start_chain(double, 1, attributes={endpoints.CHAIN_ATTRIBUTE: [url]}))
    await client.cancel_chain(await client.start_chain(double, 1, attributes={endpoints.CHAIN_ATTRIBUTE: url}))
    async with asyncio.timeout(START):
        while len((await client.list_chains(job_types=[DELIVERY_TYPE])).items) < 2:
            await dispatcher.dispatch()
