"""Freezes workers past their lease and resumes them, in both windows; random signals hit these windows too rarely."""

from __future__ import annotations

from queuert.testing.chaos.faults import TRACE_SECONDS, Scene, injector, open_gate, place_of
from queuert.testing.chaos.fleet import Missed
from queuert.testing.chaos.handlers import LATER
from queuert.testing.chaos.plan import Fault
from queuert.testing.chaos.workload import Task, effect

_TOGETHER = 3


@injector("zombie while next runs", "zombie after next ended")
def zombie(scene: Scene, fault: Fault) -> str:
    """Freeze the worker of attempt one, let attempt two begin (or end) on another worker, and resume it: its finish
    must be rejected."""
    ids = scene.operator.start(effect, [Task(gated=True)] * _TOGETHER)
    try:
        place = place_of(scene, ids[0], 1)
        with place.held() as child:
            with scene.fleet.frozen(place, child) as all_wait:
                if all_wait:
                    raise Missed("nobody else could write")
                _next_begins(scene, ids[0], ended=fault.kind == "zombie after next ended")
            for id in ids:
                open_gate(scene, id, 1)
            refused = _refused(scene, ids[0])
    finally:
        for id in ids:
            open_gate(scene, id)
    return f"job {ids[0]}: {refused}"


def _next_begins(scene: Scene, id: str, *, ended: bool) -> None:
    if ended:
        open_gate(scene, id, LATER)
    if scene.traces.wait_for(("began", id, 2), TRACE_SECONDS) is None:
        raise Missed(f"attempt 2 of {id} did not begin")
    if ended and scene.traces.wait_for(("ended", id, 2), TRACE_SECONDS) is None:
        raise Missed(f"attempt 2 of {id} did not end")


def _refused(scene: Scene, id: str) -> str:
    for mark, timeout in (("refused", TRACE_SECONDS), ("broke", 0.0)):
        line = scene.traces.wait_for((mark, id, 1), timeout)
        if line is not None:
            return f"{mark} ({line['detail']})"
    raise Missed(f"attempt 1 of {id} was not heard of again")
