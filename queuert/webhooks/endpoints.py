"""Webhooks as they are stored and shown, what they select, and how their health changes. Pure functions."""

from __future__ import annotations

import json
import random
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from queuert.attributes import GivenAttributes, attribute_filter, pairs_of
from queuert.codecs import PLAIN, PayloadFormat
from queuert.errors import CodecError, ConfigurationError, DefinitionError, InvalidIdentifierError, QueuertError
from queuert.event_log import EventKind, JobEvent
from queuert.ids import new_token
from queuert.job_types import checked_type_name
from queuert.jobs import Attributes
from queuert.state.webhooks import ENDPOINT, WebhookRecord, WebhookWrite
from queuert.texts import check_text
from queuert.webhooks.addresses import parsed
from queuert.webhooks.signing import checked_secret, new_secret

DELIVERY_TYPE = "queuert.webhook"
"""The job type of deliveries."""

CHAIN_WEBHOOKS = "chains"
"""The id under which the secret of webhooks of single chains is kept: ``start_chain(..., webhook="https://...")``."""

CHAIN_ATTRIBUTE = "queuert.webhook"
"""The attribute of a chain that has a webhook of its own: its URL."""

CLOSED_EVENTS = ("chain.completed", "chain.failed", "chain.cancelled")
PING = "webhook.ping"
_DELETED = f"job.{EventKind.DELETED.value}"
EVENT_TYPES = frozenset({"chain.started", *CLOSED_EVENTS, *(f"job.{kind.value}" for kind in EventKind)})
"""What a webhook can be told of."""

OVERLAP = 24 * 3_600.0
"""Seconds that a secret signs after it was replaced."""

_EVENT_TYPE = re.compile(r"(job|chain)\.[a-z_]{1,40}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_OWN_HEADERS = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "connection", "te", "trailer", "upgrade", "expect"}
) | {"accept-encoding", "user-agent", "keep-alive", "proxy-authorization", "proxy-connection", "cookie"}
_MOST_HEADERS = 20


@dataclass(frozen=True, slots=True)
class WebhookFilter:
    """What a webhook is told of: the events that match every field that is set.

    Attributes:
        events: names such as ``chain.failed`` and ``job.retried``.
        job_types: for events of chains the types of their first jobs, for those of jobs their types.
        attributes: pairs of name and value, all of which the chain must have.
    """

    events: tuple[str, ...] = CLOSED_EVENTS
    job_types: tuple[str, ...] | None = None
    attributes: tuple[tuple[str, str], ...] = ()

    def checked(self) -> WebhookFilter:
        """Return it, if what it selects can be.

        Raises:
            ConfigurationError: it selects deletions by attributes.
        """
        if self.attributes and _DELETED in self.events:
            raise ConfigurationError(
                f"a webhook of {_DELETED} must have no attributes, which are deleted with their chain: leave them out"
            )
        return self

    @classmethod
    def of(
        cls, events: Iterable[str] | None, job_types: Iterable[str] | None, attributes: GivenAttributes | None
    ) -> WebhookFilter:
        """Return a checked filter; without ``events`` it is that of chains that close.

        Raises:
            ConfigurationError: an event is not known, or there is none, ``attributes`` is no mapping of values, or
                deletions are to be selected by them.
            InvalidIdentifierError: an attribute or the name of a job type is not valid.
        """
        if isinstance(events, str) or isinstance(job_types, str):
            raise ConfigurationError("events and job_types must be sequences of names, got a string: write [...]")
        chosen = CLOSED_EVENTS if events is None else tuple(dict.fromkeys(events))
        unknown = [one for one in chosen if one not in EVENT_TYPES]
        if unknown or not chosen:
            raise ConfigurationError(
                f"events of a webhook must be some of {', '.join(sorted(EVENT_TYPES))}, got {unknown or chosen!r}"
            )
        try:
            types = None if job_types is None else tuple(dict.fromkeys(checked_type_name(one) for one in job_types))
        except DefinitionError as error:
            raise InvalidIdentifierError(str(error)) from None
        if types == ():
            raise ConfigurationError("job_types of a webhook must have at least one name, or be left out")
        return cls(chosen, types, () if attributes is None else attribute_filter(attributes)).checked()

    def selects(self, event_type: str, event: JobEvent) -> bool:
        """Whether an event is selected, as far as its chain's attributes are not asked for."""
        type = event.chain_type if event_type.startswith("chain.") else event.type
        return event_type in self.events and (self.job_types is None or type in self.job_types)

    def selects_attributes(self, attributes: Attributes) -> bool:
        """Whether a chain with these attributes is selected."""
        return not self.attributes or set(self.attributes) <= set(pairs_of(attributes))


def event_types(event: JobEvent) -> list[str]:
    """Return the names under which webhooks are told of an event: of its job, and perhaps of its chain."""
    found = [f"job.{event.kind}"]
    if event.closes_chain:
        found.append(f"chain.{event.status.value}")
    elif event.kind == EventKind.CREATED and event.chain_index == 0:
        found.append("chain.started")
    return [one for one in found if _EVENT_TYPE.fullmatch(one)]


@dataclass(frozen=True, slots=True)
class WebhookSecret:
    """A secret, and until when it signs.

    Attributes:
        value: ``whsec_`` and base64.
        created_at: when it was made, UTC.
        expires_at: until when it signs beside its successor; None for the newest.
    """

    value: str = field(repr=False)
    created_at: datetime
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Webhook:
    """A webhook: an address, and what it is told of. Secrets and the values of headers are not shown.

    Attributes:
        id: its id, such as ``wh_5f2c8e1f09ab34cd``.
        url: where deliveries are sent.
        filter: what it is told of.
        description: for people.
        payloads: whether the output of a completed chain, and the error of a failed one, are sent as well.
        headers: the names of headers that are added to its requests.
        enabled: whether deliveries are sent.
        disabled_reason: why not.
        created_at: when it was made, UTC.
        secret_ends: the last four characters of each secret that signs, the newest first.
        failures: failures in a row; 0 after a success.
        failing_since: when nothing could be delivered any more, UTC; None if the last delivery was accepted.
        circuit: ``closed``; or ``open`` while deliveries wait until one of them is accepted.
    """

    id: str
    url: str
    filter: WebhookFilter
    description: str
    payloads: bool
    headers: tuple[str, ...]
    enabled: bool
    disabled_reason: str | None
    created_at: datetime
    secret_ends: tuple[str, ...]
    failures: int = 0
    failing_since: datetime | None = None
    circuit: str = "closed"


@dataclass(frozen=True, slots=True)
class NewWebhook:
    """A webhook that was made, or whose secret was rotated, with its secret, which is not shown again.

    Attributes:
        webhook: the webhook.
        secret: signs its deliveries. Give it to the receiver.
    """

    webhook: Webhook
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class StoredWebhook:
    """A webhook as it is stored."""

    id: str
    url: str
    filter: WebhookFilter
    secrets: tuple[WebhookSecret, ...]
    created_at: datetime
    from_tx: int
    """Events of this transaction and later ones are delivered: earlier ones were before it was made."""
    description: str = ""
    payloads: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    enabled: bool = True
    disabled_reason: str | None = None
    sealed: Any = field(default=None, repr=False)
    """Secrets and headers as they are stored, if they were not read; None if they were."""

    def live_secrets(self, now: datetime) -> list[str]:
        """Return the secrets that sign, the newest first."""
        return [one.value for one in self.secrets if one.expires_at is None or one.expires_at > now]

    def rotated(self, secret: str, now: datetime, overlap: float) -> StoredWebhook:
        """Return it with a new secret. Those that there were sign for ``overlap`` seconds more at most."""
        until = now + timedelta(seconds=overlap)
        old = (
            replace(one, expires_at=until if one.expires_at is None else min(one.expires_at, until))
            for one in self.secrets
            if one.expires_at is None or one.expires_at > now
        )
        kept = tuple(one for one in old if one.expires_at is not None and one.expires_at > now)
        return replace(self, secrets=(WebhookSecret(secret, now), *kept))

    def shown(self, health: WebhookHealth) -> Webhook:
        """Return what is shown of it."""
        return Webhook(
            self.id, self.url, self.filter, self.description, self.payloads, tuple(self.headers), self.enabled,
            self.disabled_reason, self.created_at,
            tuple(one[-4:] for one in self.live_secrets(datetime.now(UTC))),
            health.failures, health.failing_since, "open" if health.is_open else "closed",
        )  # fmt: skip


def new_webhook(
    url: str,
    filter: WebhookFilter,
    *,
    from_tx: int,
    secret: str | None = None,
    description: str = "",
    payloads: bool = False,
    headers: Mapping[str, str] | None = None,
) -> StoredWebhook:
    """Return a new webhook, checked.

    Raises:
        ForbiddenTargetError: the URL is not valid. Which networks are allowed is known to workers alone.
        ConfigurationError: a secret or header is not valid.
        InvalidIdentifierError: the description cannot be stored.
    """
    parsed(url)
    if secret is not None:
        checked_secret(secret)
    if description:
        check_text(description, what="description")
    now = datetime.now(UTC)
    secrets_ = (WebhookSecret(secret or new_secret(), now),)
    return StoredWebhook(
        f"wh_{secrets.token_hex(8)}", url, filter, secrets_, now, from_tx, description, bool(payloads),
        checked_headers(headers),
    )  # fmt: skip


def chain_webhooks(from_tx: int = 0) -> StoredWebhook:
    """Return what stands for the webhooks of single chains: their secret."""
    now = datetime.now(UTC)
    return StoredWebhook(
        CHAIN_WEBHOOKS, "", WebhookFilter(), (WebhookSecret(new_secret(), now),), now, from_tx,
        "webhooks of single chains",
    )  # fmt: skip


def checked_chain_url(url: str) -> str:
    """Return the URL of a single chain's webhook.

    Raises:
        ForbiddenTargetError: it is not valid, or longer than the 512 characters of an attribute.
    """
    parsed(url)
    return check_text(url, what="webhook")


def is_chain_url(url: str) -> bool:
    """Whether ``checked_chain_url`` accepts it."""
    try:
        checked_chain_url(url)
    except QueuertError:
        return False
    return True


def checked_headers(headers: Mapping[Any, Any] | None) -> dict[str, str]:
    """Return headers that may be added to requests.

    Raises:
        ConfigurationError: a name or value is not valid, or of a header that requests have anyway; or there are too
            many.
    """
    found = dict(headers or {})
    if len(found) > _MOST_HEADERS:
        raise ConfigurationError(f"a webhook must have at most {_MOST_HEADERS} headers, got {len(found)}")
    for name, value in found.items():
        known = isinstance(name, str) and _HEADER.fullmatch(name)
        if not known or name.lower() in _OWN_HEADERS or name.lower().startswith("webhook-"):
            raise ConfigurationError(f"a header of a webhook must not be one that its requests have, got {name!r}")
        if not isinstance(value, str) or not value.isascii() or not value.isprintable() or len(value) > 2_048:
            raise ConfigurationError(f"the value of header {name!r} must be printable ASCII, at most 2,048 characters")
        if value != value.strip():
            raise ConfigurationError(f"the value of header {name!r} must not begin or end with a space")
    return found


# --- records ----------------------------------------------------------------------------------------------------------


class WebhookCodec:
    """Turns webhooks into records, with their secrets and headers in a format that may encrypt them."""

    def __init__(self, format: PayloadFormat | None) -> None:
        self.format = PLAIN if format is None else format

    def write(self, webhook: StoredWebhook, expected: str | None) -> WebhookWrite:
        """Return the write of a webhook that was read with a tag; None if it is new."""
        public = {
            "url": webhook.url,
            "filter": asdict(webhook.filter),
            "created_at": webhook.created_at.isoformat(),
            "from_tx": webhook.from_tx,
            "description": webhook.description,
            "payloads": webhook.payloads,
            "enabled": webhook.enabled,
            "disabled_reason": webhook.disabled_reason,
        }
        secret = {
            "secrets": [
                [one.value, one.created_at.isoformat(), one.expires_at and one.expires_at.isoformat()]
                for one in webhook.secrets
            ],
            "headers": dict(webhook.headers),
        }
        sealed = self._sealed(webhook.id, secret) if webhook.sealed is None else webhook.sealed
        return WebhookWrite(ENDPOINT, webhook.id, json.dumps({**public, "secret": sealed}), new_token(), expected)

    def read(self, record: WebhookRecord, *, secrets: bool = True) -> StoredWebhook:
        """Return the webhook of a record; with ``secrets`` false, secrets and headers stay as they are stored.

        Raises:
            CodecError: the format cannot read its secrets.
        """
        body = json.loads(record.body)
        sealed = body.pop("secret")
        secret = self._opened(record.id, sealed) if secrets else {"secrets": [], "headers": {}}
        filter = body.pop("filter")
        types = filter["job_types"]
        return StoredWebhook(
            id=record.id,
            filter=WebhookFilter(
                tuple(filter["events"]),
                None if types is None else tuple(types),
                tuple(map(tuple, filter["attributes"])),
            ),
            secrets=tuple(
                WebhookSecret(value, _moment(created), _moment_or_none(expires))
                for value, created, expires in secret["secrets"]
            ),
            headers=secret["headers"],
            created_at=_moment(body.pop("created_at")),
            sealed=None if secrets else sealed,
            **body,
        )

    def read_if_possible(self, record: WebhookRecord) -> StoredWebhook:
        """Return the webhook of a record, without its secrets and headers if the format cannot read them."""
        try:
            return self.read(record)
        except CodecError:
            return self.read(record, secrets=False)

    def _sealed(self, id: str, value: Any) -> Any:
        if self.format.writes_plain:
            return value
        data = json.dumps(value).encode()
        text = self.format.sealed(data, job_type=f"{DELIVERY_TYPE}:{id}", field="secret", max_bytes=_MOST_BYTES)
        return json.loads(text)

    def _opened(self, id: str, stored: Any) -> Any:
        if isinstance(stored, dict) and "secrets" in stored:
            if not self.format.reads_plain:
                raise CodecError(
                    "the secrets of a webhook are stored in plain text, which webhook_format does not read"
                )
            return stored
        _, data = self.format.opened(stored, job_type=f"{DELIVERY_TYPE}:{id}", field="secret", max_bytes=_MOST_BYTES)
        return json.loads(data)


_MOST_BYTES = 256 * 1024


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _moment_or_none(text: str | None) -> datetime | None:
    return None if text is None else _moment(text)


# --- health -----------------------------------------------------------------------------------------------------------

FAILURES_TO_OPEN = 10
"""Failures in a row after which the circuit opens. A webhook is disabled after no fewer."""

_WINDOW = timedelta(minutes=5)
_LEAST_IN_WINDOW = 10
_SHARE_TO_OPEN = 0.7
PROBE_EVERY = 30.0
"""Seconds between two attempts while a circuit is open."""

FAILING_AFTER = 12 * 3_600.0
"""Seconds of nothing but failures after which a webhook is reported as failing."""


@dataclass(frozen=True, slots=True)
class WebhookHealth:
    """How deliveries to a webhook went lately. Times are UTC, by the clock of the store.

    Attributes:
        recent: when attempts ended and whether they were accepted, of the last minutes, once one has failed.
        probe_at: when a delivery may try the next time, while the circuit is open; None while it is closed.
        reported: whether it was reported as failing.
    """

    failures: int = 0
    failing_since: datetime | None = None
    recent: tuple[tuple[datetime, bool], ...] = ()
    probe_at: datetime | None = None
    reported: bool = False

    @property
    def is_open(self) -> bool:
        """Whether deliveries wait."""
        return self.probe_at is not None

    @property
    def last_at(self) -> datetime:
        """When the last attempt ended that is recorded here."""
        times = [at for at, _ in self.recent]
        return max(times, default=self.failing_since or datetime.min.replace(tzinfo=UTC))

    @property
    def is_good(self) -> bool:
        """Whether nothing has failed lately, so that a success changes nothing."""
        return self.failing_since is None and self.probe_at is None and not self.recent

    def after_success(self, now: datetime) -> WebhookHealth:
        """Return it after a delivery was accepted."""
        recent = self._recent(now, True)
        return WebhookHealth(recent=recent if any(not accepted for _, accepted in recent) else ())

    def after_failure(self, now: datetime) -> WebhookHealth:
        """Return it after an attempt failed; it may open the circuit."""
        recent = self._recent(now, False)
        failures = self.failures + 1
        failed = sum(1 for _, accepted in recent if not accepted)
        opens = failures >= FAILURES_TO_OPEN or (
            len(recent) >= _LEAST_IN_WINDOW and failed / len(recent) >= _SHARE_TO_OPEN
        )
        probe_at = now + timedelta(seconds=PROBE_EVERY) if opens or self.is_open else None
        return replace(
            self, failures=failures, failing_since=self.failing_since or now, recent=recent, probe_at=probe_at
        )

    def probing(self, now: datetime) -> WebhookHealth:
        """Return it with the next probe taken: others wait."""
        return replace(self, probe_at=now + timedelta(seconds=PROBE_EVERY))

    def failing_for(self, now: datetime) -> float:
        """Return the seconds since which nothing could be delivered."""
        return 0.0 if self.failing_since is None else (now - self.failing_since).total_seconds()

    def _recent(self, now: datetime, accepted: bool) -> tuple[tuple[datetime, bool], ...]:
        kept = [one for one in self.recent if now - one[0] <= _WINDOW]
        return (*kept[-29:], (now, accepted))

    def encode(self) -> str:
        """Return it as text."""
        return json.dumps(
            {
                "failures": self.failures,
                "failing_since": self.failing_since and self.failing_since.isoformat(),
                "recent": [[at.isoformat(), accepted] for at, accepted in self.recent],
                "probe_at": self.probe_at and self.probe_at.isoformat(),
                "reported": self.reported,
            }
        )

    @classmethod
    def decode(cls, text: str) -> WebhookHealth:
        """Return it from text."""
        found = json.loads(text)
        return cls(
            failures=found["failures"],
            failing_since=_moment_or_none(found["failing_since"]),
            recent=tuple((_moment(at), accepted) for at, accepted in found["recent"]),
            probe_at=_moment_or_none(found["probe_at"]),
            reported=found["reported"],
        )


# --- the schedule -----------------------------------------------------------------------------------------------------

SCHEDULE = (0.0, 5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""Seconds before each attempt, from the one before it."""

_LEAST_JITTER, _MOST_JITTER = 2.0, 900.0
_BUSY = frozenset({429, 502, 504})
_BUSY_DELAY = 60.0


def next_delay(attempt: int, *, status: int | None, error: str, retry_after: str | None = None) -> float | None:
    """Return the seconds until the attempt after this one; None if there is none.

    The delay of the schedule is made up to a tenth longer, never shorter. ``Retry-After`` counts between once and twice
    the delay.
    """
    if attempt >= len(SCHEDULE):
        return None
    delay = SCHEDULE[attempt]
    if status in _BUSY or error == "timeout":
        delay = max(delay, _BUSY_DELAY)
    if retry_after is not None and retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 16:
        delay = min(max(delay, float(retry_after)), 2 * delay)
    return delay + random.uniform(0.0, min(max(delay / 10, _LEAST_JITTER), _MOST_JITTER))
