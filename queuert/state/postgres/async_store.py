"""The Postgres store, composed of its groups of operations. ``sync_store.py`` is generated from this module."""

from __future__ import annotations

from queuert.state.postgres.async_base import AsyncPostgresBase
from queuert.state.postgres.async_claiming import AsyncPostgresClaiming
from queuert.state.postgres.async_event_log import AsyncPostgresEventLog
from queuert.state.postgres.async_finishing import AsyncPostgresFinishing
from queuert.state.postgres.async_listing import AsyncPostgresListing
from queuert.state.postgres.async_management import AsyncPostgresManagement
from queuert.state.postgres.async_retention import AsyncPostgresRetention
from queuert.state.postgres.async_schedules import AsyncPostgresSchedules
from queuert.state.postgres.async_starting import AsyncPostgresStarting
from queuert.state.postgres.async_steps import AsyncPostgresSteps
from queuert.state.postgres.async_transaction import AsyncPostgresTransaction
from queuert.state.postgres.async_webhooks import AsyncPostgresWebhooks
from queuert.state.postgres.async_workers import AsyncPostgresWorkers
from queuert.state.types import ClaimedJob


class AsyncPostgresStore(
    AsyncPostgresStarting,
    AsyncPostgresClaiming,
    AsyncPostgresFinishing,
    AsyncPostgresManagement,
    AsyncPostgresListing,
    AsyncPostgresSchedules,
    AsyncPostgresRetention,
    AsyncPostgresWorkers,
    AsyncPostgresEventLog,
    AsyncPostgresSteps,
    AsyncPostgresWebhooks,
    AsyncPostgresBase,
):
    """Jobs in Postgres: see :class:`queuert.state.AsyncStore` for what each operation promises."""

    def transaction(self, job: ClaimedJob) -> AsyncPostgresTransaction:
        """Return a transaction that locks the job when it is entered."""
        return AsyncPostgresTransaction(self._connections, self._sql, job)
