"""The servers of a run, a fresh database for each measurement, and what a server can tell of the work it did."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import redis
from psycopg.sql import SQL, Identifier

from queuert.embedded import EmbeddedPostgres, EmbeddedRedis

POSTGRES_SETTINGS: dict[str, str | int] = {
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
}
REDIS_OPTIONS: dict[str, str | int] = {"appendonly": "yes", "appendfsync": "everysec", "save": ""}
_TICKS = os.sysconf("SC_CLK_TCK")
_TIMEOUT = 10.0
_TABLES = """
select coalesce(sum(n_tup_upd), 0)::float8, coalesce(sum(n_tup_hot_upd), 0)::float8,
       coalesce(sum(n_dead_tup), 0)::float8
from pg_stat_user_tables
"""


class PostgresServer:
    """Databases on one server, copied from templates that are made once."""

    def __init__(self, dsn: str, pid: int | None = None) -> None:
        self._dsn = dsn
        self._pid = pid
        self._admin = psycopg.connect(dsn, autocommit=True)
        self._templates: dict[str, str] = {}
        self._prefix = f"benchmark_{secrets.token_hex(3)}"
        self._count = 0

    def template(self, name: str, fill: Callable[[str], object], source: str = "template0") -> str:
        """The database of this name, made at the first call: a copy of ``source``, filled by ``fill``."""
        if name not in self._templates:
            database = self._copy(source)
            try:
                fill(self._address(database))
            except BaseException:
                self._drop(database)
                raise
            self._settle(database)
            self._templates[name] = database
        return self._templates[name]

    @contextlib.contextmanager
    def copy(self, template: str) -> Iterator[str]:
        """A copy for the length of a ``with`` block: its connection string."""
        database = self._copy(template)
        try:
            yield self._address(database)
        finally:
            self._drop(database)

    @contextlib.contextmanager
    def itself(self, template: str) -> Iterator[str]:
        """A template as it stands, for measurements that hardly change it: its connection string."""
        yield self._address(template)
        self._wait_until_left(template)

    @contextlib.contextmanager
    def snapshot(self, dsn: str) -> Iterator[None]:
        """A transaction that looked at the database, open for the length of a ``with`` block.

        No version of a row that was replaced since can be thrown away before it ends.
        """
        with psycopg.connect(dsn) as connection:
            connection.execute("set transaction isolation level repeatable read")
            connection.execute("select count(*) from pg_class")
            yield
            connection.rollback()

    @contextlib.contextmanager
    def observed(self, dsn: str, jobs: int) -> Iterator[dict[str, float]]:
        """Fills the dictionary, at the end of the block, with what the server did in it, a job."""
        reported: dict[str, float] = {}
        before = self._counters(dsn)
        yield reported
        after = self._counters(dsn)
        reported.update({name: (after[name] - before[name]) / jobs for name in after})
        reported.update(self._tables(dsn, jobs))

    def version(self) -> str:
        """Its version."""
        return self._admin.info.parameter_status("server_version") or "unknown"

    def close(self) -> None:
        """Drop the templates and disconnect."""
        for database in self._templates.values():
            self._drop(database)
        self._admin.close()

    def _counters(self, dsn: str) -> dict[str, float]:
        """A session reports what it did when it ends: so it is waited for."""
        self._wait_until_left(_database(dsn))
        row = self._admin.execute(
            "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8, xact_commit::float8"
            " from pg_stat_database where datname = %s",
            [_database(dsn)],
        ).fetchone()
        assert row is not None
        counters = {"wal_bytes": row[0], "commits": row[1]}
        return counters if self._pid is None else {**counters, "server_cpu_us": _family_cpu(self._pid) * 1e6}

    def _tables(self, dsn: str, jobs: int) -> dict[str, float]:
        with psycopg.connect(dsn, autocommit=True) as connection:
            row = connection.execute(_TABLES).fetchone()
        assert row is not None
        updates, hot, dead = row
        return {"dead_rows": dead / jobs, **({"hot_share": hot / updates} if updates else {})}

    def _settle(self, database: str) -> None:
        """As a database is some minutes later: with statistics, and no session that holds up a copy."""
        with psycopg.connect(self._address(database), autocommit=True) as connection:
            connection.execute("vacuum (analyze)")
        self._wait_until_left(database)

    def _copy(self, template: str) -> str:
        self._count += 1
        database = f"{self._prefix}_{self._count}"
        # Pages that are written to the log by the copy need not be written to it whole by the measurement.
        names = Identifier(database), Identifier(template)
        self._admin.execute(SQL("create database {} template {} strategy = wal_log").format(*names))
        return database

    def _drop(self, database: str) -> None:
        self._wait_until_left(database)
        self._admin.execute(SQL("drop database {} with (force)").format(Identifier(database)))

    def _wait_until_left(self, database: str) -> None:
        deadline = time.monotonic() + _TIMEOUT
        while time.monotonic() < deadline:
            row = self._admin.execute(
                "select count(*) from pg_stat_activity where datname = %s and backend_type = 'client backend'",
                [database],
            ).fetchone()
            if row is not None and row[0] == 0:
                return
            time.sleep(0.005)

    def _address(self, database: str) -> str:
        return urlsplit(self._dsn)._replace(path=f"/{database}").geturl()


class RedisServer:
    """One server, emptied before each measurement."""

    def __init__(self, url: str, pid: int | None = None) -> None:
        self.url = url
        self._pid = pid
        self._admin = redis.Redis.from_url(url)

    @contextlib.contextmanager
    def emptied(self) -> Iterator[str]:
        """The address, with nothing in it before the block and after it."""
        self._admin.flushall()
        try:
            yield self.url
        finally:
            self._admin.flushall()

    @contextlib.contextmanager
    def observed(self, jobs: int) -> Iterator[dict[str, float]]:
        """Fills the dictionary, at the end of the block, with what the server did in it, a job."""
        reported: dict[str, float] = {}
        before = self._counters()
        yield reported
        after = self._counters()
        reported.update({name: (after[name] - before[name]) / jobs for name in after})

    def version(self) -> str:
        """Its name and version."""
        reported: Mapping[str, Any] = self._admin.info("server")
        if "valkey_version" in reported:
            return f"Valkey {reported['valkey_version']}"
        return f"Redis {reported['redis_version']}"

    def close(self) -> None:
        """Disconnect."""
        self._admin.close()

    def _counters(self) -> dict[str, float]:
        reported: Mapping[str, Any] = self._admin.info("all")
        counters = {
            "commands": float(reported["total_commands_processed"]),
            "input_bytes": float(reported["total_net_input_bytes"]),
        }
        return counters if self._pid is None else {**counters, "server_cpu_us": _family_cpu(self._pid) * 1e6}


@contextlib.contextmanager
def postgres() -> Iterator[PostgresServer]:
    """A Postgres of this run's own, which flushes every commit to the disk."""
    with EmbeddedPostgres(durable=True, settings=POSTGRES_SETTINGS) as server:
        databases = PostgresServer(server.dsn(), server.pid)
        try:
            yield databases
        finally:
            databases.close()


@contextlib.contextmanager
def valkey() -> Iterator[RedisServer]:
    """A Redis or Valkey of this run's own, with an append-only file that is flushed to the disk every second."""
    with (
        tempfile.TemporaryDirectory(prefix="queuert-benchmarks-") as folder,
        EmbeddedRedis(folder, options=REDIS_OPTIONS) as server,
    ):
        one = RedisServer(server.url(), server.pid)
        try:
            yield one
        finally:
            one.close()


def _database(dsn: str) -> str:
    return urlsplit(dsn).path.removeprefix("/")


def _family_cpu(pid: int) -> float:
    """Seconds of processor of a process and its children, the dead ones among them; 0 where there is no /proc."""
    return sum(ticks for _, ticks in _processes(pid)) / _TICKS


def _processes(pid: int) -> Iterator[tuple[int, int]]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name in brackets may hold anything: what follows the last bracket is numbers.
            fields = path.read_text().rpartition(")")[2].split()
            number, parent, times = int(path.parent.name), int(fields[1]), [int(one) for one in fields[11:15]]
            if number == pid:
                yield number, sum(times)
            elif parent == pid:
                yield number, sum(times[:2])
