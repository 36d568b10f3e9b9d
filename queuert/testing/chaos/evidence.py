"""What is kept of a worker that has to be killed, because it does not stop: where it was, and what it told last."""

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
"""Seconds, at most, for a process to tell where it is."""
_LOOK = 0.05
_LINES = 40
_TAIL = 200_000


@dataclass(frozen=True)
class Hang:
    """A worker that did not stop."""

    slot: int
    pid: int
    kind: str
    """The fault that asked it to stop."""
    waited: float
    """Seconds from then to its end by force."""
    state: str
    """Of the process: a letter of ``/proc``, and the seconds of processor time that it took while it was asked."""
    stacks: str
    """Of its threads, and of its asyncio tasks."""
    log: str
    """The last lines of its log before."""
    events: tuple[str, ...]
    """The last events that it told."""
    sessions: tuple[str, ...]
    """What the server said of all sessions."""

    def as_row(self) -> dict[str, object]:
        """For the records."""
        return asdict(self)


def question(child: Child, log: Path) -> str:
    """Ask a process where it is, and wait for its answer: what it wrote to its log since."""
    before = log.stat().st_size if log.exists() else 0
    child.send(stacks.THREADS)
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
    """All that can be known of a process that is about to be killed."""
    last = "\n".join(_from(log, -_TAIL).splitlines()[-_LINES:])
    letter, began = _usage(child.pid)
    since = time.monotonic()
    reported = question(child, log)
    _, ended = _usage(child.pid)
    state = f"{letter}, {ended - began:.2f} s of processor time in {time.monotonic() - since:.2f} s"
    return Hang(slot, child.pid, kind, waited, state, reported, last, _last_events(events, child.pid), tuple(sessions))


def shown(hang: Hang) -> list[str]:
    """The same for a reader, in lines."""
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
    """A file from a place on, or its end."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(place if place >= 0 else max(0, path.stat().st_size + place))
        return file.read().decode(errors="replace")


def _usage(pid: int) -> tuple[str, float]:
    """The state of a process, and the processor time that it took so far."""
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
