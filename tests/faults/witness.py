"""Records every claim and every finish of a job inside the database, and checks them."""

from __future__ import annotations

from typing import Any, LiteralString

import psycopg

CHILD = "queuert child"
"""The application name of a worker that is a separate process."""

_SET_UP = """
create table effect (job_id text not null, attempt int not null, at timestamptz default clock_timestamp());
create table step (
    number bigint generated always as identity, job_id text not null, attempt int not null, name text not null,
    detail text, at timestamptz default clock_timestamp());
create table gate (name text not null);
create table history (
    number bigint generated always as identity, job_id text, at timestamptz default clock_timestamp(),
    old_status text, new_status text, old_token uuid, new_token uuid, old_attempt int, new_attempt int,
    old_end timestamptz, new_end timestamptz);
create function note_change() returns trigger language plpgsql as $$ begin
    insert into public.history (job_id, old_status, new_status, old_token, new_token, old_attempt, new_attempt,
                                old_end, new_end)
    values (old.id, old.status, new.status, old.lease_token, new.lease_token, old.attempt, new.attempt,
            old.lease_expires_at, new.lease_expires_at);
    return null;
end $$;
create trigger note_change after update on queuert.job for each row
    when (old.status <> new.status or old.lease_token is distinct from new.lease_token)
    execute function note_change();
"""

_NEVER: dict[str, LiteralString] = {
    "a live lease was claimed": "select * from history where new_status = 'running' and old_status = 'running'",
    "a lease was reaped before its end": (
        # The finish of an attempt keeps the token in the row, a release returns the attempt, a cancellation may happen.
        "select * from history where old_status = 'running' and new_token is null and new_attempt = old_attempt"
        " and new_status <> 'cancelled' and old_end > at"
    ),
    "a job changed after its end": (
        "select * from history where old_status in ('continued', 'completed', 'failed', 'cancelled')"
    ),
    "an attempt was skipped or counted twice": (
        "select * from history where new_status = 'running' and new_attempt <> old_attempt + 1"
    ),
    "a job was written by another than its holder": (
        "select * from history where new_status in ('completed', 'continued') and old_token <> new_token"
    ),
    "an effect stands twice": "select job_id from effect group by job_id having count(*) > 1",
    "an effect stands without a completion": (
        "select effect.* from effect join queuert.job on id = job_id"
        " where status <> 'completed' or job.attempt <> effect.attempt"
    ),
    "a completion stands without its effect": (
        "select id from queuert.job where status = 'completed'"
        " and (type = 'quick' or type in ('patient', 'threaded') and (input ->> 'completes')::bool)"
        " and id not in (select job_id from effect)"
    ),
}


class Witness:
    """Keeps the tables of records and the history of all jobs of one database."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.execute(_SET_UP)

    def connect(self) -> None:
        """Connect again, because the server was restarted."""
        self._connection.close()
        self._connection = psycopg.connect(self._dsn, autocommit=True)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def rows(self, query: LiteralString, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        cursor = self._connection.execute(query, values or None)
        return cursor.fetchall() if cursor.description else []

    def one(self, query: LiteralString, *values: Any) -> Any:
        """Return the only value of a query."""
        return self.rows(query, *values)[0][0]

    def open(self, gate: str) -> None:
        """Let handlers pass a gate, now and later."""
        self.rows("insert into gate values (%s)", gate)

    def has_step(self, job_id: str, name: str, attempt: int) -> bool:
        """Whether an attempt has reached this step."""
        query: LiteralString = "select count(*) from step where (job_id, name, attempt) = (%s, %s, %s)"
        return bool(self.one(query, job_id, name, attempt))

    def detail(self, job_id: str, name: str, attempt: int) -> str | None:
        """Return the record that an attempt wrote at this step; it must exist."""
        query: LiteralString = "select detail from step where (job_id, name, attempt) = (%s, %s, %s)"
        found: str | None = self.one(query, job_id, name, attempt)
        return found

    def effects(self, job_id: str) -> list[int]:
        """Return the attempts whose effects are committed."""
        return [row[0] for row in self.rows("select attempt from effect where job_id = %s order by at", job_id)]

    def job(self, job_id: str) -> tuple[str, int, int, int]:
        """Return status, attempts, expired leases and uncounted attempts."""
        [row] = self.rows("select status, attempt, lease_expirations, uncounted from queuert.job where id = %s", job_id)
        return (row[0], row[1], row[2], row[3])

    def expire_leases(self) -> None:
        """Let all leases expire now, including their extensions beside locked rows."""
        self.rows("update queuert.job set lease_expires_at = clock_timestamp() where status = 'running'")
        self.rows("update queuert.lease_extension set expires_at = clock_timestamp()")

    def sessions(self) -> int:
        """Return how many sessions of separate worker processes the server still has."""
        query: LiteralString = (
            "select count(*) from pg_stat_activity where application_name = %s and datname = current_database()"
        )
        count: int = self.one(query, CHILD)
        return count

    def leases(self) -> int:
        """Return how many jobs are leased."""
        count: int = self.one("select count(*) from queuert.job where lease_expires_at is not null")
        return count

    def check(self) -> None:
        """Check that no invariant was violated, for any job."""
        found = {what: rows for what, query in _NEVER.items() if (rows := self.rows(query))}
        assert not found, found
