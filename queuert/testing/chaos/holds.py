"""Faults of whoever stands still, or is slow, with something in hand that others need; and of too much work."""

from __future__ import annotations

import time
from contextlib import ExitStack

from queuert.testing.chaos.faults import Scene, injector, open_gate, place_of
from queuert.testing.chaos.fleet import Missed
from queuert.testing.chaos.plan import Fault
from queuert.testing.chaos.stores.base import CLAIM, START
from queuert.testing.chaos.workload import LEASE, Task, effect, flaky, limited, plain

_STILL = 3.0
"""Seconds for which a process stands still in a transaction: longer than the server lets it, with the run's limits."""
_FLOOD = 8.0
_BACKLOG = 800
_FRESH = 400


@injector("freeze worker in claim")
def freeze_in_claim(scene: Scene, fault: Fault) -> str:
    """With the lock of the types with limits, which every claim of them needs."""
    places = [place for place in scene.fleet.workers if place.settings["limits"]]
    place = places[fault.target % len(places)]
    scene.operator.start(limited, [Task(pause=0.2)] * 100)
    with place.held() as child, scene.fleet.frozen_in(place, child, CLAIM), ExitStack() as away:
        for one in places:
            # They wait for the lock with their one claim for all types, until the server ends the session that has it.
            away.enter_context(scene.fleet.away(one))
        time.sleep(_STILL + fault.measure)
    return f"process {child.pid}"


@injector("freeze client in start")
def freeze_in_start(scene: Scene, fault: Fault) -> str:
    """With blockers or a key: such a start is a transaction of some statements."""
    place = scene.client(fault)
    with place.held() as child, scene.fleet.frozen_in(place, child, START):
        time.sleep(_STILL + fault.measure)
    return f"process {child.pid}"


@injector("start behind a running job")
def start_behind(scene: Scene, fault: Fault) -> str:
    """In a caller's transaction that stays open for longer than the lease: it has the row of the running job locked."""
    import psycopg

    seconds = LEASE.seconds * (1.5 + fault.measure)
    [id] = scene.operator.start(effect, [Task(gated=True)])
    try:
        place = place_of(scene, id, 1)
        with scene.server, place.held(), psycopg.connect(scene.store.url, connect_timeout=3) as connection:
            waiting = scene.operator.start_behind(id, connection)
            began = time.time()
            try:
                time.sleep(seconds)
                connection.commit()
            except psycopg.Error:
                scene.operator.note(waiting, "unknown")
                raise
            scene.operator.note(waiting, "ack")
            ended = time.time()
            # What the lease has come to is told after the transaction: by a renewal, or by the reaper.
            time.sleep(LEASE.seconds)
    finally:
        open_gate(scene, id)
    return f"job {id} from {began:.3f} to {ended + LEASE.seconds:.3f}"


@injector("flood of fresh work")
def flood(scene: Scene, fault: Fault) -> str:
    """More than the workers get done, for some seconds, while a job that failed once waits for its second attempt."""
    [id] = scene.operator.start(flaky, [Task(fails=1)], priority=0)
    began = time.monotonic()
    while time.monotonic() < began + _FLOOD:
        left = scene.store.open_jobs()
        if left < _FRESH and time.monotonic() > began + 1.0:
            raise Missed(f"only {left} jobs were left")
        for _ in range(max(0, _BACKLOG - left), 0, -_FRESH):
            scene.operator.start(plain, [Task(pause=0.2)] * _FRESH, priority=0)
        if scene.traces.wait_for(("began", id, 2), 0.05) is not None:
            return f"job {id} was retried after {time.monotonic() - began:.1f} s"
    return f"job {id} starved for {_FLOOD:g} s"
