"""A worker as a separate process that a test kills, freezes and stops; its events arrive through a pipe."""

from __future__ import annotations

import base64
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from queuert.observability.events import WorkerStarted
from queuert.testing.events import EventLog
from tests.support.waiting import START, until

RECORDS = "QUEUERT_TEST_RECORDS"
"""The environment variable with the address to which handlers write their records."""

_ROOT = Path(__file__).parents[2]


@contextmanager
def _default_interrupt() -> Iterator[None]:
    """Let processes that are started here not ignore SIGINT, though a shell that runs tests in the background does."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class WorkerProcess:
    """A worker process that can be killed, frozen and asked to stop. It writes its events to ``log``."""

    def __init__(self, *arguments: str, url: str, records: str) -> None:
        self.log = EventLog()
        with _default_interrupt():
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=_ROOT,
                env={**os.environ, "QUEUERT_URL": url, RECORDS: records},
                stdout=subprocess.PIPE,
                process_group=0,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):
                self.log.emit(pickle.loads(base64.b64decode(line)))

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    async def freeze(self) -> None:
        """Stop all its threads, as a suspended machine would; they have stopped when this returns."""
        self.send(signal.SIGSTOP)
        await until(lambda: self.is_frozen, "the process has stopped")

    @property
    def peak_megabytes(self) -> float:
        """Return the most memory that the process has had so far."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii", errors="replace")
        [peak] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(peak.split()[1]) / 1024

    @property
    def is_frozen(self) -> bool:
        """Whether the process is stopped, by itself or by us."""
        assert not self.has_ended, f"the process has ended with {self._process.returncode}"
        state = Path(f"/proc/{self._process.pid}/stat")
        return state.read_text().rpartition(")")[2].split()[0] == "T"

    def resume(self) -> None:
        """Resume the process."""
        self.send(signal.SIGCONT)

    async def kill(self) -> None:
        """Kill the process as a crash would, and wait for its end."""
        self.send(signal.SIGKILL)
        assert await self.ended() == -signal.SIGKILL

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    async def ended(self, timeout: float = START) -> int:
        """Wait for the end of the process, and for all its events; return the exit code, negative for a signal."""
        await until(lambda: self.has_ended, "the worker's process has ended", timeout)
        # Its last events may still be in the pipe.
        await until(lambda: not self._reader.is_alive(), "its events are read", timeout)
        return self._process.wait()

    async def started(self) -> str:
        """Wait until it claims; return the holder that it writes into rows."""
        return (await self.log.wait_for(WorkerStarted, timeout=START)).worker

    def close(self) -> None:
        """Kill the process, whatever its state, and what it has forked, which keeps the pipe open."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
