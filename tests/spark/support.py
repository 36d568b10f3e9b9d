"""What tests of writes look at, and the child processes that they kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from queuert import JobType, JobTypes
from tests.spark.conftest import ROOT, spark_environment

TIMEOUT = 600.0
"""Seconds. A driver of its own starts in five, and in minutes where others keep the machine busy."""

resize: JobType[dict[str, int], None] = JobType("resize", input=dict[str, int], output=None)
job_types = JobTypes(resize)


def query(dsn: str, text: str, *values: Any) -> list[Any]:
    """The rows of a query; single columns without their tuple."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        rows = connection.execute(text.encode(), values or None).fetchall()
    return [row[0] if len(row) == 1 else row for row in rows]


def numbers(dsn: str) -> list[int]:
    """The field ``n`` of all jobs' inputs, in order: what is there twice shows."""
    return query(dsn, "SELECT (input->>'n')::int AS n FROM queuert.job ORDER BY n")


def stages(dsn: str) -> list[str]:
    """The staging tables of batch writes that exist."""
    return query(dsn, "SELECT relname FROM pg_class WHERE relname LIKE 'bulk\\_stage\\_%%' AND relkind = 'r'")


@contextmanager
def locked(dsn: str, table: str) -> Iterator[None]:
    """Hold a table so that nobody can write to it."""
    with psycopg.connect(dsn) as connection:
        connection.execute(f"LOCK TABLE queuert.{table} IN EXCLUSIVE MODE".encode())
        yield


def wait_for_query(dsn: str, text: str) -> None:
    """Wait until a query returns rows."""
    deadline = time.monotonic() + TIMEOUT
    while not query(dsn, text):
        assert time.monotonic() < deadline, f"nothing came of {text}"
        time.sleep(0.02)


def wait_for_staged_rows(dsn: str) -> None:
    """Wait until a task of a batch write has committed some of its rows to staging."""
    [stage] = stages(dsn)
    wait_for_query(dsn, f'SELECT 1 FROM queuert."{stage}" LIMIT 1')


def wait_for_commit_to_block(dsn: str) -> None:
    """Wait until a driver's commit waits for a lock of the test. Tasks that load the same staging table wait for each
    other now and then."""
    wait_for_query(
        dsn,
        "SELECT waiting.pid FROM pg_stat_activity AS waiting JOIN pg_stat_activity AS holder"
        " ON holder.pid = ANY (pg_blocking_pids(waiting.pid)) AND holder.application_name NOT LIKE 'queuert %%'"
        " WHERE waiting.application_name LIKE 'queuert %%' AND waiting.datname = current_database()",
    )


def wait_for_no_clients(dsn: str) -> None:
    """Wait until the server has noticed that a killed driver and its tasks are gone."""
    deadline = time.monotonic() + TIMEOUT
    requested = (
        "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'queuert %%' AND datname = current_database()"
    )
    while query(dsn, requested):
        assert time.monotonic() < deadline, "connections of the killed driver are still there"
        time.sleep(0.02)


@contextmanager
def module(name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A child process with a Spark driver of its own, that runs a module; killed at the end."""
    child = subprocess.Popen(
        [sys.executable, "-m", name, *arguments],
        cwd=ROOT, env={**os.environ, **spark_environment()}, start_new_session=True, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield child
    finally:
        kill(child)


def kill(child: subprocess.Popen[str]) -> None:
    """Kill a driver with all that belongs to it: its JVM, its executors and their Python workers."""
    pids = _descendants(child.pid)
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    child.wait()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            stream.close()


def _descendants(root: int) -> list[int]:
    """The processes below one: Python daemons of executors are in groups of their own."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found, left = [], [root]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found
