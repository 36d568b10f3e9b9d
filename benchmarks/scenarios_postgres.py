"""The scenarios on Postgres, and who takes part in each, in its best documented configuration."""

from __future__ import annotations

from benchmarks.model import Entry, Scenario, Store
from benchmarks.roster import AWA, BARE, CHANCY, DBOS, OBAN, PGBENCH, PGQUEUER, PROCRASTINATE, QUEUERT

_OURS = "sync client"
_POLLING = {"polling": 0.01, "prepare": "polling"}
_EAGER = {"concurrency": 10, "eager": True, "uvloop": True}
_ONE_BY_ONE = "one call after the other, one connection"
_OWN = {"table": "own", "prepare": "own"}
_NO_LOG = {"prepare": "no log"}
_FUSED = "complete and claim in one statement"
_LARGE = {"batch_size": 10_000}
_HUNDRED = {"concurrency": 100}

START_SINGLE = Scenario(
    "start-single",
    "Start one job at a time",
    Store.POSTGRES,
    "start_single",
    (
        Entry(QUEUERT, "Queuert", f"{_OURS}, {_ONE_BY_ONE}"),
        Entry(QUEUERT, "Queuert, no event log", "the same, its log switched off", _NO_LOG),
        Entry(BARE, "bare insert", "psycopg, prepared"),
        Entry(BARE, "bare insert, our table", "the same into our table, with its indexes", _OWN),
        Entry(PGBENCH, "pgbench insert", "the same by the server's own tool"),
        Entry(PROCRASTINATE, "procrastinate", f"defer, sync psycopg connector, {_ONE_BY_ONE}"),
        Entry(PGQUEUER, "pgqueuer", f"enqueue, asyncpg, uvloop, {_ONE_BY_ONE}"),
        Entry(CHANCY, "chancy", f"push, async, uvloop, {_ONE_BY_ONE}"),
        Entry(OBAN, "oban", f"enqueue, async, uvloop, {_ONE_BY_ONE}"),
        Entry(AWA, "awa", f"insert, async, {_ONE_BY_ONE}"),
        Entry(DBOS, "dbos", f"client.enqueue, {_ONE_BY_ONE}"),
    ),
    share=0.3,
)

START_BATCHES = Scenario(
    "start-batches",
    "Start 1,000 jobs a call, ids back",
    Store.POSTGRES,
    "start_batches",
    (
        Entry(QUEUERT, "Queuert", "start_chains of 1,000"),
        Entry(QUEUERT, "Queuert, no event log", "the same, its log switched off", _NO_LOG),
        Entry(BARE, "bare insert", "INSERT ... SELECT unnest(arrays) of 1,000 RETURNING id"),
        Entry(BARE, "bare insert, our table", "the same into our table, with its indexes", _OWN),
        Entry(PROCRASTINATE, "procrastinate", "batch_defer of 1,000", share=0.5),
        Entry(PGQUEUER, "pgqueuer", "enqueue of 1,000, asyncpg, uvloop"),
        Entry(CHANCY, "chancy", "push_many of 1,000", share=0.3),
        Entry(OBAN, "oban", "enqueue_many of 1,000", share=0.3),
        Entry(AWA, "awa", "insert_many_copy of 1,000", share=0.3),
        Entry(DBOS, "dbos", "client.enqueue in a loop: there is no bulk start", share=0.02),
    ),
    share=3.0,
)

START_COPY = Scenario(
    "start-copy",
    "Start very many jobs, the quickest way of each",
    Store.POSTGRES,
    "start_copy",
    (
        Entry(QUEUERT, "Queuert", "start_chains of 10,000"),
        Entry(BARE, "bare COPY", "COPY of all, a row a job"),
        Entry(BARE, "bare COPY, our table", "the same into our table, with its indexes", _OWN),
        Entry(PROCRASTINATE, "procrastinate", "batch_defer of 10,000", _LARGE),
        Entry(PGQUEUER, "pgqueuer", "enqueue of 10,000, asyncpg, uvloop", _LARGE),
        Entry(CHANCY, "chancy", "push_many of 10,000", _LARGE, 0.5),
        Entry(OBAN, "oban", "enqueue_many of 10,000", _LARGE, 0.5),
        Entry(AWA, "awa", "insert_many_copy of 10,000", _LARGE, 0.5),
    ),
    share=2.0,
    note="COPY gives no ids back; those who start chains know theirs.",
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
        Entry(QUEUERT, "Queuert, default", "concurrency 1", share=3.0),
        Entry(PROCRASTINATE, "procrastinate, default", "concurrency 1", share=0.04),
        Entry(PGQUEUER, "pgqueuer, default", "asyncpg, batch 10", {"batch": 10}, 2.0),
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
        Entry(QUEUERT, "Queuert, concurrency 100", "concurrency 100", {"concurrency": 100}, 5.0),
        Entry(QUEUERT, "Queuert, 100, no event log", "its log switched off", {**_NO_LOG, "concurrency": 100}, 5.0),
        Entry(QUEUERT, "Queuert, concurrency 10", "concurrency 10", {"concurrency": 10}),
        Entry(QUEUERT, "Queuert, concurrency 1", "concurrency 1", {"concurrency": 1}),
        Entry(BARE, "bare fused, batch 100", _FUSED, {"batch": 100}, 5.0),
        Entry(BARE, "bare fused, batch 500, 2 connections", "the same", {"batch": 500, "lanes": 2}, 5.0),
        Entry(
            BARE, "our table, bare fused, batch 100", f"{_FUSED}, our table and indexes", {**_OWN, "batch": 100}, 5.0
        ),
        Entry(
            BARE,
            "our table, bare fused, 500, 2 connections",
            "the same",
            {**_OWN, "batch": 500, "lanes": 2},
            5.0,
        ),
        Entry(PGBENCH, "pgbench fused, batch 100", "the statement of the small table, no Python", {"batch": 100}, 5.0),
        Entry(
            BARE,
            "bare, a commit for each, 8 connections",
            "claims ahead in batches, each completion a commit",
            {"way": "each", "lanes": 8},
            0.3,
        ),
        Entry(BARE, "bare fused, one at a time", "the same, batch 1", {"batch": 1}, 0.3),
        Entry(PROCRASTINATE, "procrastinate, concurrency 20", "concurrency 20", {"concurrency": 20}, 0.04),
        Entry(PGQUEUER, "pgqueuer, batch 500", "asyncpg, batch 500, uvloop", {"batch": 500, "uvloop": True}, 5.0),
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
    note="The bare statement keeps a row a job, a lease, a fence and an output, in a table made for nothing else. The "
    "same on our table shows what our columns and indexes cost, and ours beside it what our code costs. Quick systems "
    "are given more jobs, so that a worker's start is no part of what a job costs.",
)

DRAIN_FOUR = Scenario(
    "drain-four",
    "Drain no-op jobs, four worker processes",
    Store.POSTGRES,
    "drain",
    (
        Entry(QUEUERT, "Queuert, concurrency 100, four", "concurrency 100", _HUNDRED, 5.0, processes=4),
        Entry(PROCRASTINATE, "procrastinate, four", "concurrency 20", {"concurrency": 20}, 0.08, processes=4),
        Entry(
            PGQUEUER, "pgqueuer, four", "asyncpg, batch 500, uvloop", {"batch": 500, "uvloop": True}, 5.0, processes=4
        ),
        Entry(OBAN, "oban, four", "queue limit 100, uvloop", {"limit": 100, "uvloop": True}, 0.5, processes=4),
        Entry(AWA, "awa, four", "max_workers 256", {"workers": 256}, 0.3, processes=4),
    ),
    loaded="load",
    note="All begin at once; each asks the store whether any job remains. Memory is that of all four. chancy's workers "
    "keep what they claimed ahead, and dbos's whatever they took, so that both are left out.",
)


def _sleeping(name: str, title: str, seconds: float, share: float) -> Scenario:
    """Handlers that wait for something else, a hundred at once."""
    wait = {"sleep": seconds}
    return Scenario(
        name,
        title,
        Store.POSTGRES,
        "drain",
        (
            Entry(QUEUERT, "Queuert, concurrency 100", "concurrency 100", {**_HUNDRED, **wait}),
            Entry(BARE, "bare fused, 100 at once", f"asyncio tasks; {_FUSED}", {**_HUNDRED, **wait}),
            Entry(PROCRASTINATE, "procrastinate, 100", "concurrency 100", {**_HUNDRED, **wait}, 0.1),
            Entry(
                PGQUEUER, "pgqueuer, batch 100", "asyncpg, batch 100, uvloop", {"batch": 100, "uvloop": True, **wait}
            ),
            Entry(CHANCY, "chancy, 100", "concurrency 100, eager, uvloop", {**_EAGER, **_HUNDRED, **wait}, 0.5),
            Entry(OBAN, "oban, limit 100", "queue limit 100, uvloop", {"limit": 100, "uvloop": True, **wait}, 0.5),
            Entry(AWA, "awa, 100 workers", "max_workers 100", {"workers": 100, **wait}, 0.5),
        ),
        loaded="load",
        share=share,
        note=f"A hundred at once end {100 / seconds:,.0f} a second at most. dbos has no such limit and is left out.",
    )


DRAIN_1MS = _sleeping("drain-1ms", "Handlers of 1 ms, a hundred at once", 0.001, 0.5)
DRAIN_50MS = _sleeping("drain-50ms", "Handlers of 50 ms, a hundred at once", 0.05, 0.2)

DRAIN_WRITES = Scenario(
    "drain-writes",
    "A row of the user's and the completion in one transaction",
    Store.POSTGRES,
    "drain_writes",
    (
        Entry(QUEUERT, "Queuert, concurrency 10", "async with attempt.complete()", {"concurrency": 10}),
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
    share=2.0,
    note="Jobs a second, each chain counted as its five jobs. No peer has typed chains.",
)

DRAIN_JOIN = Scenario(
    "drain-join",
    "Fan out, and a job that waits for all",
    Store.POSTGRES,
    "drain_join",
    (
        Entry(QUEUERT, "Queuert, concurrency 100", "concurrency 100", {"concurrency": 100}),
        Entry(QUEUERT, "Queuert, a tenth as many", "concurrency 100", {"concurrency": 100}, 0.1),
    ),
    loaded="load_join",
    note="One job has all the others as its blockers, and reads all their outputs. A tenth as many shows whether the "
    "end of a blocker costs more the more there are. No peer has this.",
)

LATENCY = Scenario(
    "latency-idle",
    "From a start to its handler, the worker idle",
    Store.POSTGRES,
    "wait_for_jobs",
    (
        Entry(QUEUERT, "Queuert", "default"),
        Entry(QUEUERT, "Queuert, uvloop", "uvloop", {"uvloop": True}),
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
    share=0.04,
    paced=True,
    note="A second process starts one job each 20 ms, while the worker waits; the clock runs from before the start.",
)

LATENCY_LOADED = Scenario(
    "latency-half-load",
    "From a start to its handler, at half of what each can drain",
    Store.POSTGRES,
    "wait_for_jobs",
    (
        Entry(QUEUERT, "Queuert, concurrency 100", "concurrency 100", _HUNDRED),
        Entry(
            BARE, "bare, batch 100", "LISTEN, claim, complete; NOTIFY in the transaction of the insert", {"batch": 100}
        ),
        Entry(PROCRASTINATE, "procrastinate, concurrency 20", "concurrency 20", {"concurrency": 20}, 0.04),
        Entry(PGQUEUER, "pgqueuer, batch 500", "asyncpg, batch 500, uvloop", {"batch": 500, "uvloop": True}),
        Entry(OBAN, "oban, limit 100", "queue limit 100, uvloop", {"limit": 100, "uvloop": True}, 0.5),
        Entry(AWA, "awa, 256 workers", "max_workers 256", {"workers": 256}, 0.3),
        Entry(DBOS, "dbos, polling 10 ms", "a queue polled each 10 ms", _POLLING, 0.1),
    ),
    metric="p50_ms",
    unit="ms, p50",
    more_is_better=False,
    paced=True,
    load=0.5,
    note="What each can drain is measured first, without starts beside it. A second process then starts half as many "
    "a second for three seconds, whether the worker keeps up or not; the clock runs from when a job was to be started. "
    "chancy, which completes once a second whatever it has done, is left out.",
)

POSTGRES = (
    START_SINGLE,
    START_BATCHES,
    START_COPY,
    START_IN_TRANSACTION,
    DRAIN_DEFAULT,
    DRAIN_BEST,
    DRAIN_FOUR,
    DRAIN_1MS,
    DRAIN_50MS,
    DRAIN_WRITES,
    DRAIN_CHAINS,
    DRAIN_JOIN,
    LATENCY,
    LATENCY_LOADED,
)
