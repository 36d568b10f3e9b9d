"""A database as it is after it was dumped, and restored into another cluster whose transactions count anew."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import Any

import psycopg

from queuert.embedded.binaries import find_postgres
from queuert.state import Store
from queuert.state.types import Finish, FinishKind, NewJob
from tests.support.store_harness import StoreHarness, opened

AHEAD = 500_000_000
"""How many transactions more the old cluster has had."""


@dataclass
class Moved:
    """The database in its new cluster."""

    dsn: str
    store: Store
    sql: psycopg.Connection[Any]
    old_cursor: str | None = None

    def close(self) -> None:
        """Let go of the connections."""
        self.store.close()
        self.sql.close()


def work(harness: StoreHarness, *names: str) -> None:
    """Start chains of one job and complete them, each in transactions of its own."""
    for name in names:
        harness.store.start_jobs([NewJob(name, "work", "1", id_chosen=True)])
        (job,) = harness.claim()
        harness.store.finish([Finish(job, FinishKind.COMPLETE, output="1")])


def advance(sql: psycopg.Connection[Any]) -> None:
    """Give the database the numbers of a cluster that has had many transactions."""
    for table, column in (("job_event", "tx"), ("job", "completed_tx"), ("event_log", "dropped_tx")):
        sql.execute(
            f"update queuert.{table} set {column} = ({column}::text::bigint + {AHEAD})::text::xid8".encode(),
        )


def dump_and_restore(source: str, target: str) -> None:
    """Move a database by the programs that everybody moves one with."""
    bindir = find_postgres().bindir
    dump = subprocess.run(
        [str(bindir / "pg_dump"), "--no-owner", "-d", source], capture_output=True, text=True, check=False
    )
    assert dump.returncode == 0, dump.stderr
    restore = subprocess.run(
        [str(bindir / "psql"), "-q", "-X", "-v", "ON_ERROR_STOP=1", "-d", target],
        input=dump.stdout, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert restore.returncode == 0, restore.stderr


def moved(harness: StoreHarness, target: str) -> Moved:
    """Move the database of a harness."""
    dump_and_restore(harness.dsn, target)
    return Moved(target, opened(target), psycopg.connect(target, autocommit=True))
