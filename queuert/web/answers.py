"""What the routes answer: documents, in pages and with links, and what the interface alone says."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Self
from urllib.parse import quote

from pydantic import TypeAdapter
from pydantic.errors import PydanticInvalidForJsonSchema

from queuert.client import AsyncChain
from queuert.documents import (
    ChainDocument,
    Document,
    JobDocument,
    JobTypeDocument,
    WebhookAttemptDocument,
    WebhookDocument,
)
from queuert.jobs import ChainStatus


class Links(Document):
    """Paths on this server."""

    chain: str
    jobs: str
    progress: str
    explanation: str
    result: str
    events: str


class LinkedChain(ChainDocument):
    """A chain, and where to read more of it."""

    links: Links

    @classmethod
    def at(cls, base: str, chain: AsyncChain[Any], *, payloads: bool) -> Self:
        """Return a chain of which all was read, unless this start has made it; links begin with the path ``base``."""
        return cls(**ChainDocument.of(chain, payloads=payloads).as_dict(), links=links_of(base, chain.id))


class ChangedChain(LinkedChain):
    """A chain whose waiting job was changed."""

    scheduled_at: datetime
    """When its job may run."""


class ChainsPage(Document):
    """A page of chains."""

    items: list[LinkedChain]
    next_cursor: str | None


class JobsPage(Document):
    """A page of jobs."""

    items: list[JobDocument]
    next_cursor: str | None


class Result(Document):
    """The output of a completed chain."""

    id: str
    output: Any


class OpenChain(Document):
    """A chain that has no result yet: ask again."""

    id: str
    status: ChainStatus


class JobTypes(Document):
    """The registered job types."""

    items: list[JobTypeDocument]


class Index(Document):
    """Where to begin."""

    chains: str
    events: str
    job_types: str
    openapi: str


class Gap(Document):
    """Events that the client has not got are lost, or got other numbers."""

    reason: str


class Webhooks(Document):
    """All webhooks."""

    items: list[WebhookDocument]


class WebhookAttemptsPage(Document):
    """Attempts at deliveries, the newest first."""

    items: list[WebhookAttemptDocument]
    next_cursor: str | None


class Replayed(Document):
    """How many deliveries are made again."""

    replayed: int


class Pinged(Document):
    """The id of the delivery of a ping."""

    delivery: str


class Deleted(Document):
    """What was deleted."""

    deleted: str


def links_of(base: str, chain_id: str) -> Links:
    """The paths of a chain below the path of the application."""
    chain = f"{base}/chains/{path_segment(chain_id)}"
    parts = ("jobs", "progress", "explanation", "result", "events")
    return Links(chain=chain, **{part: f"{chain}/{part}" for part in parts})


def path_segment(id: str) -> str:
    """The id as one segment of a path. Browsers and proxies would resolve bare dots."""
    return quote(id, safe="") if id.strip(".") else id.replace(".", "%2E")


def schema_of(annotation: Any) -> dict[str, Any]:
    """The JSON schema of an input or output; one that allows everything if pydantic has none for it."""
    try:
        return TypeAdapter(annotation).json_schema()
    except PydanticInvalidForJsonSchema:
        return {}
