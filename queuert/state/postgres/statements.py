"""The SQL of ``sql/``, one file a group of operations, read once and bound to a schema.

Placeholders are filled when the files are read: ``{rank}`` stands for the fragment of this name in ``fragments.sql``,
``{event_level:finished.type}`` for a fragment with an argument, ``{include:bulk_start}`` for another section. A section
with a choice, such as ``{order}``, becomes several statements: see :data:`CHOICES`. Values are never filled in: they
are parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from queuert.schema_names import check_schema_name
from queuert.state.named_sections import read_file, read_sections
from queuert.state.postgres.protocol import NamedStatement, named
from queuert.state.postgres.rows import CompletedChain, DeletedJob, ExistingJob, ExpiredLease, LockedJob
from queuert.state.records import CHAIN, CHAIN_STATE, CLAIMED, EVENT, JOB, OF_CHAIN_STATE, SCHEDULE, WORKER, selected
from queuert.state.types import MAX_FAILURES

EVENTS_A_ROW = 28
"""The number of events of one statement that share a row of the log. With the usual ids the row stays just below 2 kB,
from which on Postgres would compress it and store it elsewhere. Events are numbered below 64 within their row, and the
numbers of rows are 64 apart."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Placeholders by which one section becomes several statements: one of its name, and others with a suffix."""

    usual: Mapping[str, str]
    others: Mapping[str, Mapping[str, str]]


_CLAIM = {
    "find_one_type": "",
    "unless_one_type": "",
    "or_one_type": "",
    "topup": "",
    "chosen": "ARRAY(SELECT tid FROM locked WHERE (SELECT bytes FROM locked_size) <= %(max_bytes)s)",
    "missing": "CASE WHEN locked_size.bytes > %(max_bytes)s THEN -1"
    " ELSE greatest(scan_time.jobs - locked_size.jobs, 0) END::int",
}

CHOICES = (
    # Pages are read newest first. The scan of a page begins at its bound `first` and ends before `last`.
    Choice(
        {"order": "DESC", "reverse": "ASC", "first": "high", "last": "low", "up_to": "<=", "beyond": ">"},
        {
            "_oldest_first": {
                "order": "ASC",
                "reverse": "DESC",
                "first": "low",
                "last": "high",
                "up_to": ">=",
                "beyond": "<",
            }
        },
    ),
    # Rows that another transaction has locked are skipped.
    Choice({"skip_locked": "SKIP LOCKED"}, {"_waiting": {"skip_locked": ""}}),
    # Chains are started without rows in the index of attributes.
    Choice({"attribute_index": ""}, {"_with_attributes": {"attribute_index": "{attribute_entries}"}}),
    # The progress of attempts is only written to their jobs.
    Choice({"progress_events": ""}, {"_with_events": {"progress_events": "{progress_entries}"}}),
    # A job id that exists is an error.
    Choice({"on_conflict": ""}, {"_skip_existing": {"on_conflict": "ON CONFLICT (id) DO NOTHING"}}),
    # What is locked by others, or does not fit, is claimed by a second statement.
    Choice(
        _CLAIM,
        {
            "_many": _CLAIM
            | {
                "find_one_type": "\n{one_type}",
                "unless_one_type": "\n    WHERE (SELECT count(*) FROM one_type) = 0",
                "or_one_type": "\n    UNION ALL SELECT one_type.*, %(limit)s::bigint, 0 FROM one_type",
            },
            "_rest": _CLAIM
            | {
                "topup": "\n{lock_missing}",
                "chosen": "CASE WHEN (SELECT bytes FROM total) > %(max_bytes)s THEN ARRAY(SELECT tid FROM fitting)"
                " ELSE ARRAY(SELECT tid FROM locked UNION ALL SELECT tid FROM topup) END",
                "missing": "CASE WHEN (SELECT bytes FROM total) > %(max_bytes)s THEN -1 ELSE 0 END",
            },
        },
    ),
)

PREPARED = (
    *("start_one", "start_uniform", "complete", "finish_simple", "finish"),
    *("claim", "claim_many", "claim_rest", "claim_one_type", "claim_fair", "claim_next_key", "claim_next_keys"),
    "notify_after_commit",
    *("set_short_lock_timeout", "lock_in_order", "release_dependents", "lock_for_attempt", "complete_and_commit"),
    "renew_with_events",
)
"""The statements of every start, claim and finish."""

RECORDS = {
    # The argument is the time by which a scheduled job counts as ready.
    "job_columns": selected(
        JOB,
        {
            "status": "CASE WHEN status = 'scheduled' AND scheduled_at <= {of} THEN 'ready' ELSE status END",
            "input": "input::text",
            "output": "output::text",
            "last_error": "error::text",
            "failures": "failures::text",
            "trace_id": "trace_context",
            "attempt_trace_id": "attempt_trace_context",
            "overdue_at": "(SELECT overdue_seconds FROM {schema}.type_trait AS trait WHERE trait.type = job.type)",
        },
    ),
    "chain_columns": selected(
        CHAIN,
        {
            "input": "CASE WHEN %(payloads)s::bool THEN input::text ELSE '' END",
            "output": "CASE WHEN %(payloads)s::bool AND status = 'completed' THEN output::text END",
            "error": "error::text",
            "attributes": "attributes::text",
        },
    ),
    # Payloads only where `fits` is true.
    "fitting_chain_columns": selected(
        CHAIN,
        {
            "input": "CASE WHEN fits THEN input::text END",
            "output": "CASE WHEN fits AND status = 'completed' THEN output::text END",
            "error": "CASE WHEN fits THEN error::text END",
            "attributes": "CASE WHEN fits THEN attributes::text END",
        },
    ),
    "chain_state_columns": selected(
        CHAIN_STATE,
        {
            **OF_CHAIN_STATE,
            "job_status": "CASE WHEN tail.status = 'scheduled' AND tail.scheduled_at <= clock_timestamp() THEN 'ready'"
            " ELSE tail.status END",
            "last_error": "tail.error::text",
        },
    ),
    "schedule_columns": selected(SCHEDULE, {"input": "input::text", "attributes": "attributes::text"}),
    "event_record_columns": selected(EVENT, {"tx": "tx::text", "error": "error::text"}),
    # The end of what was looked at, as a row of its own.
    "event_bound_columns": selected(
        EVENT, {**dict.fromkeys(EVENT, "NULL"), "tx": "tx::text", "seq": "seq", "happened_at": "happened_at"}
    ),
    "worker_columns": selected(WORKER, {}),
    # What a claim returns of a `job`, and with the stored size of its input if it is compressed; and their names.
    "claimed_job": selected(
        (*CLAIMED, "packed"),
        {
            **{name: f"job.{name}" for name in CLAIMED},
            "input": "job.input::text",
            "lease_seconds": "wanted.lease_seconds",
            "packed": "CASE WHEN pg_column_compression(job.input) IS NOT NULL THEN pg_column_size(job.input) END"
            " AS packed",
        },
    ),
    "claimed_columns": selected((*CLAIMED, "packed"), {}),
    "locked_columns": selected(
        LockedJob._fields,
        {"status": "CASE WHEN status = 'scheduled' AND scheduled_at <= clock_timestamp() THEN 'ready' ELSE status END"},
    ),
    "completed_columns": selected(CompletedChain._fields, {}),
    "deleted_columns": selected(
        DeletedJob._fields,
        {"created_at": "CASE WHEN attributes IS NOT NULL THEN created_at END", "attributes": "attributes::text"},
    ),
    "existing_columns": selected(
        ExistingJob._fields, {"has_expired": "coalesce(expires_at <= clock_timestamp(), false)"}
    ),
    "expired_columns": selected(
        ExpiredLease._fields, {name: f"judged.{name}" for name in ExpiredLease._fields} | {"status": "returned.status"}
    ),
}
"""Fragments with the columns of records, in the order of their fields: see ``records.py`` and ``rows.py``."""

_AT_RUN_TIME = frozenset({"schema", "stage", "columns"})
"""Names that are quoted and filled later: the schema's below, those of staging tables in ``bulk.py``."""

_PLACEHOLDER = re.compile(r"\{([a-z_]+)(?::([^{}]+))?\}")


class Statements:
    """All statements of one schema, as bytes for the driver. The section ``-- name: claim`` is the attribute
    ``claim``."""

    def __init__(self, schema: str) -> None:
        self.schema = check_schema_name(schema)
        for name, text in texts().items():
            setattr(self, name, text.replace("{schema}", f'"{schema}"').encode())

    @cached_property
    def prepared(self) -> Mapping[str, NamedStatement]:
        """Statements that the driver prepares under names, past psycopg's cursors: see protocol.py."""
        return {name: named(name, vars(self)[name]) for name in PREPARED}

    def __getattr__(self, name: str) -> bytes:
        """Raise for a statement that no file has; those that exist are attributes of the instance."""
        raise AttributeError(f"sql/ must have a section `-- name: {name}`, and has none")


@cache
def texts() -> dict[str, str]:
    """Return all statements by name, with every placeholder filled except the schema and the staging tables.

    Raises:
        ValueError: a text has an unknown placeholder, or two statements have one name.
    """
    sections = read_sections("queuert.state.postgres", "sql", ".sql")
    fragments = {name: _code(text) for name, text in read_file("queuert.state.postgres", "fragments.sql").items()}
    fragments |= {"events_a_row": str(EVENTS_A_ROW), "max_failures": str(MAX_FAILURES), **RECORDS}
    found: dict[str, str] = {}
    for section, source in sections.items():
        for name, text in _chosen(section, source, sections):
            if name in found:
                raise ValueError(f"names of statements must be unique, got {name!r} again from section {section!r}")
            found[name] = _filled(text, fragments)
    return found


def variants(section: str) -> list[str]:
    """Return the names of the statements that a section becomes: its own, and one more if it has a choice."""
    names = (section, *(section + suffix for choice in CHOICES for suffix in choice.others))
    return [name for name in names if name in texts()]


def _chosen(name: str, text: str, sections: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    text = re.sub(r"\{include:(?P<name>\w+)\}", lambda match: sections[match["name"]].rstrip("\n"), text)
    for choice in CHOICES:
        if any(f"{{{placeholder}}}" in text for placeholder in choice.usual):
            yield name, _with(text, choice.usual)
            for suffix, other in choice.others.items():
                yield name + suffix, _with(text, other)
            return
    yield name, text


def _with(text: str, values: Mapping[str, str]) -> str:
    for placeholder, value in values.items():
        text = text.replace(f"{{{placeholder}}}", value)
    return text


def _filled(text: str, fragments: Mapping[str, str]) -> str:
    """Fill in fragments, and the fragments that they contain; ``{of}`` in a fragment is its argument."""

    def fragment(match: re.Match[str]) -> str:
        placeholder, argument = match.groups()
        if placeholder in _AT_RUN_TIME:
            return match[0]
        if placeholder not in fragments:
            raise ValueError(f"a placeholder must be a fragment or a choice, got {match[0]!r}")
        content = fragments[placeholder]
        return _filled(content if argument is None else content.replace("{of}", argument), fragments)

    return _PLACEHOLDER.sub(fragment, text)


def _code(text: str) -> str:
    """Return a fragment without the comments above it."""
    lines = text.rstrip("\n").split("\n")
    first = next(number for number, line in enumerate(lines) if not line.startswith("--"))
    return "\n".join(lines[first:])
