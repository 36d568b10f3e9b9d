"""The workers and clients of a run, each behind a proxy of its own. A process that dies gets a successor at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from queuert.testing.chaos.plan import Plan
from queuert.testing.chaos.processes import Child, Nursery
from queuert.testing.chaos.profiles import ChaosSettings
from queuert.testing.chaos.records import Records
from queuert.testing.chaos.stores import OwnedStore
from queuert.testing.fault_proxy import FaultProxy

_KEEP = 0.02
_TIMEOUT = 15.0
_HUNT = 8.0
"""Seconds in which a process must be found inside a transaction."""
_FREEZING = 0.02
"""Seconds until all threads of a process have stopped."""
_LIBRARIES = (
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1", "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/faketime/libfaketime.so.1", "/usr/local/lib/faketime/libfaketime.so.1",
)  # fmt: skip

SHUTDOWN_TIMEOUT = 3.0
WITNESS = -2
"""The number of the leak probes' worker and client: no fault of a plan targets it, and no figure counts it."""
_CONNECTIONS = 6


class Missed(Exception):
    """A fault did not happen, because the event that it waits for did not occur. It does not count."""


class Place:
    """The slot of one worker or client and its successors."""

    def __init__(self, role: str, number: int, settings: dict[str, Any], proxy: FaultProxy | None) -> None:
        self.role = role
        self.number = number
        self.settings = settings
        self.proxy = proxy
        self.child: Child | None = None
        self.kept = True
        """Whether a successor is started when the process ends."""
        self.finished = False
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The path of its log."""
        return f"witness-{self.role.split()[-1]}" if self.number == WITNESS else f"{self.role}-{self.number}"

    @contextmanager
    def held(self, timeout: float = _TIMEOUT) -> Iterator[Child]:
        """Lock the slot, so that no other fault acts on its process; wait for a successor if that has ended.

        Raises:
            Missed: somebody else is at it for too long, it has finished, or there is no successor.
        """
        if not self._lock.acquire(timeout=timeout):
            raise Missed(f"{self.role} {self.number} is busy")
        try:
            child = self.child
            if self.finished or child is None:
                raise Missed(f"{self.role} {self.number} has finished")
            yield child if child.alive or not self.kept else self.wait_for_successor(child)
        finally:
            self._lock.release()

    def wait_for_successor(self, of: Child) -> Child:
        """Wait for the process that follows one that has ended."""
        deadline = time.monotonic() + _TIMEOUT
        while time.monotonic() < deadline:
            child = self.child
            if child is not None and child is not of and child.alive:
                return child
            time.sleep(_KEEP / 2)
        raise Missed(f"{self.role} {self.number} has no successor")


class Fleet:
    """All workers and clients of a run."""

    def __init__(
        self, settings: ChaosSettings, plan: Plan, store: OwnedStore, directory: Path, *, receiver: int = 0
    ) -> None:
        self.directory = directory
        self._store = store
        with ExitStack() as stack:
            self._stack = stack
            self._nursery = Nursery()
            self._stack.callback(self._nursery.close)
            self._stopped = threading.Event()
            self.began = time.time()
            self._ends = Records(directory / "ends.jsonl")
            self._away = Records(directory / "away.jsonl")
            self.listeners = self._proxy(store)
            """The proxy for the notifications of all workers."""
            common: dict[str, Any] = {"store": store.name, "directory": str(directory), "workload": settings.workload}
            common["receiver"] = receiver
            self.workers = [self._worker(number, settings, store, common) for number in range(settings.profile.workers)]
            self.clients = [self._client(number, store, common, plan) for number in range(settings.profile.clients)]
            self._witness_proxy = self._proxy(store) if settings.profile.witnesses else None
            self.witnesses = tuple(self._witnesses(settings, store, common)) if settings.profile.witnesses else ()
            """The worker and the client of the leak probes, which live as long as the run."""
            self._renewer = threading.Thread(target=self._keep, name="queuert-chaos-keeper", daemon=True)
            self._stack = stack.pop_all()

    def _proxy(self, store: OwnedStore) -> FaultProxy | None:
        return self._stack.enter_context(store.proxy()) if store.has_server else None

    def _worker(self, number: int, settings: ChaosSettings, store: OwnedStore, common: dict[str, Any]) -> Place:
        proxy = self._proxy(store)
        url = store.url if proxy is None else store.address_in(proxy)
        listen = None if self.listeners is None else store.address_in(self.listeners)
        own = {
            "slot": number,
            "url": url,
            "listen_url": listen,
            "connections": _CONNECTIONS,
            "shutdown_timeout": SHUTDOWN_TIMEOUT,
        }
        # A worker that handles types with limits does not prefetch, and other workers should.
        limits = number % 2 == 1 or settings.profile.workers == 1
        return Place("worker", number, common | own | {"limits": limits}, proxy)

    def _client(self, number: int, store: OwnedStore, common: dict[str, Any], plan: Plan) -> Place:
        proxy = self._proxy(store)
        url = store.url if proxy is None else store.address_in(proxy)
        own = {"client": number, "url": url, "listen_url": store.url, "ops": [asdict(op) for op in plan.ops[number]]}
        return Place("client", number, common | own, proxy)

    def _witnesses(self, settings: ChaosSettings, store: OwnedStore, common: dict[str, Any]) -> Iterator[Place]:
        proxy = self._witness_proxy
        url = store.url if proxy is None else store.address_in(proxy)
        listen = None if self.listeners is None else store.address_in(self.listeners)
        common = common | {"url": url, "listen_url": listen, "slot": WITNESS, "steady": True}
        yield Place(
            "worker", WITNESS, common | {"connections": _CONNECTIONS, "shutdown_timeout": SHUTDOWN_TIMEOUT}, proxy
        )
        inside = 0.3 if store.has_server else 0.02  # With one writer, transactions run one after the other.
        own = {"client": "steady", "ops": [], "seed": settings.seed, "inside": inside}
        yield Place("steady client", WITNESS, common | own, proxy)

    def log_of(self, place: Place) -> Path:
        """The file for standard output and errors of these processes."""
        return self.directory / f"{place.name}.log"

    def start_witnesses(self) -> None:
        """Start the two processes that live as long as the run; they get no successors."""
        for place in self.witnesses:
            self._start(place)

    def cut_witnesses(self) -> None:
        """Reset the connections of the leak probes, and all that listen, if there are any."""
        for proxy in (self._witness_proxy, self.listeners):
            if proxy is not None:
                proxy.reset()

    def proxies_at(self, place: Place) -> list[FaultProxy]:
        """Return the proxies of a slot: each fault of the first worker is applied to the leak probes too."""
        beside = self._witness_proxy if place is self.workers[0] else None
        return [proxy for proxy in (place.proxy, beside) if proxy is not None]

    def frozen_with(self, place: Place) -> list[Place]:
        """Return the processes to freeze together with this worker."""
        return [place, *self.witnesses[:1]] if place is self.workers[0] else [place]

    @property
    def connections(self) -> int:
        """Return how many connections to the server all processes have now."""
        places = (*self.workers, *self.clients)
        proxies = [self.listeners, self._witness_proxy, *(place.proxy for place in places)]
        return sum(proxy.connections for proxy in proxies if proxy is not None)

    def start(self) -> None:
        """Start all processes, and replace those that end."""
        self.began = time.time()
        for place in (*self.workers, *self.clients):
            self._start(place)
        self._renewer.start()

    @property
    def clients_are_done(self) -> bool:
        """Whether all starts are made."""
        return all(place.finished for place in self.clients)

    def start_with_clock(self, place: Place, shift: float) -> Child:
        """Replace a worker by one whose clock is ``shift`` seconds ahead.

        Raises:
            Missed: libfaketime is not there.
        """
        library = faketime_library()
        if library is None:
            raise Missed("libfaketime is not installed")
        self._note_end(place)
        environment = {"LD_PRELOAD": library, "FAKETIME": f"{shift:+.0f}s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        settings = place.settings | {"shift": shift}
        place.child = self._nursery.start_apart("worker", settings, self.log_of(place), environment)
        return place.child

    @contextmanager
    def frozen(self, place: Place, child: Child) -> Iterator[bool]:
        """Freeze a process during the block; yield whether this also blocks all other processes."""
        child.send(signal.SIGSTOP)
        try:
            time.sleep(_FREEZING)
            all_wait = self._store.waits_for(child.pid)
            with ExitStack() as away:
                for one in self.workers if all_wait else [place]:
                    away.enter_context(self.away(one))
                yield all_wait
        finally:
            child.send(signal.SIGCONT)

    @contextmanager
    def frozen_in(self, place: Place, child: Child, what: str) -> Iterator[None]:
        """Freeze a process inside a transaction, during the block: freeze it again and again until it is in one.

        Raises:
            Missed: it never was, within some seconds.
        """
        deadline = time.monotonic() + _HUNT
        try:
            child.send(signal.SIGSTOP)
            time.sleep(_FREEZING)
            while not self._store.stands_in(child.pid, what):
                if time.monotonic() > deadline or not child.alive:
                    raise Missed(f"{place.name} was not seen in {what}")
                child.send(signal.SIGCONT)
                time.sleep(_FREEZING / 4 + (time.monotonic() * 1e3 % 1) * _FREEZING)
                child.send(signal.SIGSTOP)
                time.sleep(_FREEZING)
            yield
        finally:
            child.send(signal.SIGCONT)

    @contextmanager
    def away(self, place: Place) -> Iterator[None]:
        """Record that this worker or client can do nothing during the block."""
        began = time.time()
        try:
            yield
        finally:
            self._away.add(slot=place.number, began=began, ended=time.time())

    def heal(self) -> None:
        """Let all proxies pass everything, and resume all processes."""
        for place in (*self.workers, *self.clients, *self.witnesses):
            if place.proxy is not None:
                place.proxy.heal()
            if place.child is not None:
                place.child.send(signal.SIGCONT)
        if self.listeners is not None:
            self.listeners.heal()

    def stop_workers(self) -> list[tuple[Place, Child]]:
        """Ask all workers to stop, and return those that were asked."""
        requested = []
        for place in (*self.workers, *self.witnesses):
            if place.role == "worker":
                place.kept = False
                if place.child is not None:
                    place.child.send(signal.SIGTERM)
                    requested.append((place, place.child))
        return requested

    def close(self) -> None:
        """End all processes."""
        self._stopped.set()
        if self._renewer.is_alive():
            self._renewer.join()
        self._stack.close()

    def _start(self, place: Place) -> None:
        place.child = self._nursery.start(place.role, place.settings | {"began": self.began}, self.log_of(place))

    def _note_end(self, place: Place) -> None:
        """Record when an ended process ended: until then it counts as a process that could claim."""
        if place.child is not None:
            child = place.child
            self._ends.add(role=place.role, slot=place.number, pid=child.pid, at=child.ended_at, code=child.code)

    def _keep(self) -> None:
        while not self._stopped.wait(_KEEP):
            for place in (*self.workers, *self.clients):
                child = place.child
                if child is None or child.alive or place.finished or not place.kept:
                    continue
                self._note_end(place)
                if place.role == "client" and child.code == 0:
                    place.finished = True
                else:
                    self._start(place)


def faketime_library() -> str | None:
    """Return the path of libfaketime: ``QUEUERT_FAKETIME``, or where packages install it."""
    given = os.environ.get("QUEUERT_FAKETIME")
    return next((path for path in ([given] if given else _LIBRARIES) if Path(path).exists()), None)
