"""Asks workers to stop. If one does not, it is killed, and its stacks are recorded."""

from __future__ import annotations

import signal
import time

from queuert.testing.chaos import evidence
from queuert.testing.chaos.faults import Scene, injector
from queuert.testing.chaos.fleet import SHUTDOWN_TIMEOUT, Place
from queuert.testing.chaos.plan import Fault
from queuert.testing.chaos.processes import Child

STOPPING = SHUTDOWN_TIMEOUT + 30.0
"""Seconds after which a worker that was asked to stop counts as hanging: its shutdown timeout, the ten seconds that a
stop may take beyond it, and twice as much again for a machine on which all processes of a run share two processors."""


@injector("stop worker", "hurry worker")
def stop_worker(scene: Scene, fault: Fault) -> str:
    """Ask a worker to stop, once or twice, while the server is available."""
    place = scene.worker(fault)
    with scene.server, place.held() as child:
        began = time.time()
        child.send(signal.SIGTERM)
        if fault.kind == "hurry worker":
            time.sleep(0.05 + 0.2 * fault.measure)
            child.send(signal.SIGTERM)
        see_to_its_end(scene, place, child, fault.kind, began)
        place.wait_for_successor(child)
    return f"process {child.pid}, exit code {child.code}"


@injector("stop worker at start")
def stop_at_start(scene: Scene, fault: Fault) -> str:
    """Kill a worker, and ask its successor to stop as soon as it exists."""
    place = scene.worker(fault)
    with scene.server, place.held() as child:
        child.kill()
        successor = place.wait_for_successor(child)
        time.sleep(0.3 * fault.measure)
        began = time.time()
        successor.send(signal.SIGTERM)
        see_to_its_end(scene, place, successor, fault.kind, began)
        place.wait_for_successor(successor)
    return f"process {successor.pid}, exit code {successor.code}"


def see_to_its_end(scene: Scene, place: Place, child: Child, kind: str, began: float) -> None:
    """Wait for a worker that was asked to stop at ``began``, and kill it if it takes too long; record how it ended."""
    killed = not child.wait(max(0.0, began + STOPPING - time.time()))
    if killed:
        end_by_force(scene, place, child, kind, time.time() - began)
    note_stop(scene, place, child, kind, began, killed=killed)


def end_by_force(scene: Scene, place: Place, child: Child, kind: str, waited: float) -> None:
    """Record the stacks of a worker, and kill it."""
    found = evidence.gather(
        child,
        scene.fleet.log_of(place),
        scene.fleet.directory / "events.jsonl",
        slot=place.number,
        kind=kind,
        waited=round(waited, 3),
        sessions=scene.store.session_list(),
    )
    scene.hangs.add(**found.as_row())
    child.kill()


def note_stop(scene: Scene, place: Place, child: Child, kind: str, began: float, *, killed: bool) -> None:
    """Record how a worker ended that was asked to stop, and each lease that it left."""
    ended = time.time()
    left = scene.store.leases_of(child.pid)
    common = {"slot": place.number, "pid": child.pid, "kind": kind, "began": began, "ended": ended}
    scene.stops.add(**common, code=child.code, leases=len(left), killed=int(killed))
    for job_id, attempt in left:
        scene.left.add(pid=child.pid, job_id=job_id, attempt=attempt)
