# Generated from queuert/state/postgres/async_store.py, do not edit: see scripts/unasync.py
"""The Postgres store, composed of its groups of operations. ``sync_store.py`` is generated from this module."""

from __future__ import annotations

from queuert.state.postgres.sync_base import PostgresBase
from queuert.state.postgres.sync_claiming import PostgresClaiming
from queuert.state.postgres.sync_event_log import PostgresEventLog
from queuert.state.postgres.sync_finishing import PostgresFinishing
from queuert.state.postgres.sync_listing import PostgresListing
from queuert.state.postgres.sync_management import PostgresManagement
from queuert.state.postgres.sync_retention import PostgresRetention
from queuert.state.postgres.sync_schedules import PostgresSchedules
from queuert.state.postgres.sync_starting import PostgresStarting
from queuert.state.postgres.sync_steps import PostgresSteps
from queuert.state.postgres.sync_transaction import PostgresTransaction
from queuert.state.postgres.sync_webhooks import PostgresWebhooks
from queuert.state.postgres.sync_workers import PostgresWorkers
from queuert.state.types import ClaimedJob


class PostgresStore(
    PostgresStarting,
    PostgresClaiming,
    PostgresFinishing,
    PostgresManagement,
    PostgresListing,
    PostgresSchedules,
    PostgresRetention,
    PostgresWorkers,
    PostgresEventLog,
    PostgresSteps,
    PostgresWebhooks,
    PostgresBase,
):
    """Jobs in Postgres: see :class:`queuert.state.Store` for what each operation promises."""

    def transaction(self, job: ClaimedJob) -> PostgresTransaction:
        """Return a transaction that locks the job when it is entered."""
        return PostgresTransaction(self._connections, self._sql, job)
