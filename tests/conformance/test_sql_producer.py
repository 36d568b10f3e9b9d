"""Starts by the SQL function ``start_chain`` keep the contract of starts: the cases of the suite run through it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import pytest

from queuert.attributes import attributes_text
from queuert.errors import ChainNotFoundError, JobTypeMismatchError, StateError
from queuert.jobs import ChainStatus, JobStatus
from queuert.state.postgres import PostgresState
from queuert.state.postgres.async_statements import begin_callers_transaction, fetch
from queuert.state.postgres.async_store import AsyncPostgresStore
from queuert.state.postgres.bounds import async_bounded
from queuert.state.postgres.errors import mapped_errors
from queuert.state.postgres.protocol import AsyncPooledConnection
from queuert.state.types import NewJob, StartedJob
from queuert.testing.conformance import Mode
from queuert.testing.conformance.registry import Case, all_cases, run_case
from tests.conformance.test_postgres import Rows

GROUPS = {
    *("start", "attach", "attributes", "blockers", "debounce", "deduplication", "expired", "limited_types"),
    *("max_attempts", "result_ttl", "trace_contexts", "transactions", "trigger", "values"),
}

START = b"""
SELECT chain_id, deduplicated FROM queuert.start_chain(%(type)s, %(input)s::jsonb, id => %(id)s::text,
    attach => %(attach)s::bool, deduplication_key => %(key)s::text, deduplication_scope => %(scope)s::text,
    deduplication_window => %(window)s::float8 * interval '1 second', run_at => %(moment)s::timestamptz,
    delay => %(delay)s::float8 * interval '1 second', priority => %(priority)s::int,
    limit_key => %(limit_key)s::text, attributes => %(attributes)s::jsonb,
    result_ttl => %(result_ttl)s::float8 * interval '1 second', trace_context => %(trace_context)s::text,
    max_attempts => %(max_attempts)s::int, blockers => %(blockers)s::text[],
    debounce => %(debounce)s::float8 * interval '1 second', max_delay => %(max_delay)s::float8 * interval '1 second')
"""
READ = b"SELECT type, status, created_at, chain_status FROM queuert.job WHERE id = %(id)s"


LEFT_OUT = {
    "attach-one_of_many_writes_an_id": "batches take their locks in one order, single calls in that of the caller",
    "attach-blockers_of_the_same_batch": "each call of a batch has written its chain when the next one is made",
    "start-blockers_come_first": "the same",
    "deduplication-batches_that_cross": "batches take their locks in one order, as above",
    "expired-racers_start_one": "the function does not delete expired chains: their ids are free when a worker has",
    "start-ten_thousand_at_once": "a call writes one chain: that a batch is written whole is its transaction's doing",
    "values-numbers_keep_their_value": "stores take more than clients and the function let through",
}


def takes(job: NewJob) -> bool:
    """Whether the function has this start: no exclusions, and no more than a client lets through."""
    excluding = job.deduplication is not None and job.deduplication.excluding
    large = len(job.input) > 1024 * 1024 or len(job.trace_context or "") > 2048
    named = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.:/-]{0,127}", job.type)
    return bool(named) and not (excluding or large)


class ProducingStore(AsyncPostgresStore):
    """A store that starts chains by the function."""

    calls = 0

    async def _start(self, connection: Any, jobs: Sequence[NewJob], *, in_transaction: bool) -> list[StartedJob]:
        if not all(map(takes, jobs)):
            return await super()._start(connection, jobs, in_transaction=in_transaction)
        if not isinstance(connection, AsyncPooledConnection):
            await begin_callers_transaction(connection)
        async with async_bounded(connection):
            return [await self._call(connection, job) for job in jobs]

    async def _call(self, connection: Any, job: NewJob) -> StartedJob:
        type(self).calls += 1
        key, run_at = job.deduplication, job.run_at
        debounce = None if key is None else key.debounce
        values = {
            "type": job.type,
            "input": job.input,
            # A start whose id was not chosen has one all the same, by which the cases know it.
            "id": job.id,
            "attach": job.attach,
            "key": None if key is None else key.key,
            "scope": "open" if key is None else key.scope,
            "window": None if key is None else key.window,
            "debounce": debounce,
            "max_delay": None if key is None else key.max_delay,
            # A client makes a time of the debounce; the function does so by itself.
            "moment": None if run_at is None or debounce is not None else run_at.moment,
            "delay": None if run_at is None or debounce is not None else run_at.delay,
            "priority": job.priority,
            "limit_key": job.limit_key,
            "attributes": attributes_text(job.attributes or {}),
            "result_ttl": job.result_ttl,
            "trace_context": job.trace_context,
            "max_attempts": job.max_attempts,
            "blockers": list(job.blockers),
        }
        while True:
            if isinstance(connection, AsyncPooledConnection):
                self._connections.restart_timeout(connection)  # Which is for one answer, and not for thousands.
            try:
                with mapped_errors():
                    [(id, existing)] = await fetch(connection, START, values)
            except StateError as error:
                cause: Any = error.__cause__
                if getattr(cause, "sqlstate", None) == "42804":
                    raise JobTypeMismatchError(job.id, job.type, cause.diag.message_detail) from error
                if getattr(cause, "sqlstate", None) == "23503":
                    raise ChainNotFoundError(cause.diag.message_detail) from error
                raise
            # A chain that is attached to can be deleted before it is read; the next call starts another one.
            for type_, status, created_at, chain_status in await fetch(connection, READ, {"id": id}):
                status = JobStatus(status)
                ended = ChainStatus(chain_status)
                debounced = existing and debounce is not None
                return StartedJob(
                    id, type_, status, created_at, existing=existing, chain_status=ended, debounced=debounced
                )


class ProducingState(PostgresState):
    """A state whose stores start chains by the function."""

    def async_store(self, *, max_connections: int = 4) -> AsyncPostgresStore:
        """Return such a store, not open yet."""
        return ProducingStore(self._settings, self._statements, max_connections)


CASES = [case for case in all_cases() if case.group in GROUPS and str(case) not in LEFT_OUT]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_sql_producer(case: Case, dsn: str) -> None:
    asyncio.run(run_case(case, ProducingState(dsn), Mode.ASYNC, Rows(dsn)))


def test_the_cases_call_the_function(dsn: str) -> None:
    """And not the statements that it stands beside."""
    before = ProducingStore.calls
    [case] = [case for case in CASES if str(case) == "deduplication-second_gets_the_first"]
    asyncio.run(run_case(case, ProducingState(dsn), Mode.ASYNC, Rows(dsn)))
    assert ProducingStore.calls == before + 2
    assert {str(case) for case in all_cases()} >= LEFT_OUT.keys()
