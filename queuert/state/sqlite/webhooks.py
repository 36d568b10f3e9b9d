"""Records of webhooks and attempts at deliveries on SQLite."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from queuert.attributes import attributes_of
from queuert.jobs import Attributes
from queuert.state.paging import Page, PageRequest
from queuert.state.sqlite import rows
from queuert.state.sqlite.base import SQLiteBase
from queuert.state.sqlite.connection import Row, execute, fetch_one, now_us, run
from queuert.state.webhooks import (
    NewWebhookAttempt,
    WebhookAttempt,
    WebhookRecord,
    WebhookWrite,
    attempt_number,
    attempts_page,
)


class SQLiteWebhooks(SQLiteBase):
    """Reads and writes records of webhooks, and the log of deliveries."""

    def get_webhook_records(self, kind: str, ids: Sequence[str] | None = None) -> list[WebhookRecord]:
        """Return the records of a kind that exist, by id."""
        wanted = None if ids is None else json.dumps(list(ids))
        with self._reading() as connection:
            return [WebhookRecord(*row) for row in run(connection, "get_webhook_records", kind=kind, ids=wanted)]

    def put_webhook_record(self, write: WebhookWrite) -> bool:
        """Write or delete a record, if its tag is the expected one."""
        key = {"kind": write.kind, "id": write.id}
        with self._writing() as connection:
            if write.body is None:
                return execute(connection, "delete_webhook_record", **key, expected=write.expected) == 1
            written = {**key, "tag": write.tag, "body": write.body}
            if write.expected is None:
                return execute(connection, "insert_webhook_record", **written) == 1
            return execute(connection, "update_webhook_record", **written, expected=write.expected) == 1

    def record_webhook_attempts(self, attempts: Sequence[NewWebhookAttempt]) -> None:
        """Write attempts at deliveries."""
        if not attempts:
            return
        with self._writing() as connection:
            now = now_us()
            for one in attempts:
                run(connection, "record_webhook_attempt", **asdict(one), at=now)

    def list_webhook_attempts(self, endpoint_id: str, page: PageRequest) -> Page[WebhookAttempt]:
        """List attempts at deliveries to an endpoint, the newest first."""
        params = {"endpoint": endpoint_id, "before": attempt_number(page.cursor), "limit": page.limit + 1}
        with self._reading() as connection:
            return attempts_page(map(_attempt, run(connection, "list_webhook_attempts", **params)), page.limit)

    def prune_webhook_attempts(self, older_than: float, *, limit: int = 1_000) -> int:
        """Delete old attempts, some at a time."""
        with self._writing() as connection:
            before = now_us() - rows.microseconds_of(older_than)
            return execute(connection, "prune_webhook_attempts", before=before, limit=limit)

    def get_chain_attributes(self, ids: Sequence[str]) -> list[Attributes | None]:
        """Return the attributes of chains, in the order of the ids."""
        with self._reading() as connection:
            found = [fetch_one(connection, "attributes_of_chain", id=id) for id in ids]
        return [None if row is None else attributes_of(*row) for row in found]


def _attempt(row: Row) -> tuple[WebhookAttempt, str]:
    *fields, at, number = row
    values: list[Any] = [*fields, rows.moment(at)]
    return WebhookAttempt(*values), str(number)
