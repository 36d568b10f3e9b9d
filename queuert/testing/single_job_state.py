"""A state adapter with which a worker claims one job only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

from queuert.notify.adapter import NotifyAdapter
from queuert.state import AsyncStore, StateAdapter, Store
from queuert.state.adapter import Capability
from queuert.state.types import ClaimedJob, ClaimRequest, DueSchedules, Lease, ReapRequest, ReapResult

_MOST = 1_000
"""Jobs of one claim."""


class OneJobState:
    """A state adapter whose stores claim one job, once; everything else is unchanged.

    Attributes:
        claimed: whether the job was there to be claimed; None before a worker asked.
    """

    def __init__(self, state: StateAdapter, job_id: str, type: str) -> None:
        self._state = state
        self._job_id = job_id
        self._type = type
        self.claimed: bool | None = None

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Return the capabilities of the wrapped adapter."""
        return self._state.capabilities

    def sync_store(self, *, max_connections: int = 4, answer_timeout: float | None = None) -> Store:
        """Return a synchronous store of the wrapped adapter: workers do not claim on it."""
        return self._state.sync_store(max_connections=max_connections, answer_timeout=answer_timeout)

    def async_store(self, *, max_connections: int = 4) -> AsyncStore:
        """Return a store that claims the one job."""
        return cast("AsyncStore", _OneJobStore(self, self._state.async_store(max_connections=max_connections)))

    def default_notify(self) -> NotifyAdapter:
        """Return the notifications adapter of the wrapped adapter."""
        return self._state.default_notify()

    async def claim(self, store: AsyncStore, request: ClaimRequest) -> list[ClaimedJob]:
        """Claim jobs of the type until the one is among them, and release the others without a trace.

        Each claim is bounded as those of workers are, in bytes, too. Of the others only the leases are kept.
        """
        if self.claimed is not None:
            return []
        leases = {self._type: request.leases[self._type]}
        others: list[Lease] = []
        mine: list[ClaimedJob] = []
        try:
            while not mine and (found := await store.claim(replace(request, leases=leases, limit=_MOST, limits={}))):
                mine = [job for job in found if job.id == self._job_id]
                others += [job.lease for job in found if job.id != self._job_id]
        finally:
            await store.release(others)
        self.claimed = bool(mine)
        return mine


class _OneJobStore:
    def __init__(self, state: OneJobState, store: AsyncStore) -> None:
        self._state = state
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        return await self._state.claim(self._store, request)

    async def next_due(self, types: Sequence[str]) -> float | None:
        return None

    async def reap(self, request: ReapRequest) -> ReapResult:
        return ReapResult((), None)

    async def due_schedules(self, types: Sequence[str], *, limit: int = 100) -> DueSchedules:
        return DueSchedules(datetime.now(UTC), (), None)
