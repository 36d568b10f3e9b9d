"""Phases of jobs: begun and recorded under the lease, with the progress of the job and an event of each."""

from __future__ import annotations

import json

from queuert.errors import LeaseLostError
from queuert.event_log import EventFilter, EventLevel
from queuert.jobs import AbortReason
from queuert.state import Capability
from queuert.state.paging import PageRequest
from queuert.state.steps import NewStep
from queuert.state.types import Renewal
from queuert.testing.conformance.builders import (
    cancel,
    claim_one,
    error_of,
    read,
    retry,
    started_and_claimed,
    stolen,
)
from queuert.testing.conformance.registry import case
from queuert.testing.conformance.stores import Stores


def _progress(attempt: int, name: str, fraction: float, overall: float) -> str:
    phase = {"name": name, "number": 1, "count": 2, "fraction": fraction, "started_at": "2026-01-02T03:04:05+00:00"}
    at = "2026-01-02T03:04:06+00:00"
    return json.dumps({"attempt": attempt, "at": at, "fraction": overall, "message": "naïve '\"\n", "phase": phase})


@case()
async def are_begun_and_recorded(stores: Stores) -> None:
    """A phase has the time at which it was begun; the progress is that of its beginning, of a renewal, of its end."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    assert await store.get_progress(held.id) is None
    begun_at = await store.begin_phase(held.lease, _progress(1, "first", 0.0, 0.0))
    shown = (await read(store, held.id)).progress
    assert shown is not None and shown.phase is not None
    assert (shown.phase.name, shown.phase.number, shown.phase.count, shown.phase.attempt) == ("first", 1, 2, 1)
    await store.renew([Renewal(held.lease, 60.0, _progress(1, "first", 0.5, 0.25))])
    end = _progress(1, "first", 1.0, 0.5)
    step = NewStep(1, "first", 1, '{"a": [1]}', started_at=begun_at, progress=end)
    recorded = await store.record_step(held.lease, step)
    assert (recorded.started_at, recorded.event, recorded.waits) == (begun_at, None, False)
    assert begun_at <= recorded.recorded_at
    plain = await store.record_step(held.lease, NewStep(2, "second", 1, "2"))
    assert plain.started_at is None
    assert await store.get_steps(held.id) == [recorded, plain]
    assert await store.get_progress(held.id) == end
    assert await store.get_progress("unknown") is None


@case()
async def keep_their_progress_for_the_next_attempt(stores: Stores) -> None:
    """Progress of a phase stays until another attempt has begun one; other progress is not shown any more."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    await store.begin_phase(held.lease, _progress(1, "first", 0.5, 0.25))
    await store.finish([retry(held)])
    again = await claim_one(store)
    shown = (await read(store, held.id)).progress
    assert shown is not None and shown.phase is not None
    assert (shown.fraction, shown.phase.attempt) == (0.25, 1)
    [state] = await store.get_chain_states([held.id])
    assert state is not None and state.progress == shown
    await store.begin_phase(again.lease, _progress(2, "first", 0.0, 0.25))
    shown = (await read(store, held.id)).progress
    assert shown is not None and shown.phase is not None
    assert (shown.fraction, shown.phase.attempt) == (0.25, 2)


@case()
async def are_of_the_lease(stores: Stores) -> None:
    """Neither the beginning nor the end of a phase is written without the lease."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    stranger = stolen(held).lease
    await error_of(LeaseLostError, store.begin_phase(stranger, _progress(1, "first", 0.0, 0.0)))
    step = NewStep(1, "first", 1, "1", started_at=held.started_at, progress=_progress(1, "first", 1.0, 0.5))
    await error_of(LeaseLostError, store.record_step(stranger, step))
    await store.finish([cancel(held)])
    error = await error_of(LeaseLostError, store.begin_phase(held.lease, _progress(1, "first", 0.0, 0.0)))
    assert error.reason is AbortReason.ALREADY_COMPLETED
    await error_of(LeaseLostError, store.record_step(held.lease, step))
    assert await store.get_steps(held.id) == []
    assert await store.get_progress(held.id) is None


@case(Capability.EVENTS)
async def are_events(stores: Stores) -> None:
    """Each beginning and end is an event of the worker with the progress, at the level `all`."""
    store = await stores.open()
    [held] = await started_and_claimed(store)
    before = (await store.event_log_end()).cursor
    begun_at = await store.begin_phase(held.lease, _progress(1, "first", 0.0, 0.0))
    step = NewStep(1, "first", 1, "1", started_at=begun_at, progress=_progress(1, "first", 1.0, 0.5))
    await store.record_step(held.lease, step)
    await store.set_event_level(EventLevel.TERMINAL)
    await store.begin_phase(held.lease, _progress(1, "second", 0.0, 0.5))
    events = await store.list_events(EventFilter(), PageRequest(cursor=before, oldest_first=True))
    shown = [(one.kind, one.status.value, one.worker, one.progress and one.progress.fraction) for one in events]
    assert shown == [("phase_started", "running", "holder", 0.0), ("phase_completed", "running", "holder", 0.5)]
    assert all(one.progress and one.progress.phase and one.progress.phase.name == "first" for one in events)
