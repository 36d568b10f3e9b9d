"""The raw ceiling: the same work as bare SQL through psycopg, with no library around it.

A table of its own, as small as the work allows: each job has its row, a lease with its holder and token, an attempt
counter, an output, and a completion that is fenced by the token. Nothing can be asked of it but this work.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import psycopg

from benchmarks.child import Latencies, Meter, Request, now, paced, ready, serve
from queuert.ids import new_id, new_token

Connection: TypeAlias = "psycopg.Connection[Any]"
AsyncConnection: TypeAlias = "psycopg.AsyncConnection[Any]"

TABLE = """
CREATE TABLE bare_job (
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    scheduled_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at      timestamptz,
    lease_expires_at timestamptz,
    lease_token      uuid,
    attempt          integer NOT NULL DEFAULT 0,
    id               text COLLATE "C" PRIMARY KEY,
    type             text COLLATE "C" NOT NULL,
    status           text COLLATE "C" NOT NULL DEFAULT 'ready',
    holder           text,
    input            jsonb NOT NULL,
    output           jsonb
) WITH (fillfactor = 70);
CREATE INDEX bare_job_ready ON bare_job (type, scheduled_at) WHERE status = 'ready';
CREATE TABLE user_write (id bigint generated always as identity primary key, value bigint not null);
"""

INSERT = b"""
INSERT INTO bare_job (id, type, input)
SELECT * FROM unnest(%(ids)b::text[], %(types)b::text[], %(inputs)b::jsonb[]) RETURNING id
"""

INSERT_ONE = b"INSERT INTO bare_job (id, type, input) VALUES (%b, 'noop', %b::jsonb) RETURNING id"

_CLAIM = b"""
UPDATE bare_job
SET status = 'running', attempt = attempt + 1, lease_token = %(next)b::uuid, holder = 'bare',
    lease_expires_at = clock_timestamp() + interval '60 seconds'
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM bare_job WHERE type = 'noop' AND status = 'ready' ORDER BY scheduled_at
    LIMIT %(limit)b::bigint FOR UPDATE SKIP LOCKED))
RETURNING id, input::text
"""

_FINISH = b"""
UPDATE bare_job SET status = 'completed', output = given.output, finished_at = clock_timestamp(),
    lease_expires_at = NULL
FROM unnest(%(ids)b::text[], %(outputs)b::jsonb[]) AS given (id, output)
WHERE bare_job.id = given.id AND lease_token = %(token)b::uuid AND lease_expires_at IS NOT NULL
"""

_FUSED = b"WITH done AS (" + _FINISH + b")" + _CLAIM

_FINISH_ONE = b"""
UPDATE bare_job SET status = 'completed', output = %b::jsonb, finished_at = clock_timestamp(), lease_expires_at = NULL
WHERE id = %b AND lease_token = %b::uuid AND lease_expires_at IS NOT NULL RETURNING id
"""

_WRITE = b"INSERT INTO user_write (value) VALUES (%b)"


class JobRow:
    """A claimed job: what a completion needs."""

    __slots__ = ("id", "input", "token")

    def __init__(self, row: Sequence[Any], token: str) -> None:
        self.id: str = row[0]
        self.input: int = json.loads(row[1])
        self.token = token


# --- starting ---------------------------------------------------------------------------------------------------------


def prepare(request: Request) -> None:
    """The table."""
    with psycopg.connect(request.server, autocommit=True) as connection:
        connection.execute(TABLE)


def load(request: Request) -> None:
    """No-op jobs."""
    with _connect(request) as connection:
        _insert_batches(connection, request.jobs, 1000)


def start_batches(request: Request) -> dict[str, float]:
    """Many rows a statement, their ids back."""
    with _connect(request) as connection, Meter(request.jobs) as meter:
        _insert_batches(connection, request.jobs, request.option("batch", 1000))
    return meter.answer()


def start_single(request: Request) -> dict[str, float]:
    """One row a statement, one after the other."""
    with _connect(request) as connection, Meter(request.jobs) as meter:
        for number in range(request.jobs):
            connection.execute(INSERT_ONE, [new_id(), str(number)]).fetchall()
    return meter.answer()


def start_in_transaction(request: Request) -> dict[str, float]:
    """A row of the user's and a job in a transaction."""
    with _connect(request, autocommit=False) as connection, Meter(request.jobs) as meter:
        for number in range(request.jobs):
            connection.execute(_WRITE, [number])
            connection.execute(INSERT_ONE, [new_id(), str(number)]).fetchall()
            connection.commit()
    return meter.answer()


def _insert_batches(connection: Connection, jobs: int, batch: int) -> None:
    for begin in range(0, jobs, batch):
        numbers = range(begin, min(begin + batch, jobs))
        ids = [new_id() for _ in numbers]
        inputs = [json.dumps(number) for number in numbers]
        connection.execute(INSERT, {"ids": ids, "types": ["noop"] * len(ids), "inputs": inputs}).fetchall()


def _connect(request: Request, *, autocommit: bool = True) -> Connection:
    return psycopg.connect(request.server, autocommit=autocommit, prepare_threshold=0)


# --- running ----------------------------------------------------------------------------------------------------------


def drain(request: Request) -> dict[str, float]:
    """All jobs, in one of two ways."""
    return drain_each(request) if request.option("way") == "each" else drain_fused(request)


def drain_fused(request: Request) -> dict[str, float]:
    """One statement that completes a batch and claims the next, on as many connections as ``lanes``."""
    lanes = request.option("lanes", 1)
    with Meter(request.jobs) as meter:
        threads = [threading.Thread(target=_drain_lane, args=(request,)) for _ in range(lanes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    _check_drained(request)
    return meter.answer()


def _drain_lane(request: Request) -> None:
    limit = request.option("batch", 100)
    with _connect(request) as connection:
        cursor = connection.cursor(binary=True)
        held: list[JobRow] = []
        token = new_token()
        while True:
            following = new_token()
            done = [job.id for job in held]
            outputs = [json.dumps(job.input) for job in held]
            asked = {"ids": done, "outputs": outputs, "token": token, "next": following, "limit": limit}
            held = [JobRow(row, following) for row in cursor.execute(_FUSED, asked).fetchall()]
            token = following
            if not held:
                return


def drain_each(request: Request) -> dict[str, float]:
    """Claims in batches ahead, every completion a commit of its own, on ``lanes`` connections."""
    return asyncio.run(_drain_each(request, _finish_one))


def drain_writes(request: Request) -> dict[str, float]:
    """The same, each completion in a transaction with a row of the user's: two round trips in pipeline mode."""
    return asyncio.run(_drain_each(request, _write_and_finish))


async def _drain_each(request: Request, finish: Callable[[AsyncConnection, JobRow], Any]) -> dict[str, float]:
    waiting: asyncio.Queue[JobRow | None] = asyncio.Queue(maxsize=200)
    lanes = request.option("lanes", 8)
    with Meter(request.jobs) as meter:
        lane_tasks = [asyncio.create_task(_finish_lane(request, waiting, finish)) for _ in range(lanes)]
        await _claim_ahead(request, waiting, lanes)
        await asyncio.gather(*lane_tasks)
    _check_drained(request)
    return meter.answer()


async def _claim_ahead(request: Request, waiting: asyncio.Queue[JobRow | None], lanes: int) -> None:
    async with await _async_connect(request) as connection:
        while True:
            token = new_token()
            asked = {"next": token, "limit": request.option("batch", 100)}
            rows = await (await connection.execute(_CLAIM, asked)).fetchall()
            for row in rows:
                await waiting.put(JobRow(row, token))
            if not rows:
                break
    for _ in range(lanes):
        await waiting.put(None)


async def _finish_lane(
    request: Request, waiting: asyncio.Queue[JobRow | None], finish: Callable[[AsyncConnection, JobRow], Any]
) -> None:
    async with await _async_connect(request) as connection:
        while (job := await waiting.get()) is not None:
            await finish(connection, job)


async def _finish_one(connection: AsyncConnection, job: JobRow) -> None:
    await connection.execute(_FINISH_ONE, [json.dumps(job.input), job.id, job.token])


async def _write_and_finish(connection: AsyncConnection, job: JobRow) -> None:
    async with connection.pipeline(), connection.transaction():
        await connection.execute(_WRITE, [job.input])
        await connection.execute(_FINISH_ONE, [json.dumps(job.input), job.id, job.token])


async def _async_connect(request: Request) -> AsyncConnection:
    return await psycopg.AsyncConnection.connect(request.server, autocommit=True, prepare_threshold=0)


def _check_drained(request: Request) -> None:
    with _connect(request) as connection:
        row = connection.execute("SELECT count(*) FROM bare_job WHERE status <> 'completed'").fetchone()
    if row is None or row[0] != 0:
        raise SystemExit(f"not all jobs have ended: {row}")


# --- latency ----------------------------------------------------------------------------------------------------------


def wait_for_jobs(request: Request) -> dict[str, float]:
    """LISTEN on one connection, claim on another."""
    latencies, left = Latencies(request.jobs), request.jobs
    with _connect(request) as listening, _connect(request) as claiming:
        listening.execute("LISTEN bare_job")
        ready()
        while left > 0:
            for _ in listening.notifies(timeout=5, stop_after=1):
                pass
            token = new_token()
            for row in claiming.execute(_CLAIM, {"next": token, "limit": 10}).fetchall():
                latencies.arrived(JobRow(row, token).input)
                left -= 1
    return latencies.answer()


def pace(request: Request) -> None:
    """Insert and notify in one transaction."""
    asyncio.run(_pace(request))


async def _pace(request: Request) -> None:
    async with await _async_connect(request) as connection:

        async def start() -> None:
            async with connection.transaction():
                await connection.execute(INSERT_ONE, [new_id(), str(now())])
                await connection.execute("NOTIFY bare_job")

        await paced(request.jobs, start)


ACTIONS: dict[str, Callable[[Request], dict[str, float] | None]] = {
    "prepare": prepare,
    "load": load,
    "load_writes": load,
    "start_single": start_single,
    "start_batches": start_batches,
    "start_in_transaction": start_in_transaction,
    "drain": drain,
    "drain_writes": drain_writes,
    "wait_for_jobs": wait_for_jobs,
    "pace": pace,
}

if __name__ == "__main__":
    serve(ACTIONS)
