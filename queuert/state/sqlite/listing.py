"""Lists, blockers and counts, inside a transaction that reads."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, TypeVar

from queuert.jobs import ChainRecord, ChainStatus, Job, JobStatus
from queuert.state.paging import ChainFilter, JobFilter, Page, PageRequest, Position, page_of
from queuert.state.sqlite import rows
from queuert.state.sqlite.attributes import rarest_first
from queuert.state.sqlite.connection import Row, now_us, run
from queuert.state.types import TypeCount

Connection = sqlite3.Connection

T = TypeVar("T")

_ENTRIES = "(SELECT name, value, created_at, chain_id AS id FROM queuert_chain_attribute) AS entry"

_HAS = """EXISTS (SELECT 1 FROM queuert_chain_attribute AS other WHERE other.name = ? AND other.value = ?
    AND other.created_at = entry.created_at AND other.chain_id = entry.id)"""

_Conditions = list[tuple[str, Any]]
"""SQL conditions, each with its value or tuple of values."""


def list_chains(connection: Connection, filter: ChainFilter, page: PageRequest) -> Page[ChainRecord]:
    """List chains by the time of their start."""
    if filter.attributes:
        found = _by_attributes(connection, filter, page)
    else:
        types = filter.types
        if types is None and filter.statuses is not None:
            types = tuple(row[0] for row in run(connection, "types_of_chains"))
        index_ranges = _stretches("chain_status", types, filter.statuses, tuple(ChainStatus))
        found = _by_time(
            connection, "queuert_job", filter, page, [[("chain_index = 0", ()), *one] for one in index_ranges]
        )
    chains = _read(connection, "get_chain", rows.chain, found, now=None)
    return page_of(((one, Position.at_time(one.created_at, one.id)) for one in chains), page.limit)


def list_jobs(connection: Connection, filter: JobFilter, page: PageRequest) -> Page[Job]:
    """List jobs by the time of their creation."""
    types = filter.types
    if types is None and filter.statuses is not None:
        types = tuple(row[0] for row in run(connection, "types"))
    index_ranges = _stretches("status", types, filter.statuses, tuple(JobStatus))
    found = _by_time(connection, "queuert_job", filter, page, index_ranges)
    jobs = _read(connection, "get_job", rows.job, found, now=now_us())
    return page_of(((one, Position.at_time(one.created_at, one.id)) for one in jobs), page.limit)


def _stretches(
    column: str, types: Sequence[str] | None, statuses: Sequence[str] | None, all_statuses: Sequence[str]
) -> list[_Conditions]:
    """Return the ranges of an index in the order of a listing: all entries, or those of each type and status."""
    if types is None:
        return [[]]
    kinds = product(dict.fromkeys(types), dict.fromkeys(all_statuses if statuses is None else statuses))
    return [[("type = ?", type), (f"{column} = ?", str(status))] for type, status in kinds]


def _by_attributes(connection: Connection, filter: ChainFilter, page: PageRequest) -> list[str]:
    """Return the ids of a page, and of one more, of chains that have all the attributes and match the filter."""
    (name, value), *others = rarest_first(connection, filter.attributes)
    conditions: _Conditions = [("name = ?", name), ("value = ?", value)]
    conditions += [(_HAS, pair) for pair in others]
    for column, wanted in (("type", filter.types), ("chain_status", filter.statuses)):
        if wanted is not None:
            marks = ", ".join("?" * len(wanted))
            condition = f"(SELECT {column} FROM queuert_job WHERE queuert_job.id = entry.id) IN ({marks})"
            conditions.append((condition, tuple(str(one) for one in wanted)))
    return _by_time(connection, _ENTRIES, filter, page, [conditions])


def _by_time(
    connection: Connection,
    table: str,
    filter: ChainFilter | JobFilter,
    page: PageRequest,
    index_ranges: Sequence[_Conditions],
) -> list[str]:
    """Return the ids of a page, and of one more, merged from all ranges."""
    bounds: _Conditions = []
    if filter.since is not None:
        bounds.append(("created_at >= ?", rows.microseconds(filter.since)))
    if filter.before is not None:
        bounds.append(("created_at < ?", rows.microseconds(filter.before)))
    if page.cursor is not None:
        moment, id = Position.decode_time(page.cursor)
        sign = ">" if page.oldest_first else "<"
        bounds.append((f"(created_at, id) {sign} (?, ?)", (rows.microseconds(moment), id)))
    columns = ("created_at", "id")
    found: list[Row] = []
    for index_range in index_ranges:
        found += _select(connection, table, columns, [*index_range, *bounds], page)
    found.sort(reverse=not page.oldest_first)
    return [row[1] for row in found[: page.limit + 1]]


def _select(
    connection: Connection, table: str, columns: Sequence[str], conditions: _Conditions, page: PageRequest
) -> list[Row]:
    """Return rows in the order of the columns."""
    where = " AND ".join(text for text, _ in conditions) or "true"
    values: list[Any] = []
    for _, value in conditions:
        values.extend(value if isinstance(value, tuple) else (value,))
    way = "ASC" if page.oldest_first else "DESC"
    order = ", ".join(f"{column} {way}" for column in columns)
    statement = f"SELECT {', '.join(columns)} FROM {table} WHERE {where} ORDER BY {order} LIMIT ?"
    return connection.execute(statement, [*values, page.limit + 1]).fetchall()


def _read(
    connection: Connection, name: str, decode: Callable[[Row], T], ids: Sequence[str], *, now: int | None
) -> list[T]:
    return [decode(run(connection, name, id=one, now=now)[0]) for one in ids]


def list_chain_jobs(connection: Connection, chain_id: str, page: PageRequest) -> Page[Job]:
    """List the jobs of one chain in order."""
    conditions: _Conditions = [("chain_id = ?", chain_id)]
    if page.cursor is not None:
        sign = ">" if page.oldest_first else "<"
        conditions.append((f"chain_index {sign} ?", Position.decode_index(page.cursor)))
    found = _select(connection, "queuert_job", ("chain_index", "id"), conditions, page)
    jobs = _read(connection, "get_job", rows.job, [row[1] for row in found], now=now_us())
    return page_of(((one, Position(str(one.chain_index), one.id)) for one in jobs), page.limit)


def list_dependents(connection: Connection, chain_id: str, page: PageRequest) -> Page[Job]:
    """List the jobs that have a chain among their blockers, by id."""
    conditions: _Conditions = [("blocker_chain_id = ?", chain_id)]
    if page.cursor is not None:
        sign = ">" if page.oldest_first else "<"
        conditions.append((f"job_id {sign} ?", Position.decode_id(page.cursor)))
    found = _select(connection, "queuert_job_blocker", ("job_id",), conditions, page)
    jobs = _read(connection, "get_job", rows.job, [row[0] for row in found], now=now_us())
    return page_of(((one, Position("", one.id)) for one in jobs), page.limit)


def counts(connection: Connection, types: Sequence[str] | None) -> list[TypeCount]:
    """Count jobs by type and status. All index entries are counted."""
    now = now_us()
    params = [row[0] for row in run(connection, "types")] if types is None else sorted(set(types))
    found = []
    for type in params:
        found += _counts_of(connection, type, now)
    return found


def _counts_of(connection: Connection, type: str, now: int) -> list[TypeCount]:
    numbers = {status: run(connection, "count_type", type=type, status=status.value)[0][0] for status in JobStatus}
    [(due, due_since)] = run(connection, "count_due", type=type, now=now)
    numbers[JobStatus.SCHEDULED] -= due
    numbers[JobStatus.READY] += due
    [(ready_since,)] = run(connection, "oldest_ready", type=type)
    oldest = min((one for one in (due_since, ready_since) if one is not None), default=now)
    ages = {JobStatus.READY: max(0.0, (now - oldest) / 1_000_000), JobStatus.SCHEDULED: 0.0}
    return [TypeCount(type, status, count, ages.get(status)) for status, count in numbers.items() if count]
