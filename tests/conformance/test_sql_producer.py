"""Starts by the SQL function ``start_chain`` keep the contract of starts: the cases of the suite run through it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import pytest

from queuert.attributes import attributes_text
from queuert.errors import JobTypeMismatchError, StateError
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
    *("start", "attach", "attributes", "deduplication", "expired", "limited_types", "result_ttl", "trace_contexts"),
    *("transactions", "trigger", "values"),
}

START = b"""
SELECT chain_id, deduplicated FROM queuert.start_chain(%(type)s, %(input)s::jsonb, id => %(id)s::text,
    attach => %(attach)s::bool, deduplication_key => %(key)s::text, deduplication_scope => %(scope)s::text,
    deduplication_window => %(window)s::float8 * interval '1 second', run_at => %(moment)s::timestamptz,
    delay => %(delay)s::float8 * interval '1 second', priority => %(priority)s::int,
    limit_key => %(limit_key)s::text, attributes => %(attributes)s::jsonb,
    result_ttl => %(result_ttl)s::float8 * interval '1 second', trace_context => %(trace_context)s::text)
"""
READ = b"SELECT type, status, created_at, chain_status FROM queuert.job WHERE id = %(id)s"


LEFT_OUT = {
    "attach-one_of_many_writes_an_id": "batches take their locks in one order, single calls in that of the caller",
    "deduplication-batches_that_cross": "the same",
    "expired-racers_start_one": "the function does not delete expired chains: their ids are free when a worker has",
    "values-numbers_keep_their_value": "stores take more than clients and the function let through",
}


def takes(job: NewJob) -> bool:
    """Whether the function has this start: no blockers, no exclusions, and no more than a client lets through."""
    excluding = job.deduplication is not None and job.deduplication.excluding
    large = len(job.input) > 1024 * 1024 or len(job.trace_context or "") > 2048
    named = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.:/-]{0,127}", job.type)
    return bool(named) and not (job.blockers or excluding or large)


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
        values = {
            "type": job.type,
            "input": job.input,
            # A start whose id was not chosen has one all the same, by which the cases know it.
            "id": job.id,
            "attach": job.attach,
            "key": None if key is None else key.key,
            "scope": "open" if key is None else key.scope,
            "window": None if key is None else key.window,
            "moment": None if run_at is None else run_at.moment,
            "delay": None if run_at is None else run_at.delay,
            "priority": job.priority,
            "limit_key": job.limit_key,
            "attributes": attributes_text(job.attributes or {}),
            "result_ttl": job.result_ttl,
            "trace_context": job.trace_context,
        }
        try:
            with mapped_errors():
                [(id, existing)] = await fetch(connection, START, values)
        except StateError as error:
            cause: Any = error.__cause__
            if getattr(cause, "sqlstate", None) == "42804":
                raise JobTypeMismatchError(job.id, job.type, cause.diag.message_detail) from error
            raise
        [(type_, status, created_at, chain_status)] = await fetch(connection, READ, {"id": id})
        status = JobStatus(status)
        return StartedJob(id, type_, status, created_at, existing=existing, chain_status=ChainStatus(chain_status))


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
