"""Interventions from outside on Postgres. ``sync_outside.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queuert.state.outside import DeleteResult, Intervention, OutsideCompletion, SweepResult, TriggeredJob
from queuert.state.postgres.async_base import AsyncPostgresBase


class AsyncPostgresOutside(AsyncPostgresBase):
    """Interventions from outside."""

    async def complete_chains(
        self, completions: Sequence[OutsideCompletion], *, connection: Any = None
    ) -> list[Intervention]:
        """End the last job of each chain with an output or a continuation, whatever it was waiting for."""
        raise NotImplementedError

    async def cancel_chains(self, ids: Sequence[str], *, reason: str, connection: Any = None) -> list[Intervention]:
        """Close open chains as cancelled, with an error of kind ``cancel``; closed ones stay as they are."""
        raise NotImplementedError

    async def retry_chains(self, ids: Sequence[str], *, connection: Any = None) -> list[Intervention]:
        """Open failed and cancelled chains again: their last job is due at once, with all its attempts before it."""
        raise NotImplementedError

    async def trigger_jobs(self, ids: Sequence[str], *, connection: Any = None) -> list[TriggeredJob]:
        """Make scheduled jobs due now, results in the order asked. Ready ones stay as they are."""
        raise NotImplementedError

    async def delete_chains(self, ids: Sequence[str], *, cascade: bool = False, connection: Any = None) -> DeleteResult:
        """Delete chains with all their jobs, whatever their status; those that do not exist are passed over."""
        raise NotImplementedError

    async def sweep(self, *, cursor: str | None = None, limit: int = 500) -> SweepResult:
        """Release blocked jobs all of whose blockers have closed: what a bug or a statement by hand left behind."""
        raise NotImplementedError
