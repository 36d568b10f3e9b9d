"""The SQL of a read, as pure functions: a query and its parameters for each part. Values are never put into the
text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, timedelta
from typing import Any

from queuert.spark.read.columns import Column
from queuert.spark.read.options import ReadOptions
from queuert.state.postgres.bulk import identifier

FINISHES = (
    "completed", "continued", "retried", "failed", "cancelled", "interrupted", "waiting", "snoozed", "lease_expired",
)  # fmt: skip
"""The kinds of events that end an attempt."""

_EVENT = (
    "entry.tx, entry.seq + coalesce(one.place - 1, 0) AS seq, happened_at, kind, status, "
    "coalesce(one.job_id, entry.job_id) AS job_id, attempt, "
    "coalesce(one.chain_id, one.job_id, entry.chain_id) AS chain_id, chain_index, type, chain_type, "
    "coalesce(one.scheduled_at, entry.scheduled_at) AS scheduled_at, "
    "coalesce(one.started_at, entry.started_at) AS started_at, worker, error"
)
"""The columns of an event as the view ``event`` shows it, from a part of the log's rows."""

_EACH = (
    "LEFT JOIN LATERAL unnest(entry.job_ids, entry.chain_ids, entry.scheduled_ats, entry.started_ats) "
    "WITH ORDINALITY AS one (job_id, chain_id, scheduled_at, started_at, place) ON true"
)
"""Expands a row of the log to the events that it contains, if there are several."""


@dataclass(frozen=True, slots=True)
class Query:
    """A statement and the values of its parameters."""

    text: str
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Part:
    """A condition that selects one part of a table's rows, with its parameters."""

    condition: str = "true"
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Day:
    """A partition of the event log: its table, its day (None for the default partition), and its size."""

    table: str
    day: date | None
    blocks: int


def block_ranges(blocks: int, parts: int) -> list[Part]:
    """Divide a table into ranges of blocks. The last has no end, since a table grows; on a snapshot no row occurs
    twice."""
    parts = max(1, min(parts, blocks))
    starts = [blocks * at // parts for at in range(parts)]
    return [
        Part(f"job.ctid >= '({start},0)'" + ("" if end is None else f" AND job.ctid < '({end},0)'"))
        for start, end in zip(starts, [*starts[1:], None], strict=True)
    ]


def id_ranges(bounds: Sequence[str]) -> list[Part]:
    """Divide a table into ranges of ids. Ids do not change, wherever an update moves a row, so each row occurs once."""
    ids = sorted(set(bounds))
    parts = []
    for low, high in zip([None, *ids], [*ids, None], strict=True):
        tests = ["job.id >= %(low)s"] * (low is not None) + ["job.id < %(high)s"] * (high is not None)
        given = {name: value for name, value in (("low", low), ("high", high)) if value is not None}
        parts.append(Part(" AND ".join(tests) or "true", given))
    return parts


def job_queries(options: ReadOptions, columns: Sequence[Column], schema: str, parts: Sequence[Part]) -> list[Query]:
    """Return a query of jobs or chains for each part."""
    source = f'"{schema}".job AS job'
    tests = list(_filters(options, schema))
    if options.table == "chains":
        tests.append("job.chain_index = 0")
        source += f"""
            LEFT JOIN LATERAL (
                SELECT last.id, last.type, last.chain_index, last.output, last.error
                FROM "{schema}".job AS last
                WHERE job.status = 'continued' AND last.chain_id = job.id AND last.chain_index > 0
                ORDER BY last.chain_index DESC LIMIT 1
            ) AS tail ON true"""
    if options.settled:
        tests.append(_settled_chain(schema, options.from_tx or 0))
    given = _values(options)
    return [
        Query(f"SELECT {_list(columns)} FROM {source} WHERE {' AND '.join([part.condition, *tests])}",
              {**given, **part.parameters})
        for part in parts
    ]  # fmt: skip


def event_queries(options: ReadOptions, columns: Sequence[Column], schema: str, days: Sequence[Day]) -> list[Query]:
    """Return a query of events for each part: some blocks of some days. A row of the log never moves.

    The partitions are read by way of the log, since that is what roles may read. Their times are in each query, so that
    the server opens no others.
    """
    tests = list(_filters(options, schema))
    if options.settled:
        tests.append(_settled("event.tx"))
    where = " AND ".join(tests) or "true"
    elsewhere = _outside([one.day for one in days if one.day is not None])
    queries = []
    for ranges in day_ranges(_days_within(options, days), options.num_partitions):
        given, rows = _values(options), []
        for number, (day, test) in enumerate(ranges):
            given[f"table_{number}"] = f"{identifier(schema)}.{identifier(day.table)}"
            times = elsewhere if day.day is None else _between(day.day, day.day + _DAY)
            of_day = f"({times}) AND entry.tableoid = %(table_{number})s::regclass AND {test}"
            rows.append(f'SELECT {_EVENT} FROM "{schema}".job_event AS entry {_EACH} WHERE {of_day}')
        text = f"SELECT {_list(columns)} FROM ({' UNION ALL '.join(rows)}) AS event WHERE {where}"
        queries.append(Query(text, given))
    return queries


_DAY = timedelta(days=1)


def _between(low: date | None, high: date | None) -> str:
    """Return the condition that an event happened from the beginning of one day until before that of another (UTC)."""
    tests = [
        f"happened_at {operator} '{day.isoformat()} 00:00:00+00'::timestamptz"
        for operator, day in ((">=", low), ("<", high))
        if day is not None
    ]
    return " AND ".join(tests) or "true"


def _outside(days: Sequence[date]) -> str:
    """Return the condition that an event happened on none of these days."""
    known = sorted(days)
    gaps = zip([None, *(day + _DAY for day in known)], [*known, None], strict=True)
    return " OR ".join(_between(low, high) for low, high in gaps if low is None or low != high)


def day_ranges(days: Sequence[Day], parts: int) -> Iterator[list[tuple[Day, str]]]:
    """Divide the blocks of all days into parts of equal size: days, and a condition for each. The last part of a day
    has no end."""
    sizes = [max(1, day.blocks) for day in days]
    parts = max(1, min(parts, sum(sizes)))
    for at in range(parts):
        low, high = sum(sizes) * at // parts, sum(sizes) * (at + 1) // parts
        ranges, first = [], 0
        for day, size in zip(days, sizes, strict=True):
            start, end = max(low - first, 0), min(high - first, size)
            first += size
            if start < end:
                upper = "" if end == size else f" AND entry.ctid < '({end},0)'"
                ranges.append((day, f"entry.ctid >= '({start},0)'{upper}"))
        yield ranges


_ATTEMPT_EVENT = "attempt > 0 AND kind = ANY (%(finishes)s::text[] || '{started, released}'::text[])"


def attempt_queries(
    options: ReadOptions, columns: Sequence[Column], schema: str, *, only_ended: bool = False
) -> list[Query]:
    """Return a query of attempts: the events that began and ended each. The events of a job are all in one part.

    With ``only_ended`` they are those that ended in the transactions of the options, wherever they began: pieces of
    transactions have each attempt once.
    """
    tests = list(_filters(options, schema))
    # Also events before the piece: that an attempt ended there is known only by the event that ended it.
    settled = [_settled("event.tx")] if options.settled else []
    within = "event.tx < %(to_tx)s::xid8 AND event.happened_at >= (SELECT at FROM first)" if only_ended else None
    where = "".join(f" AND {test}" for test in [*([within] if within else settled), *tests])
    first = ended = finished = ""
    if only_ended:
        first = f"""
        first AS MATERIALIZED (
            -- A claim writes its event and the start of its attempt at the same time, by one clock unless a server that
            -- was promoted has another.
            SELECT least(min(happened_at), min(started_at) - interval '1 hour') AS at
            FROM "{schema}".event
            WHERE {" AND ".join([_ATTEMPT_EVENT, *settled, *tests])}
        ),"""
        # A transaction that ended it may have begun before the claim: such an attempt is read where both are seen.
        ended = " AND next IS NOT NULL AND greatest(tx, next_tx) >= %(from_tx)s::xid8"
        finished = " AND tx >= %(from_tx)s::xid8"
    given = {**_values(options), "finishes": list(FINISHES), "parts": options.num_partitions}
    text = f"""
        WITH{first} noted AS (
            SELECT event.*, lag(kind) OVER own AS before, lead(kind) OVER own AS next,
                lead(happened_at) OVER own AS next_at, lead(status) OVER own AS next_status,
                lead(error) OVER own AS next_error, lead(tx) OVER own AS next_tx
            FROM "{schema}".event
            WHERE {_ATTEMPT_EVENT}
                AND mod(hashtext(job_id)::bigint + 2147483648, %(parts)s::bigint) = %(part)s::bigint{where}
            WINDOW own AS (PARTITION BY job_id, attempt ORDER BY seq)
        ),
        attempt AS (
            SELECT job_id, attempt, chain_id, chain_index, type, chain_type, worker, scheduled_at AS due_at, started_at,
                next_at AS ended_at, coalesce(next, 'running') AS outcome, coalesce(next_status, status) AS status,
                next_error AS error
            FROM noted WHERE kind = 'started' AND next IS DISTINCT FROM 'released'{ended}
            UNION ALL
            -- Of types whose log has the finishes only. One that has another attempt no longer knows when it was due.
            SELECT job_id, attempt, chain_id, chain_index, type, chain_type, worker,
                CASE WHEN status IN ('completed', 'continued', 'failed', 'cancelled') THEN scheduled_at END, started_at,
                happened_at, kind, status, error
            FROM noted
            WHERE kind <> ALL ('{{started, released}}'::text[]) AND worker IS NOT NULL
                AND before IS DISTINCT FROM 'started'{finished}
        )
        SELECT {_list(columns)} FROM attempt"""
    return [Query(text, {**given, "part": part}) for part in range(options.num_partitions)]


def worker_queries(columns: Sequence[Column], schema: str) -> list[Query]:
    """Return the query of the workers as they are now; there are few."""
    return [Query(f'SELECT {_list(columns)} FROM "{schema}".worker AS worker')]


def stream_query(
    columns: Sequence[Column], schema: str, filters: Mapping[str, Sequence[str] | None], bounds: Mapping[str, Any]
) -> Query:
    """Return the query of the events of one part of a micro-batch, in order. ``filters`` has lists of values by
    column."""
    given = any_of(filters)
    tests = [f"{name} = ANY (%({name}_any)s::text[])" for name in filters if given[f"{name}_any"] is not None]
    # A row has the number of its first event, and the 63 numbers above belong to it.
    rows = f"""
        SELECT {_EVENT}, entry.seq AS first_seq, one.place FROM "{schema}".job_event AS entry {_EACH}
        WHERE (entry.tx, entry.seq) >= (%(start_tx)s::xid8, %(start_seq)s::bigint - 63)
            AND (entry.tx, entry.seq) < (%(end_tx)s::xid8, %(end_seq)s::bigint)"""
    where = " AND ".join(
        [
            "(tx, seq) >= (%(start_tx)s::xid8, %(start_seq)s::bigint)",
            "(tx, seq) < (%(end_tx)s::xid8, %(end_seq)s::bigint)",
            *tests,
        ]
    )
    # In the order of the index, so that only the events of one row are sorted.
    return Query(
        f"SELECT {_list(columns)} FROM ({rows}) AS event WHERE {where} ORDER BY event.tx, first_seq, place",
        {**given, **bounds},
    )


def any_of(filters: Mapping[str, Sequence[str] | None]) -> dict[str, list[str] | None]:
    """Return lists of values by column as parameters."""
    return {f"{name}_any": None if values is None else list(values) for name, values in filters.items()}


def _list(columns: Sequence[Column]) -> str:
    return ", ".join(column.sql for column in columns)


_MOMENTS = {
    "jobs": {"created": "job.created_at", "closed": "job.finished_at"},
    "chains": {"created": "job.created_at", "closed": "job.chain_closed_at"},
    "attempts": {"started": "event.started_at"},
    "events": {"happened": "event.happened_at"},
}
_OWN = {"jobs": ("job.type", "job.status"), "chains": ("job.type", "job.chain_status")}


_BY_CHAIN = (
    "(job.id = ANY (%(chain_ids)s::text[]) AND job.chain_index = 0"
    " OR job.chain_id = ANY (%(chain_ids)s::text[]) AND job.chain_index > 0)"
)
"""Selects jobs of these chains by two indexes: the index of chains does not contain the first job of a chain."""


def _filters(options: ReadOptions, schema: str) -> Iterator[str]:
    type_name, status = _OWN.get(options.table, ("event.type", "event.status"))
    chain = {"jobs": "job.chain_id", "chains": "job.id"}.get(options.table, "event.chain_id")
    for given, what in ((options.types, type_name), (options.statuses, status), (options.kinds, "event.kind"),
                        (options.chain_ids, chain)):  # fmt: skip
        if given is not None:
            name = {type_name: "types", status: "statuses", chain: "chain_ids"}.get(what, "kinds")
            test = f"{what} = ANY (%({name})s::text[])"
            yield _BY_CHAIN if what == "job.chain_id" else test
    for name, moment in _MOMENTS[options.table].items():
        if getattr(options, f"{name}_from") is not None:
            yield f"{moment} >= %({name}_from)s::timestamptz"
        if getattr(options, f"{name}_to") is not None:
            yield f"{moment} < %({name}_to)s::timestamptz"
    if options.started_from is not None:
        # The events of an attempt come after its start, so older days are not read.
        yield "event.happened_at >= %(started_from)s::timestamptz"
    if options.write_id is not None:
        yield f'{chain} IN (SELECT id FROM "{schema}".job WHERE write_id = %(write_id)s)'


def _values(options: ReadOptions) -> dict[str, Any]:
    """Return the parameters: values of filters as psycopg takes them, transactions as text."""
    values: dict[str, Any] = {}
    for name in ("types", "statuses", "kinds", "chain_ids"):
        if getattr(options, name) is not None:
            values[name] = list(getattr(options, name))
    for name in ("created", "closed", "started", "happened"):
        values |= {f"{name}_{end}": getattr(options, f"{name}_{end}") for end in ("from", "to")}
    values |= {"write_id": options.write_id, "from_tx": str(options.from_tx or 0), "to_tx": str(options.to_tx or 0)}
    return {name: value for name, value in values.items() if value is not None}


def _settled(tx: str) -> str:
    return f"{tx} >= %(from_tx)s::xid8 AND {tx} < %(to_tx)s::xid8"


def _settled_chain(schema: str, from_tx: int) -> str:
    # Chains that closed before the column existed have none. The condition is as cheap as possible, since every row is
    # tested.
    closed = "{0}.chain_status <> 'open' AND coalesce({0}.completed_tx, '0') < %(to_tx)s::xid8"
    if from_tx:
        closed += " AND {0}.completed_tx >= %(from_tx)s::xid8"
    return (
        f"CASE WHEN job.chain_index = 0 THEN {closed.format('job')} "
        f'ELSE EXISTS (SELECT FROM "{schema}".job AS root WHERE root.id = job.chain_id AND {closed.format("root")}) END'
    )


def _days_within(options: ReadOptions, days: Sequence[Day]) -> list[Day]:
    low = options.happened_from and options.happened_from.astimezone(UTC).date()
    high = options.happened_to and options.happened_to.astimezone(UTC).date()
    return [
        one
        for one in days
        if one.day is None or ((low is None or one.day >= low) and (high is None or one.day <= high))
    ]
