"""Worker processes that tests break, and what they leave behind."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.worker.support import WAIT, Stage

ROOT = Path(__file__).resolve().parents[3]


class Child:
    """A worker process of ``tests.faults.processes.program``, killed at the end of the ``with`` block."""

    def __init__(self, dsn: str, way: str, **settings: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.faults.processes.program", dsn, way, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
            bufsize=1,
        )
        self.heard: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="child-output", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())
        self._lines.put(None)

    def expect(self, beginning: str) -> str:
        """Wait for a line that begins so; what follows."""
        while (line := self._next_line()) is not None:
            self.heard.append(line)
            if line.startswith(beginning):
                return line.removeprefix(beginning).strip()
        raise AssertionError(f"the child did not say {beginning!r}; it said {self.heard}")

    def _next_line(self) -> str | None:
        """The next line; None when the child has ended, or is silent for too long."""
        try:
            return self._lines.get(timeout=WAIT)
        except queue.Empty:
            self.heard.append("(silence)")
            return None

    def tell(self) -> None:
        """Let the handler that waits go on."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit code, once it has ended."""
        return self.process.wait(WAIT)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait(WAIT)
        self._reader.join(WAIT)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def make_effects(stage: Stage) -> None:
    """The table that handlers write to in their transactions."""
    stage.rows("create table effect (job text, attempt int)")


def effects(stage: Stage) -> list[tuple[str, int]]:
    """What handlers committed: job and attempt."""
    return [(row[0], row[1]) for row in stage.rows("select job, attempt from effect order by job, attempt")]
