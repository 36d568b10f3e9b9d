"""A worker and a client that live through the whole run, and whether they take up more at its end.

All other processes are killed too often to show a leak. These two are neither killed nor given jobs that kill; the
faults of the store happen to them, and those of the network, and the freezing, of the first worker. They are measured
at rest, after they have used all their connections at once: before the first fault and after the drain.
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
"""So many looks in a row at which the open files are the same: who is at rest opens none."""
_REST_SECONDS = 60.0
_SESSIONS_SECONDS = 15.0
_FAULTS = 2
_EXERCISES = 3


class Witnesses:
    """Has the two work and rest, and writes down what all processes take up."""

    def __init__(self, fleet: Fleet, store: OwnedStore, directory: Path) -> None:
        self._fleet = fleet
        self._store = store
        self._gates = directory / "gates"
        self._records = Records(directory / "resources.jsonl")
        self._reported = Tail(directory / "client-steady.jsonl", _key)
        self._exercises = 0
        self._sampled = 0.0

    def close(self) -> None:
        """Look no more."""
        self._reported.close()

    def begin(self) -> None:
        """Start them, let them meet a fault or two, measure them at rest, and have them work."""
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
        """What the first faults take up for good (threads, modules, sources for tracebacks) is no leak."""
        self._exercise()
        kind = f"restart {self._store.name}" if self._store.has_server else "lock file"
        with ThreadPoolExecutor(1) as beside:
            fault = beside.submit(self._store.break_it, kind, 1.0)
            self._exercise()
            fault.result()
        self._fleet.cut_witnesses()

    def settle(self) -> None:
        """Have them start nothing any more."""
        (self._gates / STEADY).unlink(missing_ok=True)
        self._exercise()  # It does that when it has done what it was at.

    def end(self) -> dict[str, Any]:
        """Measure them, and the workers, at rest; what the server says of its sessions."""
        if not self._fleet.witnesses:
            return {}
        self._exercise()
        self._rest(AFTER, (*self._fleet.witnesses, *self._fleet.workers))
        return self._sessions()

    def show(self) -> str:
        """What they take up now, for a reader; every second or so that is written down of all processes."""
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
        """Have them use all that they may have; False if one of them has died, or it takes too long."""
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
        """Wait until nobody opens or closes anything, and write down what each takes up."""
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
                role=place.role, slot=place.number, pid=place.child.pid, **taken.fields(), **more
            )  # fmt: skip

    def _sessions(self) -> dict[str, Any]:
        """Sessions that the server keeps, and how many connections our processes have."""
        deadline = time.monotonic() + _SESSIONS_SECONDS
        while (sessions := self._store.sessions()) is not None:
            held = self._fleet.connections
            if sessions <= held or time.monotonic() > deadline:
                return {"sessions at rest": sessions, "connections at rest": held}
            time.sleep(_LOOK)
        return {}


def _key(line: dict[str, Any]) -> object:
    return line["number"] if line["m"] == EXERCISED else None
