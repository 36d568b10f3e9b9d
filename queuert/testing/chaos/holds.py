"""Faults of processes that stop or are slow while they hold what others need, and the fault of too much work."""

from __future__ import annotations

import time
from contextlib import ExitStack

from queuert.testing.chaos.faults import Scene, injector, open_gate, place_of
from queuert.testing.chaos.fleet import Missed
from queuert.testing.chaos.plan import Fault
from queuert.testing.chaos.stores.base import CLAIM, START
from queuert.testing.chaos.workload import LEASE, Task, effect, flaky, limited, plain

_STILL = 3.0
"""Seconds for which a process is frozen in a transaction: longer than the server's timeout with the run's settings."""
_FLOOD = 8.0
_BACKLOG = 800
_FRESH = 400


@injector("freeze worker in claim")
def freeze_in_claim(scene: Scene, fault: Fault) -> str:
    """Freeze a worker that has the lock of the types with limits, which every claim of these types needs."""
    places = [place for place in scene.fleet.workers if place.settings["limits"]]
    place = places[fault.target % len(places)]
    scene.operator.start(limited, [Task(pause=0.2)] * 100)
    with place.held() as child, scene.fleet.frozen_in(place, child, CLAIM), ExitStack() as away:
        for one in places:
            # The other workers wait for the lock in their claims of all types, until the server ends the session that
            # has it.
            away.enter_context(scene.fleet.away(one))
        time.sleep(_STILL + fault.measure)
    return f"process {child.pid}"


@injector("freeze client in start")
def freeze_in_start(scene: Scene, fault: Fault) -> str:
    """Freeze a client in a start with blockers or a key: such a start is a transaction of several statements."""
    place = scene.client(fault)
    with place.held() as child, scene.fleet.frozen_in(place, child, START):
        time.sleep(_STILL + fault.measure)
    return f"process {child.pid}"


@injector("start behind a running job")
def start_behind(scene: Scene, fault: Fault) -> str:
    """Keep a caller's transaction open for longer than the lease, with the row of a running job locked."""
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
            # The result for the lease is known after the transaction: by a renewal, or by the reaper.
            time.sleep(LEASE.seconds)
    finally:
        open_gate(scene, id)
    return f"job {id} from {began:.3f} to {ended + LEASE.seconds:.3f}"


@injector("flood of fresh work")
def flood(scene: Scene, fault: Fault) -> str:
    """Start more jobs than the workers can run, for some seconds, while a failed job waits for its second attempt."""
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
