"""Deliveries: what is sent of an event, and the job that sends it. Pure functions."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from queuert.documents import EventDocument, json_text
from queuert.errors import ConfigurationError
from queuert.event_log import JobEvent
from queuert.state.records import json_value
from queuert.state.types import NewJob
from queuert.webhooks.addresses import parsed
from queuert.webhooks.endpoints import DELIVERY_TYPE, PING

MOST_PAYLOAD = 20 * 1024
"""Bytes of an output that are sent at most."""

STARTED_AT_ONCE = 100
"""Deliveries that are started in one call of the store."""

_MOST_MESSAGE = 2_000
"""Characters of an error that are sent."""

KEY = "key"
"""The id of the record of the dispatcher with the key of the seals."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What the job of a delivery sends, and to which webhook.

    Attributes:
        webhook_id: of the webhook, whose address and secrets are those at the time of each attempt.
        id: the header ``webhook-id``.
        event_type: such as ``chain.completed``.
        body: the text that is sent and signed.
        url: the address, for the webhook of a single chain.
        once: whether it was asked for by hand, and is tried whether or not the webhook's circuit is open.
    """

    webhook_id: str
    id: str
    event_type: str
    body: str
    url: str | None = None
    once: bool = False

    def job(self, key: str, *, copy: bool = False) -> NewJob:
        """Return the first job of the chain that makes the delivery, sealed; a ``copy`` is beside an earlier one."""
        fields = asdict(self)
        return NewJob(
            id=f"{self.id}-{secrets.token_hex(4)}" if copy else self.id,
            type=DELIVERY_TYPE,
            input=json.dumps({**fields, "seal": _seal(key, fields)}),
            id_chosen=True,
            attach=True,
            limit_key=self.health_id,
            max_attempts=1 if self.once else None,
        )

    @property
    def health_id(self) -> str:
        """Under which id the health of its receiver is kept: the webhook's; or that of the host for a single chain."""
        if self.url is None:
            return self.webhook_id
        target = parsed(self.url)  # However it is spelled.
        receiver = f"{target.scheme}://{target.host_header}"
        return f"{self.webhook_id}:{hashlib.sha256(receiver.encode()).hexdigest()[:16]}"

    @classmethod
    def opened(cls, input: Any, key: str) -> Delivery:
        """Return the delivery of a job.

        Raises:
            ConfigurationError: its seal is not valid: somebody has written the job by hand.
        """
        try:
            fields = dict(input)
            seal = fields.pop("seal")
            if hmac.compare_digest(seal, _seal(key, fields)):
                return cls(**fields)
        except (KeyError, TypeError, ValueError):
            pass
        raise ConfigurationError(
            f"a job of type {DELIVERY_TYPE!r} must be started by the dispatcher, by a ping or by a replay"
        )


def _seal(key: str, fields: dict[str, Any]) -> str:
    return hmac.new(key.encode(), json.dumps(fields, sort_keys=True).encode(), hashlib.sha256).hexdigest()


def delivery_id(key: str, event: JobEvent, event_type: str, webhook_id: str) -> str:
    """Return the ``webhook-id`` of an event for a webhook: the same whenever it is made, and without dots.

    Nobody without the key can know it beforehand, and start a chain of this id: the delivery would not be made.
    """
    of_chain = "-chain" if event_type.startswith("chain.") else ""
    place = f"evt_{event.tx}-{event.seq}{of_chain}"
    secret = hmac.new(key.encode(), f"{place}-{webhook_id}".encode(), hashlib.sha256).hexdigest()[:32]
    return f"{place}-{secret}-{webhook_id}"


def event_body(event: JobEvent, event_type: str, *, payloads: bool, output: str | None = None) -> str:
    """Return the body that tells of an event.

    Args:
        payloads: whether the error of a failed attempt, and the output of a completed chain, are told.
        output: of the chain, as JSON text; left out if it is too large or stored in another format.
    """
    if event.error is not None:
        # The traceback is for those who operate the queue.
        short = replace(event.error, message=event.error.message[:_MOST_MESSAGE], traceback=None)
        event = replace(event, error=short)
    # What handlers write to progress is for those who may read payloads here, not for other systems.
    data = EventDocument.of(event, payloads=False, errors=payloads).as_dict()
    if payloads and output is not None:
        if len(output.encode()) <= MOST_PAYLOAD:
            data["output"] = json_value(output)
        else:
            data["output_too_large"] = True
    return _body(event_type, event.happened_at, data)


def ping_of(webhook_id: str, now: datetime) -> Delivery:
    """Return a delivery that tells of nothing."""
    body = _body(PING, now, {"webhook_id": webhook_id})
    return Delivery(webhook_id, f"evt_ping-{secrets.token_hex(8)}-{webhook_id}", PING, body, once=True)


def _body(event_type: str, at: datetime, data: dict[str, Any]) -> str:
    return json_text({"type": event_type, "timestamp": at, "data": data})
