# Generated from queuert/state/redis/async_webhooks.py, do not edit: see scripts/unasync.py
"""Records of webhooks and attempts at deliveries on Redis. ``sync_webhooks.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from queuert.jobs import Attributes
from queuert.state.paging import Page, PageRequest
from queuert.state.redis import webhooks
from queuert.state.redis.encode import Arguments, plain
from queuert.state.webhooks import (
    NewWebhookAttempt,
    WebhookAttempt,
    WebhookRecord,
    WebhookWrite,
    attempt_number,
    attempts_page,
)


class RedisWebhooks:
    """Reads and writes records of webhooks, and the log of deliveries."""

    if TYPE_CHECKING:

        def _run(self, name: str, arguments: Arguments) -> Any: ...

        def _commit(self, name: str, arguments: Arguments) -> Any: ...

    def get_webhook_records(self, kind: str, ids: Sequence[str] | None = None) -> list[WebhookRecord]:
        """Return the records of a kind that exist, by id."""
        params: dict[str, Any] = {"kind": kind}
        params.update({} if ids is None else {"ids": list(ids)})
        found = self._run("get_webhook_records", plain(params))
        return sorted((webhooks.record(kind, one) for one in found), key=lambda one: one.id)

    def put_webhook_record(self, write: WebhookWrite) -> bool:
        """Write or delete a record, if its tag is the expected one."""
        return bool(self._commit("put_webhook_record", webhooks.write(write)))

    def record_webhook_attempts(self, attempts: Sequence[NewWebhookAttempt]) -> None:
        """Write attempts at deliveries."""
        if attempts:
            self._commit("record_webhook_attempts", webhooks.new_attempts(attempts))

    def list_webhook_attempts(self, endpoint_id: str, page: PageRequest) -> Page[WebhookAttempt]:
        """List attempts at deliveries to an endpoint, the newest first."""
        params: dict[str, Any] = {"endpoint": endpoint_id, "limit": page.limit + 1}
        before = attempt_number(page.cursor)
        params.update({} if before is None else {"before": before})
        found = self._run("list_webhook_attempts", plain(params))
        return attempts_page(map(webhooks.attempt, found), page.limit)

    def prune_webhook_attempts(self, older_than: float, *, limit: int = 1_000) -> int:
        """Delete old attempts, some at a time."""
        params = {"age": round(older_than * 1_000_000), "limit": limit}
        return int(self._run("prune_webhook_attempts", plain(params)))

    def get_chain_attributes(self, ids: Sequence[str]) -> list[Attributes | None]:
        """Return the attributes of chains, in the order of the ids."""
        return [webhooks.attributes(one) for one in self._run("get_chain_attributes", plain(list(ids)))]
