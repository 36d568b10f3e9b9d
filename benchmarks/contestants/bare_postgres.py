"""The raw ceiling: the same work as bare SQL through psycopg, with no library around it.

On a table of its own, as small as the work allows, of which nothing can be asked but this work; or, with the option
``table`` set to ``own``, on the table and indexes of this library.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import psycopg

from benchmarks.child import Latencies, Meter, Request, nap, now, pace_as_requested, ready, serve
from benchmarks.contestants.bare_statements import OWN, SMALL, TABLE, USER_TABLE, WRITE, Statements
from benchmarks.contestants.filling import CLAIM, fill, portions, rows_to_fill, times_of, without_flushes
from queuert import migrations
from queuert.ids import new_id, new_token

Connection: TypeAlias = "psycopg.Connection[Any]"
AsyncConnection: TypeAlias = "psycopg.AsyncConnection[Any]"
Finish: TypeAlias = Callable[[Statements, "AsyncConnection", "JobRow"], Awaitable[None]]


def _sql(request: Request) -> Statements:
    """The small table of its own, or this library's."""
    return OWN if request.option("table") == "own" else SMALL


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
    own = request.option("table") == "own"
    if own:
        migrations.upgrade(request.server)
    with psycopg.connect(request.server, autocommit=True) as connection:
        connection.execute(USER_TABLE.encode() if own else TABLE.encode())


def load(request: Request) -> None:
    """No-op jobs."""
    with _connect(request) as connection:
        _insert_batches(connection, _sql(request).insert, request.jobs, 1000)


def load_rows(request: Request) -> None:
    """A backlog, made by the server itself."""
    fill(request, _sql(request).fill, rows_to_fill(request))


def start_copy(request: Request) -> dict[str, float]:
    """COPY, a row a job."""
    with _connect(request) as connection, Meter(request.jobs) as meter, connection.cursor() as cursor:
        own = request.option("table") == "own"
        with cursor.copy(_sql(request).copy) as copy:
            for number in range(request.jobs):
                id = new_id()
                copy.write_row((id, "noop", id, "noop", "open", str(number)) if own else (id, "noop", str(number)))
    return meter.answer()


def start_batches(request: Request) -> dict[str, float]:
    """Many rows a statement, their ids back."""
    with _connect(request) as connection, Meter(request.jobs) as meter:
        _insert_batches(connection, _sql(request).insert, request.jobs, request.option("batch", 1000))
    return meter.answer()


def start_single(request: Request) -> dict[str, float]:
    """One row a statement, one after the other."""
    insert_one = _sql(request).insert_one
    with _connect(request) as connection, Meter(request.jobs) as meter:
        for number in range(request.jobs):
            connection.execute(insert_one, [new_id(), str(number)]).fetchall()
    return meter.answer()


def start_in_transaction(request: Request) -> dict[str, float]:
    """A row of the user's and a job in a transaction."""
    insert_one = _sql(request).insert_one
    with _connect(request, autocommit=False) as connection, Meter(request.jobs) as meter:
        for number in range(request.jobs):
            connection.execute(WRITE, [number])
            connection.execute(insert_one, [new_id(), str(number)]).fetchall()
            connection.commit()
    return meter.answer()


def _insert_batches(connection: Connection, insert: bytes, jobs: int, batch: int) -> None:
    for begin in range(0, jobs, batch):
        numbers = range(begin, min(begin + batch, jobs))
        ids = [new_id() for _ in numbers]
        inputs = [json.dumps(number) for number in numbers]
        connection.execute(insert, {"ids": ids, "types": ["noop"] * len(ids), "inputs": inputs}).fetchall()


def _connect(request: Request, *, autocommit: bool = True) -> Connection:
    return psycopg.connect(request.server, autocommit=autocommit, prepare_threshold=0)


# --- running ----------------------------------------------------------------------------------------------------------


def drain(request: Request) -> dict[str, float]:
    """All jobs, in one of three ways."""
    if request.option("sleep"):
        return asyncio.run(_drain_sleeping(request))
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
    limit, fused = request.option("batch", 100), _sql(request).fused
    with _connect(request) as connection:
        cursor = connection.cursor(binary=True)
        held: list[JobRow] = []
        token = new_token()
        while True:
            following = new_token()
            done = [job.id for job in held]
            outputs = [json.dumps(job.input) for job in held]
            requested = {"ids": done, "outputs": outputs, "token": token, "next": following, "limit": limit}
            held = [JobRow(row, following) for row in cursor.execute(fused, requested).fetchall()]
            token = following
            if not held:
                return


async def _drain_sleeping(request: Request) -> dict[str, float]:
    """Handlers that sleep, so many at once: what has ended is completed by the statement that fills the free places."""
    running: set[asyncio.Task[JobRow]] = set()
    token, places, fused = new_token(), request.option("concurrency", 100), _sql(request).fused
    async with await _async_connect(request) as connection:
        with Meter(request.jobs) as meter:
            ended: list[JobRow] = []
            while True:
                done = [job.id for job in ended]
                outputs = [json.dumps(job.input) for job in ended]
                requested = {
                    "ids": done,
                    "outputs": outputs,
                    "token": token,
                    "next": token,
                    "limit": places - len(running),
                }
                rows = await (await connection.execute(fused, requested)).fetchall()
                running |= {asyncio.create_task(_handle(request, JobRow(row, token))) for row in rows}
                if not running:
                    break
                over, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                ended = [one.result() for one in over]
    _check_drained(request)
    return meter.answer()


async def _handle(request: Request, job: JobRow) -> JobRow:
    await nap(request)
    return job


def drain_each(request: Request) -> dict[str, float]:
    """Claims in batches ahead, every completion a commit of its own, on ``lanes`` connections."""
    return asyncio.run(_drain_each(request, _finish_one))


def drain_writes(request: Request) -> dict[str, float]:
    """The same, each completion in a transaction with a row of the user's: two round trips in pipeline mode."""
    return asyncio.run(_drain_each(request, _write_and_finish))


async def _drain_each(request: Request, finish: Finish) -> dict[str, float]:
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
            requested = {"next": token, "limit": request.option("batch", 100)}
            rows = await (await connection.execute(_sql(request).claim, requested)).fetchall()
            for row in rows:
                await waiting.put(JobRow(row, token))
            if not rows:
                break
    for _ in range(lanes):
        await waiting.put(None)


async def _finish_lane(
    request: Request,
    waiting: asyncio.Queue[JobRow | None],
    finish: Callable[[Statements, AsyncConnection, JobRow], Any],
) -> None:
    statements = _sql(request)
    async with await _async_connect(request) as connection:
        while (job := await waiting.get()) is not None:
            await finish(statements, connection, job)


async def _finish_one(statements: Statements, connection: AsyncConnection, job: JobRow) -> None:
    await connection.execute(statements.finish_one, [json.dumps(job.input), job.id, job.token])


async def _write_and_finish(statements: Statements, connection: AsyncConnection, job: JobRow) -> None:
    async with connection.pipeline(), connection.transaction():
        await connection.execute(WRITE, [job.input])
        await connection.execute(statements.finish_one, [json.dumps(job.input), job.id, job.token])


async def _async_connect(request: Request) -> AsyncConnection:
    return await psycopg.AsyncConnection.connect(request.server, autocommit=True, prepare_threshold=0)


def _check_drained(request: Request) -> None:
    with _connect(request) as connection:
        row = connection.execute(_sql(request).unfinished).fetchone()
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
            left -= _arrived(claiming, latencies, request.option("batch", 10))
    return latencies.answer()


def _arrived(connection: Connection, latencies: Latencies, limit: int) -> int:
    """Claim all that is due, and complete it; how many there were."""
    held: list[JobRow] = []
    token, count = new_token(), 0
    while True:
        requested = {"ids": [job.id for job in held], "outputs": ["0"] * len(held), "token": token, "next": token}
        rows = connection.execute(SMALL.fused, {**requested, "limit": limit}).fetchall()
        held = [JobRow(row, token) for row in rows]
        if not held:
            return count
        for job in held:
            latencies.arrived(job.input)
        count += len(held)


def pace(request: Request) -> None:
    """Insert and notify in one transaction."""
    asyncio.run(_pace(request))


async def _pace(request: Request) -> None:
    async with await _async_connect(request) as connection:

        async def start() -> None:
            async with connection.transaction():
                await connection.execute(SMALL.insert_one, [new_id(), str(now())])
                await connection.execute("NOTIFY bare_job")

        async def start_many(moments: list[int]) -> None:
            ids = [new_id() for _ in moments]
            given = {"ids": ids, "types": ["noop"] * len(ids), "inputs": [str(moment) for moment in moments]}
            async with connection.transaction():
                await connection.execute(SMALL.insert, given)
                await connection.execute("NOTIFY bare_job")

        await pace_as_requested(request, start, start_many)


def claim(request: Request) -> dict[str, float]:
    """How long claims take, after some jobs have come and gone."""
    statements = _sql(request)
    without_flushes(request)
    with _connect(request) as connection:

        def take(limit: int) -> tuple[list[str], str]:
            token = new_token()
            rows = connection.execute(statements.claim, {"next": token, "limit": limit}).fetchall()
            return [row[0] for row in rows], token

        for limit in portions(request):
            ids, token = take(limit)
            connection.execute(statements.finish, {"ids": ids, "outputs": ["0"] * len(ids), "token": token})
        return times_of(lambda: len(take(CLAIM)[0]), request.jobs)


ACTIONS: dict[str, Callable[[Request], dict[str, float] | None]] = {
    "prepare": prepare,
    "load": load,
    "load_writes": load,
    "load_rows": load_rows,
    "start_copy": start_copy,
    "claim": claim,
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
