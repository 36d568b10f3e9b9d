"""What pages of the dashboard cost on a large database: `python -m benchmarks.dashboard --jobs 1000000`.

The server fills its tables itself: jobs of twenty types, half of them of one; failures of four errors, running jobs of
forty workers, chains of several jobs, a job with a thousand blockers, attributes, an event log, and what workers did in
the last hours. Then each page is read by one request after another. "First" begins with nothing kept for others
(`SharedReads` is emptied), "again" follows at once, as when a second operator looks. A page must be made within
`--budget` milliseconds, the first time too (the median of the rounds); the exit status is 1 if one is not.

`--drain` measures what a drain of no-op jobs takes with open pages: workers of another process drain the same number of
jobs with and without them by turns, while as many browsers as `--pages` says read a page again each second, as the
script of the pages does while something happens.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psycopg

from queuert import AsyncClient, InProcessWorker, JobType, JobTypes, NewChain, PostgresState, Processors
from queuert.embedded import EmbeddedPostgres
from queuert.migrations import upgrade
from queuert.web import FULL_ACCESS
from queuert.web.dashboard import DashboardApp
from queuert.workers import WorkerHeartbeat

noop = JobType("noop", input=int, output=int)
JOB_TYPES = JobTypes(noop)

_ERROR = "app.GatewayTimeout: the gateway did not answer, try 0"
_ROOT = Path(__file__).parents[1]

_JOBS = """
    INSERT INTO queuert.job (
        id, type, chain_id, chain_type, chain_index, chain_status, status, continued_by, created_at, scheduled_at,
        started_at, finished_at, chain_closed_at, attempt, holder, lease_expires_at, lease_token, error, input, output,
        attributes
    )
    SELECT 'job' || n, type, 'job' || n - later, chain_type, later,
        CASE WHEN later > 0 THEN NULL WHEN whole IN ('completed', 'failed', 'cancelled') THEN whole ELSE 'open' END,
        status, CASE WHEN status = 'continued' THEN 'job' || n + 1 END, at,
        CASE WHEN status = 'scheduled' THEN now() + n * interval '1 second' ELSE at END,
        CASE WHEN status IN ('ready', 'blocked', 'scheduled') THEN NULL ELSE at + interval '1 second' END,
        CASE WHEN status IN ('completed', 'continued', 'failed', 'cancelled') THEN at + interval '2 seconds' END,
        CASE WHEN later = 0 AND whole IN ('completed', 'failed', 'cancelled') THEN at + interval '3 seconds' END,
        CASE WHEN status IN ('ready', 'blocked', 'scheduled') THEN 0 ELSE 1 END,
        CASE WHEN status IN ('ready', 'blocked', 'scheduled') THEN NULL ELSE 'worker-' || n % 40 END,
        CASE WHEN status = 'running' THEN now() + interval '1 hour' END,
        CASE WHEN status = 'running' THEN gen_random_uuid() END,
        CASE WHEN status = 'failed' THEN jsonb_build_object(
            'kind', 'handler', 'message', 'the gateway did not answer, try ' || n % 4, 'type', 'app.GatewayTimeout',
            'traceback', repeat('  File "app/handlers.py", line 12, in charge' || chr(10), 40)) END,
        jsonb_build_object('number', n, 'customer', 'customer-' || n % 1000),
        CASE WHEN status = 'completed' THEN '{}'::jsonb END,
        CASE WHEN later = 0 THEN jsonb_build_object('customer', 'customer-' || n % 1000) END
    FROM generate_series(1, {jobs}) AS n
    CROSS JOIN LATERAL (SELECT
        CASE WHEN n % 3 < 2 AND n % 30 < 3 THEN n % 3 ELSE 0 END AS later,
        now() - ({jobs} - n) * interval '80 milliseconds' AS at,
        CASE
            WHEN n = {jobs} THEN 'blocked' WHEN n % 3 = 0 AND n % 30 < 3 THEN 'completed'
            WHEN n % 3 = 1 AND n % 30 < 3 THEN 'completed'
            WHEN n % 977 = 0 THEN 'running' WHEN n % 211 = 0 THEN 'failed' WHEN n % 1013 = 0 THEN 'cancelled'
            WHEN n % 31 = 0 THEN 'scheduled' WHEN n % 29 = 0 THEN 'ready' WHEN n % 101 = 0 THEN 'blocked'
            ELSE 'completed'
        END AS whole,
        CASE WHEN n % 2 = 0 THEN 'type0' ELSE 'type' || n / 2 % 20 END AS own_type
    ) AS made
    CROSS JOIN LATERAL (SELECT
        CASE WHEN n % 30 = 0 THEN 'continued' ELSE whole END AS status, own_type AS type,
        CASE WHEN later > 0 THEN CASE WHEN (n - later) % 2 = 0 THEN 'type0' ELSE 'type' || (n - later) / 2 % 20 END
        ELSE own_type END AS chain_type
    ) AS typed
"""
_REST = (
    """
    INSERT INTO queuert.job_blocker (job_id, blocker_chain_id, position, closed)
    SELECT 'job{jobs}', id, row_number() OVER () - 1, chain_status <> 'open' FROM (
        SELECT id, chain_status FROM queuert.job WHERE chain_index = 0 AND id <> 'job{jobs}' LIMIT 1000) AS found
    """,
    """
    INSERT INTO queuert.chain_attribute (created_at, name, value, chain_id)
    SELECT created_at, 'customer', attributes ->> 'customer', id FROM queuert.job WHERE attributes IS NOT NULL
    """,
    """
    INSERT INTO queuert.job_event (
        happened_at, tx, seq, attempt, chain_index, kind, status, job_id, chain_id, type, chain_type
    )
    SELECT clock_timestamp(), (n / 10 + 1)::text::xid8, n * 64::bigint, 1, 0, kind, status, 'job' || n / 2,
        'job' || n / 2, 'type0', 'type0'
    FROM generate_series(1, {jobs}) AS n
    CROSS JOIN LATERAL (SELECT CASE WHEN n % 2 = 0 THEN 'created' ELSE 'completed' END AS kind,
        CASE WHEN n % 2 = 0 THEN 'ready' ELSE 'completed' END AS status) AS made
    """,
    """
    INSERT INTO queuert.activity (
        seconds, begins_at, type, worker, report, started, completed, continued, retried, failed, cancelled,
        interrupted, waiting, rejected, reaped, wait, run
    )
    SELECT 60, date_trunc('minute', now()) - minute * interval '1 minute', 'type' || type, 'worker-' || worker, 1, 100,
        90, 0, 5, 5, 0, 0, 0, 0, 0, counts, counts
    FROM generate_series(0, 359) AS minute, generate_series(0, 19) AS type, generate_series(0, 39, 4) AS worker,
        (SELECT array_agg(n % 9) FROM generate_series(1, 27) AS n) AS made (counts)
    """,
    """
    INSERT INTO queuert.activity (
        seconds, begins_at, type, worker, report, started, completed, continued, retried, failed, cancelled,
        interrupted, waiting, rejected, reaped, wait, run
    )
    SELECT 3600, date_trunc('hour', now()) - hour * interval '1 hour', 'type' || type, '', 1, 6000, 5900, 0, 50, 50,
        0, 0, 0, 0, 0, counts, counts
    FROM generate_series(0, 719) AS hour, generate_series(0, 19) AS type,
        (SELECT array_agg(n % 9) FROM generate_series(1, 27) AS n) AS made (counts)
    """,
)


def fill(dsn: str, jobs: int) -> None:
    """Fill an empty database; the indexes of jobs are built at the end, in a third of the time."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        indexes = connection.execute(
            """
            SELECT index.oid::regclass::text, pg_get_indexdef(index.oid) FROM pg_index
            JOIN pg_class AS index ON index.oid = indexrelid
            WHERE indrelid = 'queuert.job'::regclass
                AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = index.oid)
            """
        ).fetchall()
        for name, _ in indexes:
            connection.execute(f"DROP INDEX {name}".encode())
        connection.execute(_JOBS.replace("{jobs}", str(jobs)).encode())
        connection.execute("SET maintenance_work_mem = '256MB'")
        for _, definition in indexes:
            connection.execute(definition.encode())
        for statement in _REST:
            connection.execute(statement.replace("{jobs}", str(jobs)).encode())
        connection.execute("VACUUM ANALYZE")


async def beat(dsn: str) -> None:
    """Write the heartbeats of forty workers."""
    store = PostgresState(dsn).async_store(max_connections=1)
    await store.open()
    types = tuple(f"type{number}" for number in range(20))
    for number in range(40):
        worker = WorkerHeartbeat(
            id=f"worker-{number}", name=f"worker-{number}", host="host", pid=number, version="0.1.0", job_types=types,
            concurrency=20, running=10, uptime=60.0,
        )  # fmt: skip
        await store.record_heartbeat(worker, 36_000.0)
    await store.aclose()


def pages(jobs: int) -> dict[str, str]:
    """The pages that are read, by name."""
    return {
        "overview": "/",
        "overview, 30 days": "/?span=30d",
        "chains": "/chains",
        "chains, open": "/chains?status=open",
        "chains, of a type": "/chains?type=type7&status=failed",
        "chains, by attribute": "/chains?attribute=customer%3Dcustomer-7",
        "chains, 8 hours ago": "/chains?before=8h",
        "a chain": "/chain?id=job30",
        "a chain and its events": "/chain?id=job30&events=1",
        "a chain with 1,000 blockers": f"/chain?id=job{jobs}",
        "jobs": "/jobs",
        "jobs, running": "/jobs?status=running",
        "a job": "/job?id=job211",
        "failures": "/failures",
        "failures, 12 hours": "/failures?since=12h",
        "retry of failures": "/failures/retry?type=type0&error=" + quote(_ERROR),
        "types": "/types",
        "a type": "/type?name=type0",
        "a type, 30 days": "/type?name=type0&span=30d",
        "workers": "/workers",
        "a worker": "/worker?name=worker-3",
        "schedules": "/schedules",
        "operations": "/operations",
        "cancel all that match": "/operations/start?action=cancel&status=open&type=type0",
        "events": "/events",
        "events, of a type": "/events?type=type0",
        "system": "/system",
        "search": "/search?q=job211",
    }


def application(client: AsyncClient) -> DashboardApp:
    """The dashboard, for everybody."""
    return DashboardApp(client, access=lambda request: FULL_ACCESS)


async def measure(dsn: str, jobs: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return the milliseconds of each page: the median and the worst first reading, and the median of the second."""
    found: dict[str, dict[str, float]] = {}
    async with AsyncClient(PostgresState(dsn), JOB_TYPES, max_connections=4) as client:
        dashboard = application(client)
        [database] = dashboard.databases.values()
        transport = httpx.ASGITransport(app=dashboard)
        async with httpx.AsyncClient(transport=transport, base_url="http://dashboard", timeout=60) as web:
            for name, path in pages(jobs).items():
                first: list[float] = []
                again: list[float] = []
                size = 0
                for _ in range(rounds + 1):
                    database.shared.forget()
                    for times in (first, again):
                        began = time.perf_counter()
                        answer = await web.get(path)
                        times.append((time.perf_counter() - began) * 1000)
                        if answer.status_code not in (200, 303) or "Left out" in answer.text:
                            raise RuntimeError(f"{path}: {answer.status_code} {answer.text[-2000:]}")
                        size = len(answer.content)
                # The first round of all warms the caches of the server and of the statements.
                found[name] = {
                    "first": round(statistics.median(first[1:]), 1),
                    "worst": round(max(first[1:]), 1),
                    "again": round(statistics.median(again[1:]), 1),
                    "cold": round(first[0], 1),
                    "kilobytes": round(size / 1000, 1),
                }
    return found


# --- a drain beside open pages ----------------------------------------------------------------------------------------


async def _drain(dsn: str, jobs: int) -> float:
    """Start jobs, and return the jobs a second that a worker finishes."""
    processors = Processors(JOB_TYPES)

    @processors.handles(noop)
    async def run(attempt: Any) -> int:
        return 0

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("TRUNCATE queuert.job CASCADE")
    async with AsyncClient(PostgresState(dsn), JOB_TYPES) as client:
        for first in range(0, jobs, 1_000):
            await client.start_chains([NewChain(noop, n) for n in range(first, first + 1_000)])
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE queuert.job")
            began = time.perf_counter()
            async with InProcessWorker(client, processors, concurrency=100):
                while connection.execute(  # noqa: ASYNC110  (the store tells nobody)
                    "SELECT 1 FROM queuert.job WHERE type = 'noop' AND status IN ('ready', 'running') LIMIT 1"
                ).fetchone():
                    await asyncio.sleep(0.02)
                return jobs / (time.perf_counter() - began)


async def _browse(port: int, path: str) -> None:
    """Listen to the stream of a page, and read the page again when something has happened, as its script does."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as web:
        await web.get(path)
        async with web.stream("GET", "/live") as stream:
            async for line in stream.aiter_lines():
                if line == "event: changed":
                    await web.get(path)
                    await asyncio.sleep(1.0)


async def _serve(dsn: str) -> None:
    """Serve the dashboard; print its port."""
    import socket

    import uvicorn

    async with AsyncClient(PostgresState(dsn), JOB_TYPES, max_connections=4) as client:
        listening = socket.create_server(("127.0.0.1", 0))
        print(listening.getsockname()[1], flush=True)
        config = uvicorn.Config(application(client), log_config=None, access_log=False, lifespan="off")
        await uvicorn.Server(config).serve(sockets=[listening])


async def _browse_all(port: int, count: int) -> None:
    paths = ["/", "/chains", "/jobs", "/failures", "/type?name=noop", "/events", "/workers", "/types"]
    print("reading", flush=True)
    await asyncio.gather(*(_browse(port, paths[n % len(paths)]) for n in range(count)))


@contextmanager
def _process(*arguments: str) -> Iterator[str]:
    """This program with other arguments; yields its first line."""
    command = [sys.executable, "-m", "benchmarks.dashboard", *arguments]
    process = subprocess.Popen(command, cwd=_ROOT, env=os.environ, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def drains(dsn: str, jobs: int, rounds: int, open_pages: int) -> dict[str, Any]:
    """Drain without and with open pages, by turns; return the rates and their ratio."""
    without: list[float] = []
    beside: list[float] = []
    asyncio.run(_drain(dsn, 5_000))
    for number in range(rounds):
        # Each comes first by turns: a machine that becomes slower does not decide.
        for open_now in (False, True) if number % 2 else (True, False):
            if not open_now:
                without.append(asyncio.run(_drain(dsn, jobs)))
                continue
            with _process("--serve", dsn) as port, _process("--browse", port, "--pages", str(open_pages)):
                time.sleep(2.0)
                beside.append(asyncio.run(_drain(dsn, jobs)))
    ratios = sorted(b / a for a, b in zip(without, beside, strict=True))
    return {
        "pages": open_pages,
        "without": [round(one) for one in without],
        "with": [round(one) for one in beside],
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(one, 3) for one in ratios],
    }


def main() -> int:
    """Run it on a Postgres of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=200.0, help="milliseconds that a page may take")
    parser.add_argument("--drain", type=int, metavar="JOBS", help="measure a drain of so many jobs instead")
    parser.add_argument("--pages", type=int, default=1, help="open pages beside the drain")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--browse", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    with suppress(KeyboardInterrupt):
        if args.serve:
            asyncio.run(_serve(args.serve))
        elif args.browse:
            asyncio.run(_browse_all(args.browse, args.pages))
        else:
            return _run(args)
    return 0


def _run(args: argparse.Namespace) -> int:
    with EmbeddedPostgres(durable=False, settings={"shared_buffers": "1GB"}) as server:
        dsn = server.dsn()
        upgrade(dsn)
        if args.drain:
            print(json.dumps(drains(dsn, args.drain, args.rounds, args.pages), indent=2))
            return 0
        began = time.perf_counter()
        fill(dsn, args.jobs)
        asyncio.run(beat(dsn))
        print(f"filled with {args.jobs:,} jobs in {time.perf_counter() - began:.0f} s", file=sys.stderr)
        found = asyncio.run(measure(dsn, args.jobs, args.rounds))
    print(f"{'page':32} {'first':>8} {'worst':>8} {'again':>8} {'cold':>8} {'kB':>7}   milliseconds")
    for name, one in found.items():
        late = "  over" if one["first"] > args.budget else ""
        print(
            f"{name:32} {one['first']:8} {one['worst']:8} {one['again']:8} {one['cold']:8} {one['kilobytes']:7}{late}"
        )
    return 1 if any(one["first"] > args.budget for one in found.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
