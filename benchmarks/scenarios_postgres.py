"""The scenarios on Postgres, and who takes part in each, in its best documented configuration."""

from __future__ import annotations

from benchmarks.model import Entry, Scenario, Store
from benchmarks.roster import AWA, BARE, CHANCY, DBOS, OBAN, PGQUEUER, PROCRASTINATE, QUEUERT

_OURS = "sync client"
_POLLING = {"polling": 0.01, "prepare": "polling"}
_EAGER = {"concurrency": 10, "eager": True, "uvloop": True}
_ONE_BY_ONE = "one call after the other, one connection"

START_SINGLE = Scenario(
    "start-single",
    "Start one job at a time",
    Store.POSTGRES,
    "start_single",
    (
        Entry(QUEUERT, "Queuert", f"{_OURS}, {_ONE_BY_ONE}"),
        Entry(BARE, "bare insert", "psycopg, prepared"),
        Entry(PROCRASTINATE, "procrastinate", f"defer, sync psycopg connector, {_ONE_BY_ONE}"),
        Entry(PGQUEUER, "pgqueuer", f"enqueue, asyncpg, uvloop, {_ONE_BY_ONE}"),
        Entry(CHANCY, "chancy", f"push, async, uvloop, {_ONE_BY_ONE}"),
        Entry(OBAN, "oban", f"enqueue, async, uvloop, {_ONE_BY_ONE}"),
        Entry(AWA, "awa", f"insert, async, {_ONE_BY_ONE}"),
        Entry(DBOS, "dbos", f"client.enqueue, {_ONE_BY_ONE}"),
    ),
    share=0.1,
)

START_BATCHES = Scenario(
    "start-batches",
    "Start 1,000 jobs a call, ids back",
    Store.POSTGRES,
    "start_batches",
    (
        Entry(QUEUERT, "Queuert", "start_chains of 1,000"),
        Entry(BARE, "bare insert", "INSERT ... SELECT unnest(arrays) of 1,000 RETURNING id"),
        Entry(PROCRASTINATE, "procrastinate", "batch_defer of 1,000", share=0.5),
        Entry(PGQUEUER, "pgqueuer", "enqueue of 1,000, asyncpg, uvloop"),
        Entry(CHANCY, "chancy", "push_many of 1,000", share=0.3),
        Entry(OBAN, "oban", "enqueue_many of 1,000", share=0.3),
        Entry(AWA, "awa", "insert_many_copy of 1,000", share=0.3),
        Entry(DBOS, "dbos", "client.enqueue in a loop: there is no bulk start", share=0.05),
    ),
)

START_IN_TRANSACTION = Scenario(
    "start-in-transaction",
    "A row of the user's and a job, in the user's transaction",
    Store.POSTGRES,
    "start_in_transaction",
    (
        Entry(QUEUERT, "Queuert", "start_chain(connection=...)"),
        Entry(BARE, "bare inserts", "psycopg, prepared"),
        Entry(PROCRASTINATE, "procrastinate", "task.configure(connection=...).defer"),
        Entry(PGQUEUER, "pgqueuer", "Queries on the transaction's asyncpg connection, uvloop"),
        Entry(CHANCY, "chancy", "push_many_ex on the transaction's cursor, uvloop"),
        Entry(OBAN, "oban", "enqueue(conn=...), uvloop"),
        Entry(AWA, "awa", "tx.execute and tx.insert of its own transaction"),
    ),
    share=0.1,
)

DRAIN_DEFAULT = Scenario(
    "drain-default",
    "Drain no-op jobs, one worker process, the default configuration of each",
    Store.POSTGRES,
    "drain",
    (
        Entry(QUEUERT, "Queuert, default", "concurrency 1"),
        Entry(PROCRASTINATE, "procrastinate, default", "concurrency 1", share=0.04),
        Entry(PGQUEUER, "pgqueuer, default", "asyncpg, batch 10", {"batch": 10}),
        Entry(OBAN, "oban, default", "queue limit 10", {"limit": 10}, share=0.3),
        Entry(AWA, "awa, default", "max_workers 50", share=0.3),
        Entry(DBOS, "dbos, default", "a queue without limits, polled each second", share=0.2),
    ),
    loaded="load",
    note="Every job has a stored result where the system stores results. Slow systems are given fewer jobs. "
    "chancy is left out: by default it polls each five seconds, for as many jobs as there are processors.",
)

DRAIN_BEST = Scenario(
    "drain-best",
    "Drain no-op jobs, one worker process, the best configuration of each",
    Store.POSTGRES,
    "drain",
    (
        Entry(QUEUERT, "Queuert, concurrency 100", "concurrency 100", {"concurrency": 100}, 2.0),
        Entry(QUEUERT, "Queuert, concurrency 10", "concurrency 10", {"concurrency": 10}),
        Entry(QUEUERT, "Queuert, concurrency 1", "concurrency 1", {"concurrency": 1}),
        Entry(BARE, "bare fused, batch 100", "complete and claim in one statement", {"batch": 100}, 2.0),
        Entry(BARE, "bare fused, batch 500, 2 connections", "the same", {"batch": 500, "lanes": 2}, 2.0),
        Entry(
            BARE,
            "bare, a commit for each, 8 connections",
            "claims ahead in batches, each completion a commit",
            {"way": "each", "lanes": 8},
            0.3,
        ),
        Entry(BARE, "bare fused, one at a time", "the same, batch 1", {"batch": 1}, 0.3),
        Entry(PROCRASTINATE, "procrastinate, concurrency 20", "concurrency 20", {"concurrency": 20}, 0.04),
        Entry(PGQUEUER, "pgqueuer, batch 500", "asyncpg, batch 500, uvloop", {"batch": 500, "uvloop": True}, 2.0),
        Entry(
            CHANCY,
            "chancy, concurrency 1,000",
            "AsyncExecutor, concurrency 1,000, eager polling, uvloop",
            {"concurrency": 1000, "eager": True, "uvloop": True},
            share=2.0,
        ),
        Entry(OBAN, "oban, limit 1,000", "queue limit 1,000, uvloop", {"limit": 1000, "uvloop": True}, 0.5),
        Entry(AWA, "awa, 256 workers", "max_workers 256", {"workers": 256}, 0.3),
        Entry(DBOS, "dbos, polling 10 ms", "a queue polled each 10 ms", _POLLING, 0.2),
    ),
    loaded="load",
    note="The bare statement keeps a row a job, a lease, a fence and an output, in a table made for nothing else.",
)

DRAIN_WRITES = Scenario(
    "drain-writes",
    "A row of the user's and the completion in one transaction",
    Store.POSTGRES,
    "drain_writes",
    (
        Entry(QUEUERT, "Queuert, concurrency 10", "async with attempt.complete()", {"concurrency": 10}, 0.5),
        Entry(BARE, "bare pipeline, 8 connections", "claims ahead, two round trips a job", {"lanes": 8}),
    ),
    loaded="load_writes",
    share=0.2,
)

DRAIN_CHAINS = Scenario(
    "drain-chains",
    "Chains of five jobs",
    Store.POSTGRES,
    "drain_chains",
    (Entry(QUEUERT, "Queuert, concurrency 100", "concurrency 100", {"concurrency": 100}),),
    loaded="load_chains",
    note="Jobs a second, each chain counted as its five jobs.",
)

DRAIN_JOIN = Scenario(
    "drain-join",
    "Fan out, and a job that waits for all",
    Store.POSTGRES,
    "drain_join",
    (Entry(QUEUERT, "Queuert, concurrency 100", "concurrency 100", {"concurrency": 100}),),
    loaded="load_join",
    share=0.5,
    note="One job has all the others as its blockers, and reads all their outputs.",
)

LATENCY = Scenario(
    "latency-idle",
    "From a start to its handler, the worker idle",
    Store.POSTGRES,
    "wait_for_jobs",
    (
        Entry(QUEUERT, "Queuert", "default"),
        Entry(BARE, "bare", "LISTEN, claim, read; NOTIFY in the transaction of the insert"),
        Entry(PROCRASTINATE, "procrastinate", "default: LISTEN"),
        Entry(PGQUEUER, "pgqueuer", "asyncpg, uvloop, LISTEN", {"uvloop": True, "batch": 10}),
        Entry(CHANCY, "chancy", "notifications, eager polling, uvloop", _EAGER),
        Entry(OBAN, "oban", "notifications, uvloop", {"limit": 10, "uvloop": True}),
        Entry(AWA, "awa", "default"),
        Entry(DBOS, "dbos", "a queue polled each 10 ms", _POLLING),
    ),
    metric="p50_ms",
    unit="ms, p50",
    more_is_better=False,
    share=0.01,
    paced=True,
    note="A second process starts one job each 20 ms, while the worker waits; the clock runs from before the start.",
)

POSTGRES = (
    START_SINGLE,
    START_BATCHES,
    START_IN_TRANSACTION,
    DRAIN_DEFAULT,
    DRAIN_BEST,
    DRAIN_WRITES,
    DRAIN_CHAINS,
    DRAIN_JOIN,
    LATENCY,
)
