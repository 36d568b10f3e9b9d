"""The implementation of each kind of fault. A function causes one fault and returns a description of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import NamedTuple

from queuert.testing.chaos.fleet import Fleet, Missed, Place, faketime_library
from queuert.testing.chaos.handlers import EVERY
from queuert.testing.chaos.operator_client import Operator
from queuert.testing.chaos.plan import Fault
from queuert.testing.chaos.receiver import Receiver
from queuert.testing.chaos.records import Records, Tail
from queuert.testing.chaos.stores import OwnedStore
from queuert.testing.chaos.workload import LEASE, Task, blocking, effect, poison
from queuert.testing.fault_proxy import FaultProxy

TRACE_SECONDS = 12.0


class Outage(NamedTuple):
    """A time in which the store was broken, and whether it was down completely."""

    began: float
    ended: float
    down: bool


@dataclass
class Scene:
    """The parts of a run that faults act on."""

    store: OwnedStore
    fleet: Fleet
    receiver: Receiver
    operator: Operator
    traces: Tail
    gates: Path
    stops: Records
    left: Records
    hangs: Records
    outages: list[Outage] = field(default_factory=list)
    server: threading.RLock = field(default_factory=threading.RLock)
    """Locked while the server is broken, and by faults that need the server."""

    def worker(self, fault: Fault) -> Place:
        """Return the worker that the fault is for."""
        return self.fleet.workers[fault.target % len(self.fleet.workers)]

    def client(self, fault: Fault) -> Place:
        """Return the client that the fault is for, or another one that has not finished."""
        for offset in range(len(self.fleet.clients)):
            place = self.fleet.clients[(fault.target + offset) % len(self.fleet.clients)]
            if not place.finished:
                return place
        raise Missed("all clients have finished")


Inject = Callable[[Scene, Fault], str]
INJECTORS: dict[str, Inject] = {}


def injector(*kinds: str) -> Callable[[Inject], Inject]:
    """Register a function for kinds of fault."""

    def register(inject: Inject) -> Inject:
        INJECTORS.update(dict.fromkeys(kinds, inject))
        return inject

    return register


def proxy_of(place: Place) -> FaultProxy:
    """Return the proxy of a worker or client."""
    assert place.proxy is not None
    return place.proxy


def waited(event: threading.Event, what: str, timeout: float = 6.0) -> None:
    """Wait for a signal of a proxy.

    Raises:
        Missed: it did not come.
    """
    if not event.wait(timeout):
        raise Missed(f"not within {timeout:g} s: {what}")


# --- the receiver of webhooks ---------------------------------------------------------------------------------------


@injector("receiver down", "receiver fails", "receiver redirects", "receiver slow")
def disturb_receiver(scene: Scene, fault: Fault) -> str:
    """Let the receiver refuse, or answer wrongly, for some seconds."""
    seconds = 1.0 + 2.0 * fault.measure
    mode = {"receiver down": "down", "receiver fails": "500", "receiver redirects": "redirect", "receiver slow": "slow"}
    with scene.receiver.answering(mode[fault.kind]):
        time.sleep(seconds)
    return f"for {seconds:.1f} s"


# --- processes --------------------------------------------------------------------------------------------------------


@injector("kill worker")
def kill_worker(scene: Scene, fault: Fault) -> str:
    """Kill a worker at any moment."""
    place = scene.worker(fault)
    with place.held() as child:
        child.kill()
        place.wait_for_successor(child)
    return f"process {child.pid}"


@injector("kill worker in handler")
def kill_in_handler(scene: Scene, fault: Fault) -> str:
    """Kill the worker that runs a handler, while the handler waits."""
    [id] = scene.operator.start(effect, [Task(gated=True)])
    try:
        place = place_of(scene, id, 1)
        with place.held() as child:
            child.kill()
            open_gate(scene, id)
            place.wait_for_successor(child)
    finally:
        # Also if another fault has the worker: otherwise the job would occupy a slot for ever.
        open_gate(scene, id)
    return f"process {child.pid}, job {id}"


def place_of(scene: Scene, id: str, attempt: int) -> Place:
    """Wait until an attempt of a job has begun, and return the worker that runs it.

    Raises:
        Missed: it does not begin.
    """
    line = scene.traces.wait_for(("began", id, attempt), TRACE_SECONDS)
    if line is None:
        raise Missed(f"attempt {attempt} of {id} did not begin")
    return scene.fleet.workers[line["slot"]]


def open_gate(scene: Scene, id: str, which: int | str = EVERY) -> None:
    """Let one attempt of a job continue, or those that a word names."""
    (scene.gates / f"{id}-{which}").touch()


@injector("freeze worker")
def freeze_worker(scene: Scene, fault: Fault) -> str:
    """Freeze a worker for longer than the lease."""
    seconds = LEASE.seconds * (1.2 + fault.measure)
    place = scene.worker(fault)
    with place.held(), ExitStack() as frozen:
        for one in scene.fleet.frozen_with(place):
            if one.child is not None:
                frozen.enter_context(scene.fleet.frozen(one, one.child))
        time.sleep(seconds)
    return f"for {seconds:.1f} s"


@injector("kill client")
def kill_client(scene: Scene, fault: Fault) -> str:
    """Kill a client at any moment."""
    place = scene.client(fault)
    with place.held() as child:
        child.kill()
        place.wait_for_successor(child)
    return f"process {child.pid}"


@injector("worker with a wrong clock")
def wrong_clock(scene: Scene, fault: Fault) -> str:
    """Run a worker whose clock is two hours ahead or behind, for some seconds."""
    place = scene.worker(fault)
    shift = 7200.0 if fault.measure < 0.5 else -7200.0
    if faketime_library() is None:
        raise Missed("libfaketime is not installed")
    with place.held() as child:
        place.kept = False
        try:
            child.kill()
            shifted = scene.fleet.start_with_clock(place, shift)
            time.sleep(4.0)
            shifted.kill()
        finally:
            place.kept = True
        place.wait_for_successor(place.child or child)
    return f"{shift / 3600:+.0f} h"


# --- the server and the network ---------------------------------------------------------------------------------------


@injector(
    "kill postgres", "crash postgres", "kill backend", "restart postgres", "terminate backends", "cancel statements",
    "terminate listeners", "lock rows", "lock table", "kill redis", "restart redis", "pause redis",
    "kill redis clients", "flush scripts", "lock file",
)  # fmt: skip
def break_server(scene: Scene, fault: Fault) -> str:
    """Cause a fault that the store implements."""
    with scene.server:
        began = time.time()
        serving, reported = scene.store.break_it(fault.kind, fault.measure)
        began = max(began, scene.store.broken_since or began)
        scene.outages.append(Outage(began, serving or time.time(), serving is not None))
    if reported.startswith("no "):
        raise Missed(reported)
    return reported


@injector("black hole", "short black hole", "deaf worker", "latency", "refuse connections", "reset connections")
def break_network(scene: Scene, fault: Fault) -> str:
    """Disconnect one worker for a while."""
    seconds = LEASE.seconds * (0.3 if fault.kind == "short black hole" else 1.2 + fault.measure)
    place = scene.worker(fault)
    with place.held(), scene.fleet.away(place):
        proxies = scene.fleet.proxies_at(place)
        if fault.kind == "reset connections":
            return f"{sum(proxy.reset() for proxy in proxies)} connections"
        for proxy in proxies:
            _break_proxy(proxy, fault.kind)
        time.sleep(seconds)
        for proxy in proxies:
            proxy.heal()
    return f"for {seconds:.1f} s"


def _break_proxy(proxy: FaultProxy, kind: str) -> None:
    match kind:
        case "black hole" | "short black hole":
            proxy.black_hole()
        case "deaf worker":
            proxy.black_hole("to_client")
        case "latency":
            proxy.delay(0.05)
        case _:
            proxy.refuse()
            proxy.reset()


@injector("cut in a message")
def cut_in_message(scene: Scene, fault: Fault) -> str:
    """Reset a connection after some bytes of an answer."""
    count = int(20 + 2_000 * fault.measure)
    place = scene.worker(fault)
    with place.held(), scene.fleet.away(place):
        proxy = proxy_of(place)
        proxy.cut_after(count)
        try:
            waited(proxy.fired, "an answer")
        finally:
            proxy.heal()
    return f"after {count} bytes"


@injector("stop in a message")
def stop_in_message(scene: Scene, fault: Fault) -> str:
    """Stop a connection after some bytes of a request, for longer than the lease."""
    count, seconds = int(20 + 2_000 * fault.measure), LEASE.seconds * (1.2 + fault.measure)
    place = scene.worker(fault)
    with place.held(), scene.fleet.away(place):
        proxy = proxy_of(place)
        proxy.stop_after(count)
        try:
            waited(proxy.fired, "a request")
            time.sleep(seconds)
        finally:
            proxy.heal()
    return f"after {count} bytes, for {seconds:.1f} s"


@injector("cut listeners")
def cut_listeners(scene: Scene, fault: Fault) -> str:
    """Block notifications for a while, so that workers must poll."""
    proxy = scene.fleet.listeners
    assert proxy is not None
    proxy.refuse()
    count = proxy.reset()
    time.sleep(1.5 + fault.measure)
    proxy.heal()
    return f"{count} listeners"


def give_work(scene: Scene) -> None:
    """Hold so many transactions open that every worker has one."""
    scene.operator.start(effect, [Task(inside=0.05)] * 24)


@injector("lose answer to commit", "lose commit")
def lose_commit(scene: Scene, fault: Fault) -> str:
    """Make the outcome of a worker's next COMMIT unknown."""
    place = scene.worker(fault)
    with place.held(), scene.fleet.away(place):
        proxy = proxy_of(place)
        (proxy.lose_answer if fault.kind == "lose answer to commit" else proxy.lose_request)(b"COMMIT")
        try:
            give_work(scene)
            waited(proxy.fired, "a COMMIT")
        finally:
            proxy.heal()
    return ""


@injector("kill worker in commit")
def kill_in_commit(scene: Scene, fault: Fault) -> str:
    """The COMMIT arrived, and the worker never got the answer."""
    place = scene.worker(fault)
    with place.held() as child:
        proxy = proxy_of(place)
        proxy.lose_answer(b"COMMIT")
        try:
            give_work(scene)
            waited(proxy.fired, "a COMMIT")
            child.kill()
        finally:
            proxy.heal()
        place.wait_for_successor(child)
    return f"process {child.pid}"


@injector("lose answer to client", "lose request of client")
def lose_start(scene: Scene, fault: Fault) -> str:
    """Make the outcome of a client's next start unknown."""
    place = scene.client(fault)
    with place.held():
        proxy = proxy_of(place)
        (proxy.lose_answer if fault.kind == "lose answer to client" else proxy.lose_request)(b"chaos.")
        try:
            waited(proxy.fired, "a start")
        finally:
            proxy.heal()
    return ""


# --- the work, and from outside ---------------------------------------------------------------------------------------


@injector("block event loop")
def block_event_loop(scene: Scene, fault: Fault) -> str:
    """Block an event loop for longer than the lease."""
    seconds = LEASE.seconds * (1.2 + fault.measure)
    return ", ".join(scene.operator.start(blocking, [Task(pause=seconds)]))


@injector("exhaust pool")
def exhaust_pool(scene: Scene, fault: Fault) -> str:
    """Hold more transactions open than any worker has connections; on SQLite, which has one writer, a few suffice."""
    task = Task(inside=round(0.3 + 0.3 * fault.measure, 3))
    return f"{len(scene.operator.start(effect, [task] * (40 if scene.store.has_server else 8)))} jobs"


@injector("poison")
def poison_job(scene: Scene, fault: Fault) -> str:
    """Start jobs that end their process."""
    ids = scene.operator.start(poison, [Task(how=fault.payload)] * 2)
    return f"{fault.payload}, job {ids[0]}"


@injector("cancel chains", "retry chains", "trigger jobs", "delete chains", "complete chains")
def intervene(scene: Scene, fault: Fault) -> str:
    """Manage chains as a client."""
    act = {
        "cancel chains": scene.operator.cancel,
        "retry chains": scene.operator.retry,
        "trigger jobs": scene.operator.trigger,
        "delete chains": scene.operator.delete,
        "complete chains": scene.operator.complete,
    }[fault.kind]
    return act(Random(f"{fault.number}:{fault.measure}"))
