"""Evidence about a worker that must be killed because it does not stop: its stacks, and its last events."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from queuert.testing.chaos import stacks
from queuert.testing.chaos.processes import Child

_ANSWER = 15.0
"""The most seconds to wait until a process has written its stacks."""
_LOOK = 0.05
_QUIET = 0.5
"""Seconds without a new line after which the stacks of the threads count as complete: they have no last line."""
_LINES = 40
_TAIL = 200_000


@dataclass(frozen=True)
class Hang:
    """A worker that did not stop."""

    slot: int
    pid: int
    kind: str
    """The fault that asked the worker to stop."""
    waited: float
    """Seconds from the request to stop until the kill."""
    state: str
    """The state of the process: a letter of ``/proc``, and the processor time in seconds that it used during the
    collection."""
    stacks: str
    """The stacks of its threads, and of its asyncio tasks."""
    log: str
    """The last lines of its log before the collection."""
    events: tuple[str, ...]
    """The last events that it emitted."""
    sessions: tuple[str, ...]
    """The server's view of all sessions."""

    def as_row(self) -> dict[str, object]:
        """Return the evidence as data for the records."""
        return asdict(self)


def question(child: Child, log: Path) -> str:
    """Signal a process to write its stacks, wait for them, and return what it has written to its log since.

    The tasks are asked for after the threads have been written: two answers at once would be mixed line by line.
    """
    before = log.stat().st_size if log.exists() else 0
    deadline = time.monotonic() + _ANSWER
    child.send(stacks.THREADS)
    size, since = before, time.monotonic()
    while (size == before or time.monotonic() < since + _QUIET) and child.alive and time.monotonic() < deadline:
        time.sleep(_LOOK)
        if (grown := log.stat().st_size if log.exists() else 0) != size:
            size, since = grown, time.monotonic()
    child.send(stacks.TASKS)
    end = stacks.end_of_tasks(child.pid)
    deadline = time.monotonic() + _ANSWER
    while True:
        reported = _from(log, before)
        if end in reported or not child.alive or time.monotonic() > deadline:
            return reported or "it did not answer"
        time.sleep(_LOOK)


def gather(
    child: Child, log: Path, events: Path, *, slot: int, kind: str, waited: float, sessions: Sequence[str]
) -> Hang:
    """Collect the evidence about a process that is about to be killed."""
    last = "\n".join(_from(log, -_TAIL).splitlines()[-_LINES:])
    letter, began = _usage(child.pid)
    since = time.monotonic()
    reported = question(child, log)
    _, ended = _usage(child.pid)
    state = f"{letter}, {ended - began:.2f} s of processor time in {time.monotonic() - since:.2f} s"
    return Hang(slot, child.pid, kind, waited, state, reported, last, _last_events(events, child.pid), tuple(sessions))


def shown(hang: Hang) -> list[str]:
    """Return the evidence as lines of text."""
    parts = {
        "threads and tasks": hang.stacks.splitlines(),
        "last lines of its log": hang.log.splitlines(),
        "last events": hang.events,
        "sessions of the server": hang.sessions,
    }
    lines = [
        f"worker {hang.pid} (place {hang.slot}, {hang.kind}) had not stopped after {hang.waited:.1f} s: {hang.state}"
    ]
    for title, found in parts.items():
        lines += [f"  {title}:", *(f"    {line}" for line in found)]
    return lines


def _from(path: Path, place: int) -> str:
    """Return a file from a position on, or its end."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(place if place >= 0 else max(0, path.stat().st_size + place))
        return file.read().decode(errors="replace")


def _usage(pid: int) -> tuple[str, float]:
    """Return the state of a process, and the processor time that it has used so far."""
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return "?", 0.0


def _last_events(path: Path, pid: int) -> tuple[str, ...]:
    lines = [line for line in _from(path, -_TAIL).splitlines()[1:] if f'"pid": {pid},' in line]
    return tuple(_event(line) for line in lines[-_LINES:])


def _event(line: str) -> str:
    fields = json.loads(line)
    at, name = fields.pop("t"), fields.pop("name")
    more = ", ".join(f"{key} {value}" for key, value in fields.items() if key not in ("pid", "slot", "worker"))
    return f"{at:.3f} {name}" + (f": {more}" if more else "")
