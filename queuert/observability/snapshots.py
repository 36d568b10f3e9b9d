"""What gauges show: the state of one worker, and of the whole database, each read at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from queuert.limits import ClientType, client_types
from queuert.state.adapter import Capability, StateAdapter
from queuert.state.sync_store import Store
from queuert.state.types import PoolUse, ScheduleDelay, TypeCount
from queuert.workers import WorkerRecord


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """The state of one running worker."""

    slots: int
    """Its concurrency."""
    busy: int
    """Slots in which an attempt runs."""
    prefetched: int
    """Jobs that it has claimed ahead of a free slot."""
    leases: int
    """Leases that it holds."""
    event_loop_lag: float
    """The longest delay of its event loop in the last half minute, in seconds."""
    pool: PoolUse | None
    """What its pool of connections is doing; None if the store has none, or its driver does not say."""


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """The state of the whole database, for all workers."""

    counts: Sequence[TypeCount]
    """Jobs by type and status."""
    paused_types: Sequence[str]
    client_types: Sequence[ClientType]
    """Those whose jobs clients complete."""
    workers: Sequence[WorkerRecord]
    """Those with a heartbeat in the last minute."""
    delays: Sequence[ScheduleDelay]
    """Schedules whose tick has no chain yet."""
    event_log_lag: float | None
    """Seconds since the oldest event that readers are not shown yet; None if the store has no event log."""


def read_store(state: StateAdapter, store: Store) -> StoreSnapshot:
    """Read the state of the database with an open store of the adapter.

    Counts are bounded, so that it takes milliseconds whatever the backlog; the role of an observer may do it.

    Raises:
        StateUnavailableError: the store cannot be reached.
        StateError: the store refused it.
    """
    return StoreSnapshot(
        counts=store.count_jobs(),
        paused_types=[one.type for one in store.list_paused_job_types()],
        client_types=client_types(store.list_type_traits()),
        workers=store.list_workers(),
        delays=store.schedule_delays(),
        event_log_lag=store.get_event_log().lag if Capability.EVENTS in state.capabilities else None,
    )
