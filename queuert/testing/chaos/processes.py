"""The processes of a run: forked by the fork server, or started separately if they need another environment."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from queuert.errors import QueuertError
from queuert.testing.chaos import fork_server

_SECONDS = 30.0
_ALONE = "import sys; from queuert.testing.chaos import child_processes; sys.exit(child_processes.main())"


class ChaosError(QueuertError):
    """The run itself could not continue: one of its own parts failed, which says nothing about the tested queue."""


class Child:
    """A process of the run; any thread may ask for its end and wait for it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None
        self.ended_at: float | None = None
        """When the end was noticed, in seconds since 1970."""
        self._ended = threading.Event()

    def note_end(self, code: int) -> None:
        """Record that the process has ended, with this exit code; it is negative for a signal."""
        self.code, self.ended_at = code, time.time()
        self._ended.set()

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return not self._ended.is_set()

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the process; return whether it ended within ``timeout`` seconds."""
        return self._ended.wait(timeout)

    def kill(self) -> None:
        """Kill the process and wait for its end."""
        self.send(signal.SIGKILL)
        self._ended.wait(_SECONDS)


class Nursery:
    """Starts children by role; ``close`` ends all of them."""

    def __init__(self) -> None:
        self._zygote = subprocess.Popen(
            fork_server.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=fork_server.environment()
        )
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._started: dict[int, Child] = {}
        self._children: dict[int, Child] = {}
        self._apart: list[subprocess.Popen[bytes]] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, name="queuert-chaos-nursery", daemon=True)
        self._reader.start()

    def start(self, role: str, settings: Mapping[str, Any], log: Path) -> Child:
        """Fork a child.

        Raises:
            ChaosError: it did not start.
        """
        self._ready.wait(_SECONDS)
        number = next(self._numbers)
        order = {"number": number, "role": role, "settings": dict(settings), "log": str(log)}
        assert self._zygote.stdin is not None
        with self._changed:
            try:
                self._zygote.stdin.write(json.dumps(order).encode() + b"\n")
                self._zygote.stdin.flush()
            except BrokenPipeError as error:
                raise ChaosError("the process that forks the others has ended") from error
            self._changed.wait_for(lambda: number in self._started or self._zygote.poll() is not None, _SECONDS)
            if number not in self._started:
                raise ChaosError("the process that forks the others has ended, or hangs")
            return self._started.pop(number)

    def start_apart(self, role: str, settings: Mapping[str, Any], log: Path, environment: Mapping[str, str]) -> Child:
        """Start a child separately, with additional environment variables."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", _ALONE, role, json.dumps(dict(settings))],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**fork_server.environment(), **environment},
            )
        self._apart.append(process)
        child = Child(process.pid)
        threading.Thread(target=lambda: child.note_end(process.wait()), daemon=True).start()
        return child

    def close(self) -> None:
        """End the fork server with all its children, and the separate children."""
        assert self._zygote.stdin is not None and self._zygote.stdout is not None
        for process in self._apart:
            process.kill()
            process.wait()
        with suppress(BrokenPipeError):  # The fork server has ended before, and did not read an order.
            self._zygote.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._zygote.wait(_SECONDS)
        self._zygote.kill()
        self._zygote.wait()
        self._reader.join(_SECONDS)
        self._zygote.stdout.close()

    def _read(self) -> None:
        assert self._zygote.stdout is not None
        for line in self._zygote.stdout:
            self._note(json.loads(line))
        with self._changed:
            self._changed.notify_all()

    def _note(self, reported: dict[str, Any]) -> None:
        if "ready" in reported:
            self._ready.set()
            return
        with self._changed:
            if "started" in reported:
                child = self._children[reported["started"]] = Child(reported["started"])
                self._started[reported["number"]] = child
            else:
                self._children.pop(reported["ended"]).note_end(reported["code"])
            self._changed.notify_all()
