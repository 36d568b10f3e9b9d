"""A Postgres server of the run's own. A trigger records the history of all jobs, in the transactions that change
them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg.rows import dict_row

from queuert import migrations
from queuert.embedded import EmbeddedPostgres
from queuert.embedded.server import wait_until
from queuert.errors import QueuertError
from queuert.testing.chaos.history import History
from queuert.testing.chaos.stores.base import CLAIM
from queuert.testing.fault_proxy import FaultProxy

_AUDIT: LiteralString = """
CREATE SCHEMA chaos;
CREATE TABLE chaos.effect (
    job_id text NOT NULL, attempt int NOT NULL, token uuid, tx xid8 NOT NULL DEFAULT pg_current_xact_id(),
    at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE chaos.business (id text PRIMARY KEY);
CREATE TABLE chaos.change (
    number bigint GENERATED ALWAYS AS IDENTITY, kind text NOT NULL, job_id text, chain_id text, type text,
    tx xid8 NOT NULL DEFAULT pg_current_xact_id(), at timestamptz NOT NULL DEFAULT clock_timestamp(),
    began timestamptz NOT NULL DEFAULT now(), old_status text, new_status text, old_token uuid, new_token uuid,
    old_attempt int, new_attempt int, old_lease timestamptz, new_lease timestamptz, old_scheduled timestamptz,
    new_scheduled timestamptz, old_uncounted int, new_uncounted int, old_expirations int, new_expirations int,
    chain_index int, holder text, output text);
CREATE FUNCTION chaos.note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
    INSERT INTO chaos.change (kind, job_id, chain_id, type, old_status, new_status, old_token, new_token, old_attempt,
        new_attempt, old_lease, new_lease, old_scheduled, new_scheduled, old_uncounted, new_uncounted, old_expirations,
        new_expirations, chain_index, holder, output)
    SELECT lower(TG_OP), one.id, one.chain_id, one.type, was.status, becomes.status, was.lease_token,
        becomes.lease_token, was.attempt, becomes.attempt, was.lease_expires_at, becomes.lease_expires_at,
        was.scheduled_at, becomes.scheduled_at, was.uncounted, becomes.uncounted, was.lease_expirations,
        becomes.lease_expirations, one.chain_index, coalesce(becomes.holder, was.holder), becomes.output::text
    FROM (SELECT (CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END).*) AS one,
        (SELECT (CASE WHEN TG_OP = 'INSERT' THEN NULL ELSE OLD END).*) AS was,
        (SELECT (CASE WHEN TG_OP = 'DELETE' THEN NULL ELSE NEW END).*) AS becomes;
    RETURN NULL;
END $$;
CREATE TRIGGER chaos_born AFTER INSERT OR DELETE ON queuert.job FOR EACH ROW EXECUTE FUNCTION chaos.note();
CREATE TRIGGER chaos_changed AFTER UPDATE ON queuert.job FOR EACH ROW
    WHEN (OLD.status <> NEW.status OR OLD.lease_token IS DISTINCT FROM NEW.lease_token OR OLD.attempt <> NEW.attempt)
    EXECUTE FUNCTION chaos.note();
"""

_SECONDS: LiteralString = "extract(epoch FROM {0})::float8 AS {0}"
_COMMITTED: LiteralString = "extract(epoch FROM pg_xact_commit_timestamp(tx::text::bigint::text::xid))::float8"
_CHANGES: LiteralString = f"""
SELECT number, kind, job_id, chain_id, type, tx::text AS tx, {_COMMITTED} AS committed,
    {_SECONDS.format("at")}, {_SECONDS.format("began")}, {_SECONDS.format("old_lease")},
    {_SECONDS.format("new_lease")}, {_SECONDS.format("old_scheduled")}, {_SECONDS.format("new_scheduled")},
    old_status, new_status, old_token::text, new_token::text, old_attempt, new_attempt, old_uncounted, new_uncounted,
    old_expirations, new_expirations, chain_index, holder, output
FROM chaos.change ORDER BY number"""
_EFFECTS: LiteralString = (
    f"SELECT job_id, attempt, token::text, tx::text AS tx, {_SECONDS.format('at')} FROM chaos.effect"
)
_JOBS: LiteralString = f"""
SELECT id, type, chain_id, chain_index, status, chain_status, attempt, uncounted, lease_expirations, open_blockers,
    {_SECONDS.format("created_at")}, {_SECONDS.format("scheduled_at")}, {_SECONDS.format("finished_at")},
    {_SECONDS.format("chain_closed_at")}, deduplication_key AS key, limit_key, continued_by, output::text, holder
FROM queuert.job"""
_BLOCKERS: LiteralString = "SELECT job_id, blocker_chain_id AS chain_id, closed FROM queuert.job_blocker"
_OURS: LiteralString = "datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
_OTHERS: LiteralString = f"{_OURS} AND application_name <> 'chaos'"
_STRANGER = "chaos"
_MIGRATORS = 4
_LATE = 30.0
"""The most seconds until the server has recovered."""
_GONE = 15.0
"""The most seconds until the server has noticed that clients are gone; with a longer wait it might end them by
itself."""


class OwnedPostgres:
    """An embedded server: durable, or as fast as possible while its commits survive its own crash."""

    name = "postgres"
    has_server = True
    broken_since: float | None = None

    def __init__(self, directory: Path, *, durable: bool) -> None:
        settings: dict[str, str | int] = {
            "synchronous_commit": "on",
            "track_commit_timestamp": "on",
            "max_connections": 300,
            "deadlock_timeout": "100ms",
            "restart_after_crash": "on",
        }
        self._server = EmbeddedPostgres(durable=durable, settings=settings)
        self._failed = 0

    @property
    def url(self) -> str:
        """The address of the server itself."""
        return self._server.dsn()

    def start(self) -> None:
        """Start the server, migrate (several at once, as deployments do), and create the trigger."""
        self._server.start()
        migrators = [threading.Thread(target=self._migrate) for _ in range(_MIGRATORS)]
        for migrator in migrators:
            migrator.start()
        for migrator in migrators:
            migrator.join()
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(_AUDIT)

    def _migrate(self) -> None:
        try:
            migrations.upgrade(self.url)
        except (QueuertError, psycopg.Error):
            self._failed += 1

    def close(self) -> None:
        """Stop the server, and remove its data."""
        self._server.close()

    def proxy(self) -> FaultProxy:
        """A proxy before the server."""
        return FaultProxy.before(self.url)

    def address_in(self, proxy: FaultProxy) -> str:
        """The address through a proxy."""
        return proxy.address_in(self.url)

    def open_jobs(self) -> int:
        """Return how many jobs have not ended, without those that no worker handles."""
        query: LiteralString = """SELECT count(*) FROM queuert.job
            WHERE status IN ('blocked', 'scheduled', 'ready', 'running') AND type <> 'chaos.nobody'"""
        return int(self._one(query))

    def leases_of(self, pid: int) -> list[tuple[str, int]]:
        """Return the jobs that the worker of this process holds."""
        query: LiteralString = "SELECT id, attempt FROM queuert.job WHERE status = 'running' AND holder LIKE %s"
        with self._stranger() as connection:
            return [(id, attempt) for id, attempt in connection.execute(query, [f"chaos-{pid}-%"])]

    def last_words(self) -> dict[str, Any]:
        """Return the transactions that are idle for longer than any lease."""
        query: LiteralString = f"""SELECT count(*) FROM pg_stat_activity WHERE {_OURS}
            AND state LIKE 'idle in transaction%' AND state_change < now() - interval '5 s'"""
        return {"idle transactions": int(self._one(query))}

    def sessions(self) -> int | None:
        """Return the number of backends of others."""
        query: LiteralString = f"SELECT count(*) FROM pg_stat_activity WHERE {_OTHERS}"
        return int(self._one(query))

    def stands_in(self, pid: int, what: str) -> bool:
        """Whether a session of the process is idle in a transaction; in a claim it has the lock of limited types."""
        locked: LiteralString = """EXISTS (SELECT FROM pg_locks
            WHERE pg_locks.pid = one.pid AND locktype = 'advisory' AND granted)"""
        query: LiteralString = """SELECT count(*) FROM pg_stat_activity AS one
            WHERE application_name = %s AND state = 'idle in transaction'"""
        return bool(self._one(f"{query} AND {locked}" if what == CLAIM else query, f"queuert {pid}"))

    def session_list(self) -> list[str]:
        """Describe each backend, and what it waits for."""
        query: LiteralString = f"""SELECT concat_ws(' | ', pid, application_name, state,
                age(clock_timestamp(), state_change), concat_ws('/', wait_event_type, wait_event),
                nullif(pg_blocking_pids(pid)::text, '{{}}'), left(regexp_replace(query, '\\s+', ' ', 'g'), 100))
            FROM pg_stat_activity WHERE {_OTHERS} ORDER BY pid"""
        with suppress(psycopg.Error), self._stranger() as connection:
            return [line for (line,) in connection.execute(query)]
        return []

    # --- faults -------------------------------------------------------------------------------------------------------

    def waits_for(self, pid: int) -> bool:
        """Return False: no process holds a lock that all others need."""
        return False

    def break_it(self, kind: str, measure: float) -> tuple[float | None, str]:
        """Break the server."""
        match kind:
            case "kill postgres":
                self._server.kill()
            case "crash postgres":
                self._end(signal.SIGQUIT)
            case "restart postgres":
                self._server.stop()
            case "kill backend":
                return self._kill_backend()
            case "lock rows" | "lock table":
                return None, self._lock(kind, 0.2 + 1.3 * measure)
            case _:
                return None, self._tell_backends(kind, measure)
        self._server.start()
        return time.time(), "serves again"

    def _end(self, number: signal.Signals) -> None:
        pid = self._server.pid
        os.kill(pid, number)
        wait_until(lambda: not self._server.running, self._server.timeout)
        self._server.kill()

    def _kill_backend(self) -> tuple[float | None, str]:
        # Without a row there is no backend: the server has just started again.
        query: LiteralString = f"SELECT (SELECT pid FROM pg_stat_activity WHERE {_OTHERS} ORDER BY random() LIMIT 1)"
        with suppress(psycopg.Error):
            pid = self._one(query)
            if pid is None:
                return None, "no backend to kill"
            os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.02)  # The postmaster informs the other backends when it has noticed it.
            if wait_until(self._answers, _LATE):
                return time.time(), "recovered"
        return None, "the server did not recover"

    def _answers(self) -> bool:
        try:
            return bool(self._one("SELECT true"))
        except psycopg.Error:
            return False

    def _lock(self, kind: str, seconds: float) -> str:
        with self._stranger() as connection, connection.transaction():
            connection.execute("SET LOCAL lock_timeout = '1s'")
            if kind == "lock table":
                connection.execute("LOCK TABLE queuert.job IN EXCLUSIVE MODE")
            else:
                connection.execute(
                    """SELECT FROM queuert.job WHERE status IN ('ready', 'running', 'blocked')
                       ORDER BY created_at, id LIMIT 50 FOR UPDATE SKIP LOCKED"""
                )
            time.sleep(min(seconds, 0.5) if kind == "lock table" else seconds)
        return f"for {seconds:.1f} s"

    def _tell_backends(self, kind: str, measure: float) -> str:
        query: LiteralString = f"SELECT {{}} FROM pg_stat_activity WHERE {_OTHERS} AND {{}}"
        with self._stranger() as connection:
            match kind:
                case "terminate backends":
                    query = query.format("pg_terminate_backend(pid)", "random() < %s")
                    found = connection.execute(query, [0.2 + 0.6 * measure])
                case "terminate listeners":
                    found = connection.execute(
                        query.format("pg_terminate_backend(pid)", "application_name = 'queuert notify'")
                    )
                case _:
                    found = connection.execute(query.format("pg_cancel_backend(pid)", "state = 'active'"))
            return f"{found.rowcount} backends"

    @contextmanager
    def _stranger(self) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self.url, autocommit=True, application_name=_STRANGER, connect_timeout=15) as connection:
            yield connection

    def _one(self, query: LiteralString, *values: Any) -> Any:
        with self._stranger() as connection:
            row = connection.execute(query, values or None).fetchone()
        assert row is not None
        return row[0]

    # --- the end ------------------------------------------------------------------------------------------------------

    def collect(self, history: History) -> None:
        """Read the recorded changes and the tables."""
        wait_until(lambda: self.sessions() == 0, _GONE)
        facts = {"connections left": self.sessions(), "migrations that failed": self._failed}
        history.add("facts", ({"name": name, "value": value} for name, value in facts.items()))
        with (
            psycopg.connect(self.url, autocommit=True) as connection,
            connection.cursor(row_factory=dict_row) as cursor,
        ):
            history.add("c", cursor.execute(_CHANGES))
            history.add("e", cursor.execute(_EFFECTS))
            history.add("s", cursor.execute(_JOBS))
            history.add("b", cursor.execute(_BLOCKERS))
            history.add("business", cursor.execute("SELECT id FROM chaos.business"))
