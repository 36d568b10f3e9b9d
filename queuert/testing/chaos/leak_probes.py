"""A worker and a client that live through the whole run, and show whether processes leak.

A run kills all other processes too often to show a leak. It neither kills these two nor starts jobs for them that kill;
but all faults of the store affect them, and they share the network faults and the freezes of the first worker. They are
measured at rest, after they have used all their connections at once: before the first fault and after the drain.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from queuert.testing.chaos.fleet import Fleet, Place
from queuert.testing.chaos.processes import ChaosError
from queuert.testing.chaos.records import Records, Tail
from queuert.testing.chaos.resources import Taken, taken_by
from queuert.testing.chaos.steady_client import EXERCISE, EXERCISED, STEADY
from queuert.testing.chaos.stores import OwnedStore

BEFORE = "before"
AFTER = "after"

_TIMEOUT = 120.0
_EVERY = 1.0
_LOOK = 0.1
_STILL = 10
"""How many consecutive samples must show the same open files: a process at rest opens none."""
_REST_SECONDS = 60.0
_SESSIONS_SECONDS = 15.0
_FAULTS = 2
_OF_WEBHOOKS = 5
"""The most files of the client by which a worker delivers webhooks. The fresh worker, with which workers are compared,
delivers none: what the first delivery takes up for good would count as a leak of its memory."""
_EXERCISES = 3


class Witnesses:
    """Lets the two processes work and rest, and records the resources of all processes."""

    def __init__(self, fleet: Fleet, store: OwnedStore, directory: Path) -> None:
        self._fleet = fleet
        self._store = store
        self._gates = directory / "gates"
        self._records = Records(directory / "resources.jsonl")
        self._reported = Tail(directory / "client-steady.jsonl", _key)
        self._exercises = 0
        self._sampled = 0.0

    def close(self) -> None:
        """Stop the sampling."""
        self._reported.close()

    def begin(self) -> None:
        """Start the two, let them experience a fault or two, measure them at rest, and let them work."""
        self._fleet.start_witnesses()
        for _ in range(_FAULTS):
            self._meet_a_fault()
            if not self._exercise():
                raise ChaosError("the witnesses do not do what they are asked to: see their logs in --directory")
        for _ in range(_EXERCISES):
            self._exercise()
            self._rest(BEFORE, self._fleet.witnesses)
        (self._gates / STEADY).touch()

    def _meet_a_fault(self) -> None:
        """What the first faults allocate for good (threads, modules, sources for tracebacks) is not a leak."""
        self._exercise()
        kind = f"restart {self._store.name}" if self._store.has_server else "lock file"
        with ThreadPoolExecutor(1) as beside:
            fault = beside.submit(self._store.break_it, kind, 1.0)
            self._exercise()
            fault.result()
        self._fleet.cut_witnesses()

    def settle(self) -> None:
        """Let them start no more chains."""
        (self._gates / STEADY).unlink(missing_ok=True)
        self._exercise()  # The client reacts when it has finished what it is doing.

    def end(self) -> dict[str, Any]:
        """Measure the two, and the workers, at rest, and record the server's sessions."""
        if not self._fleet.witnesses:
            return {}
        self._exercise()
        self._rest(AFTER, (*self._fleet.witnesses, *self._fleet.workers))
        return self._sessions()

    def show(self) -> str:
        """Return their present resources as text, and record those of all processes about every second."""
        if time.monotonic() - self._sampled > _EVERY:
            self._sampled = time.monotonic()
            for place in (*self._fleet.witnesses, *self._fleet.workers, *self._fleet.clients):
                self._sample(place)
        reported = [
            f"{taken.resident >> 20} MB and {taken.files} files" for place in self._fleet.witnesses
            if place.child is not None and (taken := taken_by(place.child.pid)) is not None
        ]  # fmt: skip
        return f", witnesses {', '.join(reported)}" if reported else ""

    def _exercise(self) -> bool:
        """Let them use all their connections; return False if one of them has died, or if it takes too long."""
        self._exercises += 1
        (self._gates / f"{EXERCISE}-{self._exercises}").touch()
        deadline = time.monotonic() + _TIMEOUT
        while all(place.child is not None and place.child.alive for place in self._fleet.witnesses):
            if self._reported.wait_for(self._exercises, _LOOK) is not None:
                return True
            if time.monotonic() > deadline:
                break
        return False

    def _rest(self, moment: str, places: tuple[Place, ...]) -> None:
        """Wait until no process opens or closes files, and record the resources of each."""
        deadline = time.monotonic() + _REST_SECONDS
        before: list[int | None] = []
        still = 0
        while still < _STILL and time.monotonic() < deadline:
            found = [None if (taken := self._of(place)) is None else taken.files for place in places]
            still = still + 1 if found == before else 0
            before = found
            time.sleep(_LOOK)
        for place in places:
            self._sample(place, rest=moment)

    def _of(self, place: Place) -> Taken | None:
        return None if place.child is None or not place.child.alive else taken_by(place.child.pid)

    def _sample(self, place: Place, **more: Any) -> None:
        taken = self._of(place)
        if taken is not None and place.child is not None:
            self._records.add(
                role=place.role, slot=place.number, pid=place.child.pid,
                allowed=_OF_WEBHOOKS if place.settings.get("limits") else 0, **taken.fields(), **more,
            )  # fmt: skip

    def _sessions(self) -> dict[str, Any]:
        """Record the sessions of the server, and how many connections the run's processes have."""
        deadline = time.monotonic() + _SESSIONS_SECONDS
        while (sessions := self._store.sessions()) is not None:
            held = self._fleet.connections
            if sessions <= held or time.monotonic() > deadline:
                return {"sessions at rest": sessions, "connections at rest": held}
            time.sleep(_LOOK)
        return {}


def _key(line: dict[str, Any]) -> object:
    return line["number"] if line["m"] == EXERCISED else None
