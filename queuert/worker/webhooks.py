"""Delivers webhooks: a dispatcher, one among all workers, starts a chain for each delivery, and a handler sends it."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from queuert.client import AsyncClient, Client
from queuert.errors import (
    CapabilityMissingError,
    ClosedError,
    ConfigurationError,
    DatabaseMovedError,
    EventsLostError,
    RightMissingError,
    SchemaMissingError,
    StateUnavailableError,
)
from queuert.event_log import EventFilter, JobEvent
from queuert.ids import new_id, new_token
from queuert.job_types import JobTypes, LibraryJobType
from queuert.limits import Limits
from queuert.observability.events import WebhookDisabled, WebhookEventSkipped, WebhookEventsLost, WebhookFailing
from queuert.outcomes import Outcome
from queuert.policies import Keep, LeasePolicy, Retention, RetryPolicy
from queuert.state.adapter import Capability
from queuert.state.async_store import AsyncStore
from queuert.state.paging import PageRequest
from queuert.state.webhooks import (
    DISPATCHER,
    DISPATCHER_CURSOR,
    ENDPOINT,
    HEALTH,
    NewWebhookAttempt,
    WebhookRecord,
    WebhookWrite,
)
from queuert.webhooks.addresses import TargetPolicy
from queuert.webhooks.deliveries import STARTED_AT_ONCE, Delivery
from queuert.webhooks.endpoints import (
    CHAIN_WEBHOOKS,
    DELIVERY_TYPE,
    FAILING_AFTER,
    FAILURES_TO_OPEN,
    PING,
    PROBE_EVERY,
    SCHEDULE,
    StoredWebhook,
    WebhookHealth,
    next_delay,
)
from queuert.webhooks.requests import HttpAnswer, RequestFailed, Resolver, post
from queuert.webhooks.signing import signed_headers
from queuert.worker.attempt import Attempt
from queuert.worker.finishes import error_of
from queuert.worker.processors import Processors
from queuert.worker.supervisor import SupervisedLoop

_PAGE = 200
_IDLE = 5.0
"""Seconds between two looks of a worker that is not the dispatcher."""

_RENEW_EVERY = 5.0
_TAKE_OVER_AFTER = 15.0
"""Seconds without a renewal, by the clock of the one who looks, after which another worker becomes the dispatcher."""

_PRUNE_EVERY = 3_600.0
_LONGEST_WAIT = 300.0
_INSTANT = 1.0
_KEYS = 8
"""Keys of seals that a worker remembers."""
_FURTHEST_PROBE = 2 * PROBE_EVERY
_TRIES = 20


class _Replaced(Exception):
    """This worker is not the dispatcher any more: its record is another's, or was deleted."""


_NO_FAULT_OF_AN_EVENT = (
    StateUnavailableError,
    RightMissingError,
    SchemaMissingError,
    DatabaseMovedError,
    ClosedError,
    _Replaced,
)
"""Errors of all events alike: this dispatcher, or the next one, reads the page again."""

_DELIVERIES = LibraryJobType[Any, Any](DELIVERY_TYPE, input=dict[str, Any], output=dict[str, Any])


@dataclass(frozen=True)
class WebhookSettings:
    """How a worker delivers webhooks.

    Args:
        targets: where they may be sent.
        per_webhook: how many deliveries to one webhook are under way at once, of all workers, so that a slow receiver
            holds back nobody else.
        interval: seconds between two looks at the event log.
        keep_days: how long the log of deliveries is kept.
        disable_after_days: how long nothing but failures may come back, ten at least, before a webhook is disabled.
            Pings, and deliveries that are sent once more by hand, do not count.
        resolve: looks up names, instead of the system. What it returns is checked all the same.

    Raises:
        ConfigurationError: a number is out of range.
    """

    targets: TargetPolicy = field(default_factory=TargetPolicy)
    per_webhook: int = 4
    interval: float = 1.0
    keep_days: float = 30.0
    disable_after_days: float = 5.0
    resolve: Resolver | None = None

    def __post_init__(self) -> None:
        if type(self.per_webhook) is not int or not 1 <= self.per_webhook <= 1_000:
            raise ConfigurationError(f"per_webhook must be an integer between 1 and 1,000, got {self.per_webhook!r}")
        bounds = (("interval", 0.01, 60.0), ("keep_days", 1.0, 3_650.0), ("disable_after_days", 0.01, 365.0))
        for name, least, most in bounds:
            if not least <= getattr(self, name) <= most:
                raise ConfigurationError(f"{name} must be between {least:g} and {most:g}, got {getattr(self, name)!r}")


@dataclass(slots=True)
class _Resources:
    """What the handler has of its worker."""

    client: AsyncClient
    store: AsyncStore
    settings: WebhookSettings
    keys: tuple[str, ...]
    """The keys of seals that this worker knows, the newest first."""


def webhook_processors(client: AsyncClient | Client, settings: WebhookSettings | None = None) -> Processors:
    """Return processors with which a worker delivers webhooks, beside its others.

    One of the workers that have them reads the event log, and all of them send. A worker of its own, in a network of
    its own, is a good place for requests to the outside: ``InProcessWorker(client, webhook_processors(client))``.

    Args:
        client: the worker's client.
        settings: where requests may go, and how many; by default to the public internet by HTTPS.

    Raises:
        CapabilityMissingError: the store has no event log.
        ConfigurationError: ``client`` or ``settings`` is of another class.
        ModuleNotFoundError: the extra ``webhooks`` is not installed.

    Example::

        worker = InProcessWorker(client, [processors, webhook_processors(client)], concurrency=20)
    """
    if not isinstance(client, AsyncClient | Client):
        raise ConfigurationError(f"client must be an AsyncClient or a Client, got {type(client).__name__}")
    if Capability.EVENTS not in client.state.capabilities:
        raise CapabilityMissingError(Capability.EVENTS, "webhooks tell of what is in the event log")
    chosen = WebhookSettings() if settings is None else settings
    if not isinstance(chosen, WebhookSettings):
        raise ConfigurationError(f"settings must be WebhookSettings(...), got {type(settings).__name__}")

    @asynccontextmanager
    async def delivering_webhooks() -> AsyncIterator[_Resources]:
        own = AsyncClient(
            client.state,
            client.job_types,
            notify=client.notify,
            webhook_format=client.webhook_codec.format,
            max_connections=4,
        )
        own.observers = client.observers
        async with own:
            store = await own._open_store()
            dispatcher = WebhookDispatcher(own, store, chosen)
            dispatcher.loop.start()
            try:
                yield _Resources(own, store, chosen, (await own._webhook_key(store),))
            finally:
                await dispatcher.loop.stop()
                await dispatcher.release()

    processors = Processors(JobTypes(_DELIVERIES), lifespan=delivering_webhooks)
    day = 86_400.0
    processors.handles(
        _DELIVERIES,
        retry=RetryPolicy(max_attempts=len(SCHEDULE), max_crashes=100, initial_delay=5.0),
        lease=LeasePolicy(seconds=60.0),
        limits=Limits(per_key=chosen.per_webhook),
        retention=Retention(Keep(age=3 * day), Keep(age=30 * day), Keep(age=3 * day)),
    )(deliver)
    return processors


# --- the dispatcher ---------------------------------------------------------------------------------------------------


class WebhookDispatcher:
    """Reads the event log from a stored cursor, and starts a chain for each delivery, in the order of the log.

    Of all workers one does this at a time, which renews the record of the cursor. Deliveries have ids, and a start
    attaches to one that exists: what a dispatcher repeats, because another one died before the cursor was stored,
    starts nothing twice.
    """

    def __init__(
        self,
        client: AsyncClient,
        store: AsyncStore,
        settings: WebhookSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._store = store
        self._settings = settings
        self._clock = clock
        self._holder = f"webhooks-{os.getpid()}-{new_id()[-12:]}"
        self._mine: str | None = None
        """The tag of the record as this one wrote it; None while it is not the dispatcher."""
        self._cursor: str | None = None
        """None: the beginning of the log."""
        self._written_at = 0.0
        self._seen: tuple[str, float] | None = None
        """The tag of another one's record, and when it was seen first."""
        self._prune_at = 0.0
        self.loop = SupervisedLoop("webhooks", self._step, worker=self._holder, observers=client.observers)

    async def _step(self) -> float:
        if self._mine is None and not await self._take():
            return min(_IDLE, self._settings.interval * 5) * random.uniform(0.8, 1.2)
        if self._clock() >= self._prune_at:
            try:
                await self._prune()
            except _Replaced:
                return _IDLE
        more = await self.dispatch()
        return 0.0 if more else self._settings.interval * random.uniform(0.8, 1.2)

    async def _take(self) -> bool:
        """Become the dispatcher, if there is none, or the last one does not renew its record any more."""
        found = await self._store.get_webhook_records(DISPATCHER, [DISPATCHER_CURSOR])
        now = self._clock()
        # Its own, if the answer to its last write was lost.
        if found and json.loads(found[0].body)["holder"] not in (None, self._holder):
            if self._seen is None or self._seen[0] != found[0].tag:
                self._seen = (found[0].tag, now)
            if now - self._seen[1] < _TAKE_OVER_AFTER:
                return False
        # The first dispatcher reads the whole log: chains with a webhook of their own may have closed before it.
        record = json.loads(found[0].body) if found else {}
        cursor = None if record.get("new") else record.get("cursor")
        return await self._write(cursor, found[0].tag if found else None)

    async def _write(self, cursor: str | None, expected: str | None, *, holds: bool = True) -> bool:
        tag = new_token()
        body = json.dumps({"cursor": cursor, "holder": self._holder if holds else None})
        written = await self._store.put_webhook_record(WebhookWrite(DISPATCHER, DISPATCHER_CURSOR, body, tag, expected))
        self._mine = tag if written and holds else None
        self._cursor, self._written_at, self._seen = cursor, self._clock(), None
        return written

    async def release(self) -> None:
        """Let another worker go on at once."""
        if self._mine is not None:
            with suppress(Exception):
                await self._write(self._cursor, self._mine, holds=False)

    async def dispatch(self) -> bool:
        """Start the deliveries of the next page of events; return whether there are more."""
        try:
            page = await self._store.list_events(EventFilter(), PageRequest(_PAGE, self._cursor, oldest_first=True))
        except EventsLostError as error:
            found = await self._store.get_webhook_records(DISPATCHER, [DISPATCHER_CURSOR])
            if not found or found[0].tag != self._mine:
                # A failover lost the last writes of the record, and perhaps no event that is after the place it has.
                self._mine = None
                return False
            self._client.observers.emit(WebhookEventsLost(error=str(error)))
            await self._write(error.cursor or (await self._store.event_log_end()).cursor, self._mine)
            return self._mine is not None
        if page.items:
            try:
                await self._deliver(page.items)
            except _Replaced:
                return False
        cursor = page.next_cursor or (page.items[-1].cursor if page.items else self._cursor)
        if cursor != self._cursor or self._clock() - self._written_at >= _RENEW_EVERY:
            await self._write(cursor, self._mine)
        return page.next_cursor is not None and self._mine is not None

    async def _deliver(self, events: Sequence[JobEvent]) -> None:
        """Start the deliveries of events. One that can be told of to nobody is reported, and holds up no other."""
        codec = self._client.webhook_codec
        # Secrets are not needed here: one that cannot be read fails its own deliveries.
        stored = [codec.read(one, secrets=False) for one in await self._store.get_webhook_records(ENDPOINT)]
        webhooks = [one for one in stored if one.enabled and one.id != CHAIN_WEBHOOKS]
        try:
            await self._start_deliveries(webhooks, events)
        except _NO_FAULT_OF_AN_EVENT:
            raise
        except Exception:
            # Those of the page that were started already are not started twice.
            for event in events:
                try:
                    await self._start_deliveries(webhooks, [event])
                except _NO_FAULT_OF_AN_EVENT:
                    raise
                except Exception as error:
                    self._client.observers.emit(
                        WebhookEventSkipped(
                            chain_id=event.chain_id,
                            job_id=event.job_id,
                            kind=event.kind,
                            error=error_of(error, "webhook"),
                        )
                    )

    async def _start_deliveries(self, webhooks: Sequence[StoredWebhook], events: Sequence[JobEvent]) -> None:
        await self._renew()
        deliveries = await self._client._deliveries_of(self._store, webhooks, events, of_chains=True)
        if not deliveries:
            return
        if any(one.webhook_id == CHAIN_WEBHOOKS for one in deliveries):
            await self._client._make_chain_webhooks(self._store)
        key = await self._client._webhook_key(self._store)
        for at in range(0, len(deliveries), STARTED_AT_ONCE):
            await self._renew()
            part = [one.job(key) for one in deliveries[at : at + STARTED_AT_ONCE]]
            await self._client._start_deliveries(self._store, part)

    async def _renew(self) -> None:
        """Stay the dispatcher while a page takes long.

        Raises:
            _Replaced: another worker is.
        """
        due = self._clock() - self._written_at >= _RENEW_EVERY
        if self._mine is None or (due and not await self._write(self._cursor, self._mine)):
            raise _Replaced

    async def _prune(self) -> None:
        """Delete old entries of the log of deliveries."""
        self._prune_at = self._clock() + _PRUNE_EVERY
        age = self._settings.keep_days * 86_400
        while await self._store.prune_webhook_attempts(age) >= 1_000:
            await self._renew()
        await self._prune_health(datetime.now(UTC) - timedelta(seconds=age))

    async def _prune_health(self, before: datetime) -> None:
        """Delete the health of receivers of which nothing is left: of a webhook that was deleted while a delivery was
        sent, and of the host of single chains, if the last attempt is as old as this."""
        # Read before the webhooks: one that is made in between is not taken for one that was deleted.
        records = await self._store.get_webhook_records(HEALTH)
        webhooks = {one.id for one in await self._store.get_webhook_records(ENDPOINT)}
        for record in records:
            await self._renew()
            of_host = record.id.startswith(f"{CHAIN_WEBHOOKS}:")
            if record.id not in webhooks and (not of_host or WebhookHealth.decode(record.body).last_at < before):
                await self._store.put_webhook_record(WebhookWrite(HEALTH, record.id, None, new_token(), record.tag))


# --- deliveries -------------------------------------------------------------------------------------------------------


async def deliver(attempt: Attempt[dict[str, Any], dict[str, Any], _Resources]) -> Outcome[dict[str, Any]]:
    """Send a delivery: the handler of its job."""
    resources = attempt.resources
    try:
        delivery = await _opened(attempt.input, resources)
    except ConfigurationError as error:
        return attempt.fail(str(error))
    found = await resources.store.get_webhook_records(ENDPOINT, [delivery.webhook_id])
    webhook = resources.client.webhook_codec.read(found[0]) if found else None
    if webhook is None or (not webhook.enabled and not delivery.once):
        return attempt.cancel("the webhook was deleted" if webhook is None else "the webhook is disabled")
    receiver = _Health(resources, delivery, attempt._claimed.started_at)
    wait = 0.0 if delivery.once else await receiver.seconds_to_wait()
    if wait > 0:
        return attempt.snooze(wait)
    number = attempt.number - attempt._claimed.uncounted
    answer, failure, seconds = await _sent(resources.settings, webhook, delivery)
    status = None if answer is None else answer.status
    if failure is None:
        # A ping says nothing of how the receiver takes events.
        if delivery.event_type != PING:
            await receiver.succeeded()
        await _record(resources, delivery, number, answer, None, seconds, None)
        return {"status": status}
    gone = status == 410 and delivery.url is None
    retry_after = None if answer is None else answer.retry_after
    delay = next_delay(number, status=status, error=failure, retry_after=retry_after)
    if delivery.once or status == 410:
        delay = None
    if not delivery.once:
        # What was sent by hand may be what the receiver has refused for good.
        await receiver.failed(gone=gone)
    await _record(resources, delivery, number, answer, failure, seconds, delay)
    reason = f"{failure}: {status}" if status else failure
    return attempt.fail(reason) if delay is None else attempt.retry(after=delay, reason=reason)


async def _opened(input: Any, resources: _Resources) -> Delivery:
    """Return the delivery of a job, sealed with a key that this worker knows, or with one that was made since.

    Raises:
        ConfigurationError: its seal is not valid.
    """
    for key in resources.keys:
        with suppress(ConfigurationError):
            return Delivery.opened(input, key)
    key = await resources.client._webhook_key(resources.store)
    delivery = Delivery.opened(input, key)
    resources.keys = (key, *resources.keys[: _KEYS - 1])
    return delivery


async def _sent(
    settings: WebhookSettings, webhook: StoredWebhook, delivery: Delivery
) -> tuple[HttpAnswer | None, str | None, float]:
    """Send a delivery; return the answer, the kind of failure, and the seconds that it took.

    A connection that failed at once is tried once more: a receiver that is being replaced is back in a moment.
    """
    began = time.monotonic()
    secrets = webhook.live_secrets(datetime.now(UTC))
    body = delivery.body.encode()
    for last in (False, True):
        headers = {
            **webhook.headers,
            "content-type": "application/json",
            "user-agent": "queuert-webhooks/1",
            **signed_headers(secrets, delivery.id, body),
        }
        try:
            answer = await post(delivery.url or webhook.url, body, headers, settings.targets, resolve=settings.resolve)
        except RequestFailed as error:
            seconds = time.monotonic() - began
            if error.code == "connection" and seconds < _INSTANT and not last:
                continue
            return None, error.code, seconds
        return answer, None if 200 <= answer.status < 300 else "http", time.monotonic() - began
    raise AssertionError("the second try returns")


async def _record(
    resources: _Resources,
    delivery: Delivery,
    number: int,
    answer: HttpAnswer | None,
    error: str | None,
    seconds: float,
    delay: float | None,
) -> None:
    """Write how an attempt went into the log of deliveries."""
    kept = resources.settings.targets.keep_answer
    text = None
    if answer is not None and kept:
        text = answer.body[:kept].decode(errors="replace").replace("\0", "\ufffd") or None
    await resources.store.record_webhook_attempts(
        [
            NewWebhookAttempt(
                delivery.webhook_id, delivery.id, delivery.event_type, number,
                None if answer is None else answer.status, error, seconds, delay, text,
            )
        ]
    )  # fmt: skip


class _Health:
    """The health of a receiver: its circuit, and since when nothing could be delivered.

    Its times are by the clock of the store, as workers' clocks differ: ``claimed_at`` is when the attempt was claimed.
    """

    def __init__(self, resources: _Resources, delivery: Delivery, claimed_at: datetime) -> None:
        self._claimed_at = claimed_at
        self._began = time.monotonic()
        self._store = resources.store
        self._resources = resources
        self._delivery = delivery
        self._id = delivery.health_id

    async def seconds_to_wait(self) -> float:
        """Return the seconds that a delivery has to wait, as the circuit is open; 0 if it may be sent.

        Of those that are due while the circuit is open, one is sent, to see whether the receiver is back.
        """
        for _ in range(_TRIES):
            record, health = await self._read()
            if health.probe_at is None:
                return 0.0
            now = self._now()
            left = (health.probe_at - now).total_seconds()
            # One that is further away was set before the clock of the store was set back.
            if 0 < left <= _FURTHEST_PROBE:
                return left + random.uniform(0.0, min(_LONGEST_WAIT, PROBE_EVERY * max(1, health.failures // 10)))
            if await self._write(record, health.probing(now)):
                return 0.0
        return PROBE_EVERY

    async def succeeded(self) -> None:
        """Record that a delivery was accepted."""
        for _ in range(_TRIES):
            record, health = await self._read()
            if health.is_good or await self._write(record, health.after_success(self._now())):
                return

    async def failed(self, *, gone: bool) -> None:
        """Record that an attempt failed; disable the webhook if it has failed for too long, or is gone."""
        health = WebhookHealth()
        now = self._now()
        for _ in range(_TRIES):
            record, before = await self._read()
            health = before.after_failure(now)
            if reports := not before.reported and health.failing_for(now) >= FAILING_AFTER:
                health = replace(health, reported=True)
            if await self._write(record, health):
                if reports and self._delivery.url is None:
                    self._resources.client.observers.emit(
                        WebhookFailing(webhook=self._id, seconds=health.failing_for(now), failures=health.failures)
                    )
                break
        days = self._resources.settings.disable_after_days
        too_long = health.failures >= FAILURES_TO_OPEN and health.failing_for(now) >= days * 86_400
        if self._delivery.url is None and (gone or too_long) and await self._is_enabled():
            reason = "its receiver answered 410 Gone" if gone else f"nothing could be delivered for {days:g} days"
            await self._resources.client.disable_webhook(self._id, reason=reason)
            self._resources.client.observers.emit(WebhookDisabled(webhook=self._id, cause=reason))

    def _now(self) -> datetime:
        """The time of the store, too early by what passed between the claim and the beginning of the attempt."""
        return self._claimed_at + timedelta(seconds=time.monotonic() - self._began)

    async def _is_enabled(self) -> bool:
        """Whether the webhook is still enabled: other deliveries may have failed at the same time."""
        found = await self._store.get_webhook_records(ENDPOINT, [self._id])
        return bool(found) and self._resources.client.webhook_codec.read(found[0]).enabled

    async def _read(self) -> tuple[WebhookRecord | None, WebhookHealth]:
        found = await self._store.get_webhook_records(HEALTH, [self._id])
        return (found[0], WebhookHealth.decode(found[0].body)) if found else (None, WebhookHealth())

    async def _write(self, record: WebhookRecord | None, health: WebhookHealth) -> bool:
        body = None if health.is_good else health.encode()
        if record is None and body is None:
            return True
        tag = None if record is None else record.tag
        return await self._store.put_webhook_record(WebhookWrite(HEALTH, self._id, body, new_token(), tag))
