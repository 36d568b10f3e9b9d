"""Kills workers that run jobs of ten steps and two waits for events, beside jobs of keys with an order.

``python -m tests.faults.killed_steps URL KILLS [SEED]`` on an empty database: a Postgres that is migrated, or a file of
SQLite. It prints what happened as one line of JSON, and exits with 1 if a step or an event was lost or counted twice,
or if chains of a key did not run one after the other, in the order of their starts.

Each round is a fork of this process with a worker, which starts some chains and runs all that are open. It is killed
after a random part of the time that the first round took, so at any instruction: in Python, in the driver, while the
store is at work. The leases that it leaves are ended at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import select
import signal
import sqlite3
import sys
import time
from contextlib import suppress
from typing import Any

import psycopg

from queuert import (
    AsyncChain,
    AsyncClient,
    Attempt,
    ChainStatus,
    InProcessWorker,
    JobType,
    JobTypes,
    Outcome,
    Processors,
    RetryPolicy,
)
from queuert.errors import ChainAlreadyClosedError
from queuert.limits import Limits
from queuert.state.adapter import StateAdapter
from queuert.state.postgres import PostgresState
from queuert.state.sqlite import SQLiteState
from queuert.worker import GuardedTransaction

STEPS = 10
CHAINS = 4
"""Chains that a round starts, unless as many are open."""
ROUND_TIMEOUT = 120.0

in_loop = JobType("in_loop", input=int, output=list[int])
in_thread = JobType("in_thread", input=int, output=list[int])
in_order = JobType("in_order", input=tuple[str, int], output=int)
JOB_TYPES = JobTypes(in_loop, in_thread, in_order)
KEYS = ("north", "south")
EVENTS = (1, 2)
"""The payloads of the events that each chain of steps waits for, in this order."""
TIRELESS = RetryPolicy(max_attempts=1_000_000, initial_delay=0.0, jitter=0.0, max_crashes=1_000_000)

processors = Processors(JOB_TYPES, retry=TIRELESS)


async def write(tx: GuardedTransaction, attempt: int, job_id: str, step: int) -> int:
    """Insert a row for a step, on either kind of connection."""
    written = tx.connection.execute(_insert(tx), (job_id, step, attempt))
    if not isinstance(tx.connection, sqlite3.Connection):
        await written
    return step


def write_sync(tx: GuardedTransaction, attempt: int, job_id: str, step: int) -> int:
    """The same in a thread."""
    tx.connection.execute(_insert(tx), (job_id, step, attempt))
    return step


def _insert(tx: GuardedTransaction) -> str:
    return _marked(tx, "insert into step_effect (job_id, step, attempt) values (?, ?, ?)")


def _marked(tx: Any, statement: str) -> str:
    return statement if isinstance(tx.connection, sqlite3.Connection) else statement.replace("?", "%s")


@processors.handles(in_loop)
async def run_in_loop(attempt: Attempt[int, list[int]]) -> Outcome[list[int]]:
    """Ten step transactions, and a step without one in the middle."""
    done: list[int] = []
    events: list[int] = []
    for step in range(STEPS):
        done.append(await attempt.step_transaction("write", write, attempt.number, attempt.job_id, step, key=step))
        if step == STEPS // 2:
            await attempt.step("number", lambda: attempt.number, returns=int)
            events = [await attempt.wait_for_event("go", int, 3600.0, key=number) for number in EVENTS]
    return done + events


@processors.handles(in_thread)
def run_in_thread(attempt: Attempt[int, list[int]]) -> Outcome[list[int]]:
    """The same in a thread."""
    done: list[int] = []
    events: list[int] = []
    for step in range(STEPS):
        done.append(attempt.step_transaction_sync("write", write_sync, attempt.number, attempt.job_id, step, key=step))
        if step == STEPS // 2:
            attempt.step_sync("number", lambda: attempt.number, returns=int)
            events = [attempt.wait_for_event_sync("go", int, 3600.0, key=number) for number in EVENTS]
    return done + events


@processors.handles(in_order, limits=Limits(ordered=True))
async def run_in_order(attempt: Attempt[tuple[str, int], int]) -> Outcome[int]:
    """Write a row as the attempt begins, and one that is committed with the finish."""
    key, number = attempt.input
    await attempt.step_transaction("began", write_order, key, number, "began")
    async with attempt.complete() as tx:
        await write_order(tx, key, number, "ended")
        return tx.finish(number)


async def write_order(tx: Any, key: str, number: int, what: str) -> None:
    """Insert a row that says when a chain of a key began or ended."""
    written = tx.connection.execute(
        _marked(tx, "insert into order_effect (key, number, what) values (?, ?, ?)"), (key, number, what)
    )
    if not isinstance(tx.connection, sqlite3.Connection):
        await written


_SESSIONS = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"


class Database:
    """The tables of the queue and of the handlers, without the library."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.is_postgres = url.startswith("postgres") or "=" in url
        self.prefix = "queuert." if self.is_postgres else "queuert_"

    def state(self) -> StateAdapter:
        """Return a state adapter of its own."""
        return PostgresState(self._url) if self.is_postgres else SQLiteState(self._url)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement on a connection of its own, so that a fork inherits none."""
        if self.is_postgres:
            with psycopg.connect(self._url, autocommit=True) as connection:
                cursor = connection.execute(statement.encode())
                return cursor.fetchall() if cursor.description else []
        connected = sqlite3.connect(self._url, isolation_level=None)
        try:
            return connected.execute(statement).fetchall()
        finally:
            connected.close()

    def end_leases(self) -> None:
        """Let the leases of killed workers expire now, once their last statements have ended."""
        while self.is_postgres and self.run(_SESSIONS) != [(0,)]:
            select.select([], [], [], 0.01)
        if self.is_postgres:
            self.run("delete from queuert.lease_extension")
        now = "clock_timestamp()" if self.is_postgres else "0"
        self.run(f"update {self.prefix}job set lease_expires_at = {now} where status = 'running'")

    def faults(self) -> list[str]:
        """Say which steps were lost or committed twice."""
        job, step = f"{self.prefix}job", f"{self.prefix}job_step"
        every = STEPS + 1 + len(EVENTS)
        with_steps = f"select id from {job} where type <> 'in_order'"
        queries = {
            "a job is not completed": f"select id from {job} where status <> 'completed'",
            "a row was committed twice": "select job_id, step from step_effect group by 1, 2 having count(*) > 1",
            "a row is lost": (f"{with_steps} and (select count(*) from step_effect where job_id = id) <> {STEPS}"),
            "a step is lost": f"{with_steps} and (select count(*) from {step} where job_id = id) <> {every}",
            "a row and its step are of different attempts": (
                f"select r.job_id, r.step from step_effect r join {step} s on s.job_id = r.job_id"
                " and s.name = 'write[' || r.step || ']' where s.attempt <> r.attempt"
            ),
            "a row has no step": (
                f"select job_id, step from step_effect r where not exists (select 1 from {step} s"
                " where s.job_id = r.job_id and s.name = 'write[' || r.step || ']')"
            ),
        }
        found = [f"{fault}: {found[:3]}" for fault, query in queries.items() if (found := self.run(query))]
        for key in KEYS:
            rows = self.run(f"select number, what from order_effect where key = '{key}' order by place")
            numbers = sorted({number for number, _ in rows})
            if rows != [(number, what) for number in numbers for what in ("began", "ended")]:
                found.append(f"the chains of {key} did not run one after the other: {rows}")
        return found


async def run_worker(database: Database) -> None:
    """Start some chains, and run all that are open."""
    async with AsyncClient(database.state(), JOB_TYPES) as client:
        backlog = await client.list_chains(statuses=[ChainStatus.OPEN], limit=CHAINS)
        for number in range(CHAINS if len(backlog) < CHAINS else 0):
            await client.start_chain(in_loop if number % 2 else in_thread, number)
            for key in KEYS:
                await client.start_chain(in_order, (key, time.time_ns()), limit_key=key)
        async with InProcessWorker(client, processors, concurrency=3):
            while page := await client.list_chains(statuses=[ChainStatus.OPEN], limit=1000):
                for chain in page:
                    await end(client, chain)


async def end(client: AsyncClient, chain: AsyncChain[Any]) -> None:
    """Send a chain its events, again if an earlier round has sent them, and wait for its end."""
    if chain.type == in_order.name:
        await chain.result(ROUND_TIMEOUT)
        return
    with suppress(ChainAlreadyClosedError):
        for number in EVENTS:
            await client.send_event(chain, "go", number, id=str(number))
    assert await chain.result(ROUND_TIMEOUT) == [*range(STEPS), *EVENTS]


def run_round(database: Database, seconds: float) -> bool:
    """Run a worker in a fork and kill it after so many seconds. Return whether it still ran."""
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(run_worker(database))
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    watched = os.pidfd_open(child)
    try:
        select.select([watched], [], [], seconds)
        signal.pidfd_send_signal(watched, signal.SIGKILL)
    finally:
        os.close(watched)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status not in (0, -signal.SIGKILL):
        raise RuntimeError(f"the worker ended with {status}")
    return status != 0


def main(url: str, kills: int, seed: int) -> int:
    """Kill workers so many times, let the last one end, and check."""
    logging.disable(logging.WARNING)  # Every kill is reported as expired leases.
    database, chance = Database(url), random.Random(seed)
    database.run("create table step_effect (job_id text not null, step integer not null, attempt integer not null)")
    place = "bigserial primary key" if database.is_postgres else "integer primary key autoincrement"
    database.run(f"create table order_effect (place {place}, key text, number bigint, what text)")
    begun = time.monotonic()
    assert not run_round(database, ROUND_TIMEOUT), "the first round did not end"
    longest = time.monotonic() - begun
    killed = 0
    while killed < kills:
        killed += run_round(database, chance.uniform(0.0, longest))
        database.end_leases()
    assert not run_round(database, 10 * ROUND_TIMEOUT), "the last round did not end"
    faults = database.faults()
    [(jobs,)] = database.run(f"select count(*) from {database.prefix}job")
    [(expired,)] = database.run(f"select sum(lease_expirations) from {database.prefix}job")
    [(rows,)] = database.run("select count(*) from step_effect")
    [(late,)] = database.run(f"select count(*) from {database.prefix}job_step where attempt > 1")
    seconds = round(time.monotonic() - begun, 1)
    summary = {"kills": killed, "jobs": jobs, "rows": rows, "attempts_killed": int(expired), "late_steps": late}
    print(json.dumps({**summary, "seconds": seconds, "seed": seed, "faults": faults}))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else random.randrange(1 << 31)))
