"""Lists, blockers and counts, inside a transaction that reads; the index of attributes; and what is waiting: for an
autoscaler, and to explain why a job is not claimed."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, TypeVar

from queuert.attributes import attributes_of, pairs_of
from queuert.jobs import Attributes, ChainRecord, ChainStatus, Job, JobStatus
from queuert.limits import Limits
from queuert.state.paging import ChainFilter, JobFilter, Page, PageRequest, Position, page_of
from queuert.state.sqlite import rows
from queuert.state.sqlite.connection import Row, fetch_one, fetch_value, now_us, run, statements
from queuert.state.sqlite.limits import capacities
from queuert.state.sqlite.rows import FirstJob
from queuert.state.sqlite.workers import stored_limits
from queuert.state.types import COUNTED_WAIT, NAMED_HOLDERS, BlockerLink, HeldJob, TypeCount, TypeDemand, WaitFacts

Connection = sqlite3.Connection

T = TypeVar("T")

_ENTRIES = "(SELECT name, value, created_at, chain_id AS id FROM queuert_chain_attribute) AS entry"

_HAS = """EXISTS (SELECT 1 FROM queuert_chain_attribute AS other WHERE other.name = ? AND other.value = ?
    AND other.created_at = entry.created_at AND other.chain_id = entry.id)"""

_Conditions = list[tuple[str, Any]]
"""SQL conditions, each with its value or tuple of values."""

_Range = tuple[str, _Conditions]
"""A table, perhaps with the index to use, and what its entries must fulfil."""


def first_job(connection: Connection, id: str) -> FirstJob | None:
    """Return the first job of a chain, or another job of this id; None if there is none."""
    row = fetch_one(connection, "find_first_job", id=id)
    return None if row is None else FirstJob(*row)


def list_chains(connection: Connection, filter: ChainFilter, page: PageRequest, *, payloads: bool) -> Page[ChainRecord]:
    """List chains by the time of their start."""
    if filter.attributes:
        found = _by_attributes(connection, filter, page)
    else:
        types = filter.types
        if types is None and filter.statuses is not None:
            types = tuple(type for (type,) in run(connection, "types_of_chains"))
        index_ranges = _stretches("chain_status", types, filter.statuses, tuple(ChainStatus))
        index_ranges = [(table, [("chain_index = 0", ()), *conditions]) for table, conditions in index_ranges]
        found = _by_time(connection, filter, page, index_ranges)
    chains = _read(connection, "get_chain", rows.chain, found, now=None, payloads=payloads)
    return page_of(((one, Position.at_time(one.created_at, one.id)) for one in chains), page.limit)


def list_jobs(connection: Connection, filter: JobFilter, page: PageRequest) -> Page[Job]:
    """List jobs by the time of their creation. Scheduled jobs that are due count as ready ones."""
    now = now_us()
    types = filter.types
    if types is None and filter.statuses is not None:
        types = tuple(type for (type,) in run(connection, "types"))
    index_ranges = _stretches("status", types, filter.statuses, tuple(JobStatus))
    statuses = set(filter.statuses or JobStatus)
    if JobStatus.READY not in statuses:
        index_ranges = [
            (table, [*conditions, ("(status <> 'scheduled' OR scheduled_at > ?)", now)])
            for table, conditions in index_ranges
        ]
    elif JobStatus.SCHEDULED not in statuses:
        for type in dict.fromkeys(types or ()):
            due: _Conditions = [("type = ?", type), ("status = 'scheduled'", ()), ("scheduled_at <= ?", now)]
            index_ranges.append(("queuert_job INDEXED BY queuert_job_scheduled", due))
    found = _by_time(connection, filter, page, index_ranges)
    jobs = _read(connection, "get_job", rows.job, found, now=now)
    return page_of(((one, Position.at_time(one.created_at, one.id)) for one in jobs), page.limit)


def _stretches(
    column: str, types: Sequence[str] | None, statuses: Sequence[str] | None, all_statuses: Sequence[str]
) -> list[_Range]:
    """Return the ranges of an index in the order of a listing: all entries, or those of each type and status."""
    if types is None:
        return [("queuert_job", [])]
    kinds = product(dict.fromkeys(types), dict.fromkeys(all_statuses if statuses is None else statuses))
    return [("queuert_job", [("type = ?", type), (f"{column} = ?", str(status))]) for type, status in kinds]


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
    return _by_time(connection, filter, page, [(_ENTRIES, conditions)])


def _by_time(
    connection: Connection, filter: ChainFilter | JobFilter, page: PageRequest, index_ranges: Sequence[_Range]
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
    for table, conditions in index_ranges:
        found += _select(connection, table, columns, [*conditions, *bounds], page)
    found.sort(reverse=not page.oldest_first)
    return [id for _, id in found[: page.limit + 1]]


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


def _read(connection: Connection, name: str, decode: Callable[[Row], T], ids: Sequence[str], **params: Any) -> list[T]:
    return [decode(run(connection, name, id=one, **params)[0]) for one in ids]


def list_chain_jobs(connection: Connection, chain_id: str, page: PageRequest) -> Page[Job]:
    """List the jobs of one chain in order."""
    conditions: _Conditions = [("chain_id = ?", chain_id)]
    if page.cursor is not None:
        sign = ">" if page.oldest_first else "<"
        conditions.append((f"chain_index {sign} ?", Position.decode_index(page.cursor)))
    found = _select(connection, "queuert_job", ("chain_index", "id"), conditions, page)
    jobs = _read(connection, "get_job", rows.job, [id for _, id in found], now=now_us())
    return page_of(((one, Position(str(one.chain_index), one.id)) for one in jobs), page.limit)


def list_dependents(connection: Connection, chain_id: str, page: PageRequest) -> Page[Job]:
    """List the jobs that have a chain among their blockers, by id."""
    conditions: _Conditions = [("blocker_chain_id = ?", chain_id)]
    if page.cursor is not None:
        sign = ">" if page.oldest_first else "<"
        conditions.append((f"job_id {sign} ?", Position.decode_id(page.cursor)))
    found = _select(connection, "queuert_job_blocker", ("job_id",), conditions, page)
    jobs = _read(connection, "get_job", rows.job, [id for (id,) in found], now=now_us())
    return page_of(((one, Position("", one.id)) for one in jobs), page.limit)


def dependent_links(
    connection: Connection, chain_id: str, statuses: Container[str], left_out: Container[str]
) -> Iterator[BlockerLink]:
    """Yield which jobs of some statuses have a chain among their blockers, by id, read as they are taken."""
    for of_chain, id, status in connection.execute(statements()["get_dependents"], {"id": chain_id}):
        if status in statuses and of_chain not in left_out:
            yield BlockerLink(of_chain, id, chain_id)


def counts(connection: Connection, types: Sequence[str] | None) -> list[TypeCount]:
    """Count jobs by type and status. All index entries are counted."""
    now = now_us()
    params = [type for (type,) in run(connection, "types")] if types is None else sorted(set(types))
    found = []
    for type in params:
        found += _counts_of(connection, type, now)
    return found


def _counts_of(connection: Connection, type: str, now: int) -> list[TypeCount]:
    numbers = {status: fetch_value(connection, "count_type", type=type, status=status.value) for status in JobStatus}
    [(due, due_since)] = run(connection, "count_due", type=type, now=now)
    numbers[JobStatus.SCHEDULED] -= due
    numbers[JobStatus.READY] += due
    [(ready_since,)] = run(connection, "oldest_ready", type=type)
    oldest = min((one for one in (due_since, ready_since) if one is not None), default=now)
    ages = {JobStatus.READY: max(0.0, (now - oldest) / 1_000_000), JobStatus.SCHEDULED: 0.0}
    return [TypeCount(type, status, count, ages.get(status)) for status, count in numbers.items() if count]


_ENOUGH = 1_000


def add_entries(connection: Connection, chain_id: str, created_at: int, attributes: Attributes | None) -> None:
    """Add the attributes of a new chain to the index."""
    for name, value in pairs_of(attributes or {}):
        run(connection, "insert_attribute", name=name, value=value, created_at=created_at, chain_id=chain_id)


def delete_chain_rows(connection: Connection, chain_id: str) -> None:
    """Delete the jobs of a chain with their steps, and its attributes from the index. No job may have it as
    a blocker any more."""
    found = fetch_one(connection, "chain_attributes", id=chain_id)
    if found is not None:
        created_at, attributes = found
        for name, value in pairs_of(attributes_of(attributes)):
            run(connection, "delete_attribute", name=name, value=value, created_at=created_at, chain_id=chain_id)
    run(connection, "delete_steps", id=chain_id)
    run(connection, "delete_events", id=chain_id)
    run(connection, "delete_jobs", id=chain_id)


def rarest_first(connection: Connection, pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the distinct pairs, the rarest first: the chains of the first pair are read, and checked for the
    others."""
    params = dict.fromkeys(pairs)
    if len(params) < 2:
        return list(params)

    def number(pair: tuple[str, str]) -> int:
        name, value = pair
        [(count,)] = run(connection, "count_attribute", name=name, value=value, limit=_ENOUGH)
        return int(count)

    return sorted(params, key=number)


def demand(connection: Connection, types: Sequence[str] | None, most: int) -> list[TypeDemand]:
    """The demand of these types, or of all; those without due and running jobs are left out."""
    now = now_us()
    names = [type for (type,) in run(connection, "types")] if types is None else sorted(set(types))
    found = (_of_type(connection, type, most, now) for type in names)
    return [one for one in found if one.wanted + one.held_back > 0]


def _of_type(connection: Connection, type: str, most: int, now: int) -> TypeDemand:
    [(running,)] = run(connection, "count_type_up_to", type=type, status="running", limit=most)
    [(found_ready,)] = run(connection, "count_type_up_to", type=type, status="ready", limit=most)
    due_keys = [key for (key,) in run(connection, "due_keys", type=type, now=now, limit=most)]
    limits = stored_limits(connection, type)
    free = most * 2 if limits is None or limits.concurrency is None else max(0, limits.concurrency - running)
    if run(connection, "is_paused", type=type) or run(connection, "is_completed_by_client", type=type):
        free = 0
    ready, due = found_ready, len(due_keys)
    if limits is not None and limits.ordered:
        # An order admits one job of a key, as this limit does. Which of them, and whether it is due, is not looked at.
        limits = replace(limits, per_key=1, ordered=False)
    if limits is not None and (limits.per_key, limits.rate) != (None, None):
        ready, due = _admitted_by_keys(connection, type, limits, due_keys, most, now)
    ready = min(ready, free, found_ready)
    due = min(due, free - ready, len(due_keys))
    held_back = found_ready + len(due_keys) - ready - due
    return TypeDemand(type, ready, due, running, held_back, _oldest_seconds(connection, type, now))


def _admitted_by_keys(
    connection: Connection, type: str, limits: Limits, due_keys: Sequence[str | None], most: int, now: int
) -> tuple[int, int]:
    """How many ready and due jobs the limits of their keys admit."""
    due_of = Counter(due_keys)
    ready = due = 0
    for key, left in capacities(connection, type, limits, now, others=[key for key in due_of if key is not None]):
        [(of_key,)] = run(connection, "count_ready_of_key", type=type, key=key, limit=max(0, min(left, most)))
        ready += of_key
        due += min(due_of[key], max(0, left - of_key))
    return ready, due


def _oldest_seconds(connection: Connection, type: str, now: int) -> float | None:
    [(_, due_since)] = run(connection, "count_due", type=type, now=now)
    [(ready_since,)] = run(connection, "oldest_ready", type=type)
    moments = [moment for moment in (due_since, ready_since) if moment is not None]
    return max(0.0, (now - min(moments)) / 1_000_000) if moments else None


def wait_facts(connection: Connection, job_id: str) -> WaitFacts | None:
    """What decides whether a job can be claimed now; None if it does not exist."""
    found = fetch_one(connection, "place_of_job", id=job_id)
    if found is None:
        return None
    type, key, rank, scheduled_at, place = found
    now, most = now_us(), COUNTED_WAIT
    limits = stored_limits(connection, type)
    rate = None if limits is None else limits.rate
    window = 0 if rate is None else rows.microseconds_of(rate.seconds)
    began = []
    if rate is not None:
        params = {"type": type, "key": key, "since": now - window, "limit": rate.count}
        began = [moment for (moment,) in run(connection, "newest_starts", **params)]
    used_up = rate is not None and len(began) >= rate.count
    [(running,)] = run(connection, "count_type_up_to", type=type, status="running", limit=most)
    [(running_of_key, _)] = run(connection, "use_of_key", type=type, key=key, since=now)
    before = {"type": type, "rank": rank, "scheduled_at": scheduled_at, "place": place, "limit": most}
    if limits is not None and limits.fair:
        [(ahead,)] = run(connection, "count_ahead_of_key", key=key, **before)
    else:
        [(ahead,)] = run(connection, "count_ahead", **before)
    ordered = limits is not None and limits.ordered
    behind = fetch_value(connection, "chain_before", id=job_id, type=type, key=key) if ordered else None
    event, _ = fetch_one(connection, "awaited_event", id=job_id) or (None, None)
    sleep = fetch_value(connection, "last_sleep", id=job_id, now=now)
    named = {"type": type, "limit": NAMED_HOLDERS}
    kept = {name for (name,) in run(connection, "newest_kept_events", job=job_id, limit=NAMED_HOLDERS)}
    return WaitFacts(
        now=rows.moment(now),
        limits=limits,
        running=running,
        running_of_key=running_of_key,
        begun=len(began),
        rate_free_at=rows.moment(min(began) + window) if used_up else None,
        ahead=ahead,
        event=event,
        sleep=sleep,
        behind_chain=behind,
        held=tuple(HeldJob(*one) for one in run(connection, "held_of_type", **named)),
        held_of_key=tuple(HeldJob(*one) for one in run(connection, "held_of_key", key=key, **named)),
        kept_events=tuple(sorted(kept)),
    )
