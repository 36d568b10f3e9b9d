"""The records of a run's processes: lines of JSON in files that are only appended to.

A line is one ``write`` on a descriptor in append mode, so that any number of processes share a file, and a process that
is killed leaves whole lines or nothing.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Line = dict[str, Any]

_POLL = 0.02


class Records:
    """Appends lines to one file; ``shift`` is by how many seconds this process's clock is ahead of the machine's."""

    def __init__(self, path: Path, *, shift: float = 0.0) -> None:
        self.path = path
        self._shift = shift
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def add(self, **fields: Any) -> None:
        """Append a line; ``t`` is its time, in seconds since 1970."""
        os.write(self._file, json.dumps({"t": time.time() - self._shift, **fields}, default=str).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read(path: Path) -> Iterator[Line]:
    """Return the lines of a file; none if the file does not exist."""
    if path.exists():
        with path.open("rb") as file:
            yield from map(json.loads, file)


class Tail:
    """Reads a file that others append to, in a thread, and lets its owner wait for lines.

    ``key`` says under which key a line is found again; lines for which it is None are skipped.
    """

    def __init__(self, path: Path, key: Callable[[Line], object]) -> None:
        self._path = path
        self._key = key
        self._seen: dict[object, Line] = {}
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="queuert-chaos-tail", daemon=True)
        self._thread.start()

    def wait_for(self, key: object, timeout: float) -> Line | None:
        """Wait for a line of this key and return the last one; None after ``timeout`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._seen, timeout)
            return self._seen.get(key)

    def close(self) -> None:
        """Stop reading."""
        self._stopped.set()
        self._thread.join()

    def _follow(self) -> None:
        self._path.touch()
        with self._path.open("rb") as file:
            rest = b""
            while not self._stopped.is_set():
                data = file.read()
                if not data:
                    self._stopped.wait(_POLL)
                    continue
                *lines, rest = (rest + data).split(b"\n")
                self._note([json.loads(line) for line in lines])

    def _note(self, lines: list[Line]) -> None:
        with self._changed:
            for line in lines:
                key = self._key(line)
                if key is not None:
                    self._seen[key] = line
            self._changed.notify_all()
