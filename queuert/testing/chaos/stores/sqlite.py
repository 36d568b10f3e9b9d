"""A SQLite file of the run's own. Triggers record the history of all jobs, in the transactions that change them."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from queuert.errors import QueuertError
from queuert.state.sqlite import SQLiteState
from queuert.testing.chaos.history import History
from queuert.testing.fault_proxy import FaultProxy

_LOOK = 0.02
"""Seconds between two checks which process has the write lock."""
_WRITE_LOCK = "120"
"""The locked byte, by the format of SQLite's write-ahead log."""
_PAIRS = {
    "status": "status", "token": "lease_token", "attempt": "attempt", "lease": "lease_expires_at",
    "scheduled": "scheduled_at", "uncounted": "uncounted", "expirations": "lease_expirations",
}  # fmt: skip
_NOW = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) * 1000"


def _trigger(name: str, when: str, old: str | None, new: str | None) -> str:
    one = new or old
    columns = ", ".join(f"old_{name}, new_{name}" for name in _PAIRS)
    values = ", ".join(f"{_of(old, column)}, {_of(new, column)}" for column in _PAIRS.values())
    return f"""CREATE TRIGGER chaos_{name} AFTER {when} BEGIN
        INSERT INTO chaos_change (kind, job_id, chain_id, type, at, chain_index, holder, output, {columns})
        VALUES ('{name}', {one}.id, {one}.chain_id, {one}.type, {_NOW}, {one}.chain_index, {one}.holder, {one}.output,
                {values});
    END"""


def _of(row: str | None, column: str) -> str:
    return "NULL" if row is None else f"{row}.{column}"


_AUDIT = (
    "CREATE TABLE chaos_effect (job_id TEXT NOT NULL, attempt INTEGER NOT NULL, token TEXT)",
    "CREATE TABLE chaos_business (id TEXT PRIMARY KEY)",
    f"""CREATE TABLE chaos_change (number INTEGER PRIMARY KEY AUTOINCREMENT, kind, job_id, chain_id, type, at,
        chain_index, holder, output, {", ".join(f"old_{name}, new_{name}" for name in _PAIRS)})""",
    _trigger("insert", "INSERT ON queuert_job", None, "NEW"),
    _trigger(
        "update",
        "UPDATE ON queuert_job WHEN OLD.status <> NEW.status OR OLD.lease_token IS NOT NEW.lease_token"
        " OR OLD.attempt <> NEW.attempt",
        "OLD",
        "NEW",
    ),
    _trigger("delete", "DELETE ON queuert_job", "OLD", None),
)
_TIMES = ("at", "old_lease", "new_lease", "old_scheduled", "new_scheduled")
_JOBS = """SELECT id, type, chain_id, chain_index, status, chain_status, attempt, uncounted, lease_expirations,
    open_blockers, created_at / 1e6 AS created_at, scheduled_at / 1e6 AS scheduled_at, finished_at / 1e6 AS finished_at,
    chain_closed_at / 1e6 AS chain_closed_at, deduplication_key AS key, continued_by, output, holder,
    limit_key FROM queuert_job"""


@dataclass(slots=True)
class _Hold:
    """A process had the write lock; while it has the lock there is no end."""

    pid: int
    began: float
    ended: float | None = None


class OwnedSQLite:
    """A file in the run's directory."""

    name = "sqlite"
    has_server = False

    def __init__(self, directory: Path) -> None:
        self._path = directory / "jobs.db"
        self.broken_since: float | None = None
        self._holds: list[_Hold] = []
        self._looking = threading.Lock()
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._watch_writers, name="queuert-chaos-writers", daemon=True)

    @property
    def url(self) -> str:
        """Return the address of the file."""
        return f"sqlite:///{self._path}"

    def start(self) -> None:
        """Create the tables and the triggers."""
        store = SQLiteState(self._path).sync_store(max_connections=1)
        store.open()
        store.close()
        with self._connected() as connection:
            for statement in _AUDIT:
                connection.execute(statement)
        self._watch.start()

    def _watch_writers(self) -> None:
        while not self._ended.wait(_LOOK):
            self.look_at_writer()

    def look_at_writer(self) -> None:
        """Record which process has the write lock now; a thread calls this all the time, because no process could
        report it."""
        with self._looking:
            now, pid, last = time.time(), self._writer(), self._holds[-1] if self._holds else None
            if last is not None and last.ended is None:
                if last.pid == pid:
                    return
                last.ended = now
            if pid is not None:
                self._holds.append(_Hold(pid, now))

    def _writer(self) -> int | None:
        """Return the process that has locked this byte of the file beside the database."""
        try:
            index = Path(f"{self._path}-shm").stat().st_ino
            locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
        except FileNotFoundError:
            return None  # No process has the database open, or the system does not report locks.
        for lock in map(str.split, locks):
            if lock[3] == "WRITE" and lock[5].endswith(f":{index}") and lock[6] == _WRITE_LOCK:
                return int(lock[4])
        return None

    def close(self) -> None:
        """Stop the thread; the file is removed with the run's directory."""
        self._ended.set()
        if self._watch.is_alive():
            self._watch.join()

    def proxy(self) -> FaultProxy:
        """Raise: a file has no proxy."""
        raise QueuertError("there is no proxy before a file")

    def address_in(self, proxy: FaultProxy) -> str:
        """Return the address of the file, because there is no proxy."""
        return self.url

    def open_jobs(self) -> int:
        """Return how many jobs have not ended, without those that no worker handles."""
        with self._connected() as connection:
            query = """SELECT count(*) FROM queuert_job
                       WHERE status IN ('blocked', 'scheduled', 'ready', 'running') AND type <> 'chaos.nobody'"""
            return int(connection.execute(query).fetchone()[0])

    def leases_of(self, pid: int) -> list[tuple[str, int]]:
        """Return the jobs that the worker of this process holds."""
        with self._connected() as connection:
            query = "SELECT id, attempt FROM queuert_job WHERE status = 'running' AND holder LIKE ?"
            return connection.execute(query, (f"chaos-{pid}-%",)).fetchall()

    def waits_for(self, pid: int) -> bool:
        """Whether this process has the write lock."""
        return self._writer() == pid

    def sessions(self) -> int | None:
        """Return None: there is no server."""
        return None

    def stands_in(self, pid: int, what: str) -> bool:
        """Return False: one call is one transaction."""
        return False

    def session_list(self) -> list[str]:
        """Return nothing: there are no sessions."""
        return []

    def break_it(self, kind: str, measure: float) -> tuple[float | None, str]:
        """Hold the write lock for a while."""
        seconds = 0.2 + 1.5 * measure
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            self.broken_since = time.time()
            time.sleep(seconds)
            connection.execute("ROLLBACK")
        return None, f"for {seconds:.1f} s"

    def last_words(self) -> dict[str, Any]:
        """Return no facts: a file has none."""
        return {}

    def collect(self, history: History) -> None:
        """Read the recorded changes and the tables."""
        self.look_at_writer()
        history.add("holds", (asdict(hold) for hold in self._holds))
        with self._connected() as connection:
            connection.row_factory = sqlite3.Row
            history.add("c", map(_change, connection.execute("SELECT * FROM chaos_change ORDER BY number")))
            history.add("e", map(dict, connection.execute("SELECT * FROM chaos_effect")))
            history.add("s", map(dict, connection.execute(_JOBS)))
            blockers = "SELECT job_id, blocker_chain_id AS chain_id, closed FROM queuert_job_blocker"
            history.add("b", map(dict, connection.execute(blockers)))
            history.add("business", map(dict, connection.execute("SELECT id FROM chaos_business")))

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self._path, timeout=30.0, isolation_level=None)
        try:
            yield connection
        finally:
            connection.close()


def _change(row: sqlite3.Row) -> dict[str, Any]:
    found = dict(row)
    # Milliseconds, truncated: the real time is at most one later.
    times = {name: None if found[name] is None else found[name] / 1e6 for name in _TIMES}
    return {**found, **times, "at": found["at"] / 1e6 + 0.001}
