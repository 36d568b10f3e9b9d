"""The harness of the tests that kill SQLite workers: a file with a witness, and workers on it that are processes."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.support.waiting import START, WAIT

_ROOT = Path(__file__).parents[3]

_SET_UP = """
CREATE TABLE effect (job_id TEXT NOT NULL, attempt INTEGER NOT NULL);
CREATE TABLE history (
    job_id TEXT, old_status TEXT, new_status TEXT, old_token TEXT, new_token TEXT, old_attempt INTEGER,
    new_attempt INTEGER);
CREATE TRIGGER note_change AFTER UPDATE ON queuert_job
WHEN old.status <> new.status OR old.lease_token IS NOT new.lease_token
BEGIN
    INSERT INTO history VALUES (old.id, old.status, new.status, old.lease_token, new.lease_token, old.attempt,
        new.attempt);
END;
"""

_NEVER = {
    "a live lease was claimed": "SELECT * FROM history WHERE new_status = 'running' AND old_status = 'running'",
    "a job changed after its end": (
        "SELECT * FROM history WHERE old_status IN ('continued', 'completed', 'failed', 'cancelled')"
    ),
    "an attempt was skipped or counted twice": (
        "SELECT * FROM history WHERE new_status = 'running' AND new_attempt <> old_attempt + 1"
    ),
    "a job was written by another than its holder": (
        "SELECT * FROM history WHERE new_status IN ('completed', 'continued') AND old_token IS NOT new_token"
    ),
    "a finish stands twice": (
        "SELECT job_id FROM history WHERE new_status IN ('completed', 'continued') GROUP BY job_id HAVING count(*) > 1"
    ),
    "an effect stands twice": "SELECT job_id FROM effect GROUP BY job_id HAVING count(*) > 1",
    "an effect stands without a finish": (
        "SELECT * FROM effect JOIN queuert_job AS job ON job.id = job_id"
        " WHERE status NOT IN ('completed', 'continued') AND type <> 'parent'"
    ),
    "a finish stands without its effect": (
        "SELECT id FROM queuert_job WHERE status IN ('completed', 'continued')"
        " AND id NOT IN (SELECT job_id FROM effect)"
    ),
    "a job waits for nothing": (
        "SELECT id FROM queuert_job AS job WHERE status = 'blocked' AND open_blockers <>"
        " (SELECT count(*) FROM queuert_job_blocker WHERE job_id = job.id AND NOT closed)"
    ),
}


class Witness:
    """Keeps the history of all jobs of a file, on a connection of its own."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=WAIT, check_same_thread=False)
        self._connection.executescript(_SET_UP)

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return self._connection.execute(query, values).fetchall()

    def one(self, query: str, *values: object) -> Any:
        """The only value of a query."""
        return self.rows(query, *values)[0][0]

    def effects(self, job_id: str) -> list[int]:
        """The attempts whose effects stand."""
        return [row[0] for row in self.rows("SELECT attempt FROM effect WHERE job_id = ?", job_id)]

    def check(self) -> None:
        """Nothing happened that must never happen, and the file is whole."""
        found = {what: rows for what, query in _NEVER.items() if (rows := self.rows(query))}
        assert not found
        assert self.rows("PRAGMA integrity_check") == [("ok",)]
        assert self.rows("PRAGMA foreign_key_check") == []


class WorkerProcess:
    """A worker that can be killed. What it says is a queue of lines."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        command = [sys.executable, "-m", "tests.state.sqlite.child", str(path), name]
        self._process = subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True)
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.strip())

    async def says(self, expected: str) -> None:
        """Wait until it has said this."""
        line = await asyncio.to_thread(self._lines.get, timeout=START)
        assert line == expected

    def kill(self) -> None:
        """Kill it as a crash would, and wait for its end."""
        self._process.kill()
        assert self._process.wait() == -signal.SIGKILL

    def freeze(self) -> None:
        """Stop it at a moment at which it does not write: nobody else could, until it goes on."""
        while True:
            self._process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)
            if self._others_can_write():
                return
            self.go_on()

    def _others_can_write(self) -> bool:
        with closing(sqlite3.connect(self._path, isolation_level=None, timeout=2.0)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            other.execute("ROLLBACK")
            return True

    def go_on(self) -> None:
        """Let it go on where it was frozen."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Get rid of it, whatever its state."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


class SQLiteHarness:
    """A file with its tables, a witness, and workers as processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.witness = Witness(path)
        self._processes: list[WorkerProcess] = []

    def spawn(self) -> WorkerProcess:
        """Start a worker's process."""
        process = WorkerProcess(self.path, f"worker{len(self._processes)}")
        self._processes.append(process)
        return process

    def close(self) -> None:
        """End all workers."""
        for process in self._processes:
            process.close()
        self.witness.close()
