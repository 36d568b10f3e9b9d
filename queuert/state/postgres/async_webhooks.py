"""Records of webhooks and attempts at deliveries on Postgres. ``sync_webhooks.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Sequence

from queuert.attributes import attributes_of
from queuert.jobs import Attributes
from queuert.state.paging import Page, PageRequest
from queuert.state.postgres import webhooks
from queuert.state.postgres.async_base import AsyncPostgresBase
from queuert.state.webhooks import (
    NewWebhookAttempt,
    WebhookAttempt,
    WebhookRecord,
    WebhookWrite,
    attempt_number,
    attempts_page,
)


class AsyncPostgresWebhooks(AsyncPostgresBase):
    """Reads and writes records of webhooks, and the log of deliveries."""

    async def get_webhook_records(self, kind: str, ids: Sequence[str] | None = None) -> list[WebhookRecord]:
        """Return the records of a kind that exist, by id."""
        wanted = None if ids is None else list(ids)
        found = await self._fetch(self._sql.get_webhook_records, {"kind": kind, "ids": wanted})
        return [WebhookRecord(*row) for row in found]

    async def put_webhook_record(self, write: WebhookWrite) -> bool:
        """Write or delete a record, if its tag is the expected one."""
        return bool(await self._fetch(*webhooks.write(self._sql, write)))

    async def record_webhook_attempts(self, attempts: Sequence[NewWebhookAttempt]) -> None:
        """Write attempts at deliveries."""
        if attempts:
            await self._fetch(self._sql.record_webhook_attempts, webhooks.new_attempts(attempts))

    async def list_webhook_attempts(self, endpoint_id: str, page: PageRequest) -> Page[WebhookAttempt]:
        """List attempts at deliveries to an endpoint, the newest first."""
        params = {"endpoint": endpoint_id, "before": attempt_number(page.cursor), "limit": page.limit + 1}
        found = await self._fetch(self._sql.list_webhook_attempts, params)
        return attempts_page(map(webhooks.attempt, found), page.limit)

    async def prune_webhook_attempts(self, older_than: float, *, limit: int = 1_000) -> int:
        """Delete old attempts, some at a time."""
        return len(await self._fetch(self._sql.prune_webhook_attempts, {"age": older_than, "limit": limit}))

    async def get_chain_attributes(self, ids: Sequence[str]) -> list[Attributes | None]:
        """Return the attributes of chains, in the order of the ids."""
        found: dict[str, str | None] = dict(await self._fetch(self._sql.get_chain_attributes, {"ids": list(ids)}))
        return [attributes_of(found[id]) if id in found else None for id in ids]
