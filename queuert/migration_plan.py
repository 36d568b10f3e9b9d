"""What an upgrade of the Postgres schema would do: its statements, the locks they take, and how long they take.

Estimates are of the table's size by Postgres's statistics, and of the speed of a modest server: a statement that reads
a table reads 100 MB/s, one that rewrites it writes 50 MB/s, and an index takes two microseconds a row besides. An index
that is built beside writes reads the table twice, and waits for the transactions that began before it, which no
estimate knows of. A partial index is counted as if it had all rows. A table that was never analyzed is counted as if it
had a row for each 100 bytes: rows of jobs are longer, so the estimate is rather too long than too short.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from queuert import migrations
from queuert.schema_names import DEFAULT_SCHEMA

_READ = 100_000_000
_WRITE = 50_000_000
"""Bytes a second."""
_INDEX_ROW = 2e-6
"""Seconds to sort and write an entry of an index."""
_SHORT_ROW = 100
"""Bytes of a row, where the statistics have no number of rows."""

_MOMENT = "a moment"

_STATEMENTS = (
    # What it is, its lock, what it does to the table named by the last group. The first that matches counts.
    (r"CREATE (?:UNIQUE )?INDEX CONCURRENTLY (?:IF NOT EXISTS )?\w+ ON (\w+)", "SHARE UPDATE EXCLUSIVE", "index"),
    (r"CREATE (?:UNIQUE )?INDEX (?:IF NOT EXISTS )?\w+ ON (\w+)", "SHARE", "index"),
    (r"DROP INDEX CONCURRENTLY (?:IF EXISTS )?(\w+)", "SHARE UPDATE EXCLUSIVE", ""),
    (r"CREATE TABLE .*\bREFERENCES (\w+)", "SHARE ROW EXCLUSIVE", ""),
    (r"CREATE TRIGGER .*?\bON (\w+)", "SHARE ROW EXCLUSIVE", ""),
    (r"CREATE STATISTICS \w+ .*FROM (\w+)", "SHARE UPDATE EXCLUSIVE", ""),
    (r"ALTER TABLE (\w+) SET \(", "SHARE UPDATE EXCLUSIVE", ""),
    (r"ALTER TABLE (\w+) .*\bALTER (?:COLUMN )?\w+ (?:SET DATA )?TYPE\b", "ACCESS EXCLUSIVE", "rewrite"),
    (r"ALTER TABLE (\w+) .*\bADD COLUMN\b.*\bDEFAULT [^,]*\w+\(", "ACCESS EXCLUSIVE", "rewrite"),
    (r"ALTER TABLE (\w+) .*\bADD COLUMN\b.*\b(?:GENERATED|serial|bigserial)\b", "ACCESS EXCLUSIVE", "rewrite"),
    (r"ALTER TABLE (\w+) .*\bNOT VALID\b", "ACCESS EXCLUSIVE", ""),
    (r"ALTER TABLE (\w+) VALIDATE CONSTRAINT\b", "SHARE UPDATE EXCLUSIVE", "read"),
    (r"ALTER TABLE (\w+) .*\b(?:ADD CONSTRAINT|ADD CHECK|SET NOT NULL)\b", "ACCESS EXCLUSIVE", "read"),
    (r"CREATE OR REPLACE VIEW (\w+)", "ACCESS EXCLUSIVE", ""),
    (r"ALTER SEQUENCE (\w+)", "SHARE ROW EXCLUSIVE", ""),
    (r"(?:ALTER|DROP) (?:TABLE|INDEX|VIEW) (?:IF EXISTS )?(\w+)", "ACCESS EXCLUSIVE", ""),
    (r"(?:UPDATE|DELETE FROM) (\w+)", "ROW EXCLUSIVE", "rewrite"),
    (r"INSERT INTO (\w+)", "ROW EXCLUSIVE", ""),
)
_NO_LOCK = re.compile(
    r"CREATE (?:(?:UNLOGGED )?TABLE|SEQUENCE|(?:OR REPLACE )?(?:VIEW|FUNCTION))|DROP FUNCTION"
    r"|REVOKE|GRANT|COMMENT|SELECT|SET"
)
_CODE = re.compile(r"DO\b")
"""Blocks of code: what they lock is not read from their text."""
_NEW_TABLE = re.compile(r"CREATE (?:(?:UNLOGGED )?TABLE|VIEW|SEQUENCE) (?:IF NOT EXISTS )?(\w+)", re.IGNORECASE)
_BLOCKS: Mapping[str, str] = {
    "ACCESS EXCLUSIVE": "reads and writes",
    "SHARE": "writes",
    "SHARE ROW EXCLUSIVE": "writes",
    "ROW EXCLUSIVE": "nothing",
    "SHARE UPDATE EXCLUSIVE": "nothing",
}


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """A statement of a pending revision.

    Attributes:
        revision: to which it belongs.
        statement: its text.
        table: the existing table or index that it locks; None if there is none, or if that is not known.
        lock: the mode of the lock, as Postgres calls it; None without a table.
        blocks: what waits while it holds the lock: ``nothing``, ``writes``, ``reads and writes``, or ``unknown``, as of
            each block of code (``DO``).
        in_transaction: whether it runs in the transaction of its revision, and keeps its locks until that ends.
        rows: about how many rows the table has with its partitions, by the statistics; None without a table, or if a
            part of it was never analyzed.
        bytes: the size of the table without its indexes.
        seconds: an estimate of how long it reads or writes the table; 0.0 if it does neither; None if not known. Of
            blocks of code it is 0.0: those of Queuert replace functions and grant rights, as its tests check.
    """

    revision: str
    statement: str
    table: str | None
    lock: str | None
    blocks: str
    in_transaction: bool
    rows: int | None = None
    bytes: int | None = None
    seconds: float | None = 0.0

    @property
    def online(self) -> bool:
        """Whether jobs go on meanwhile: nothing waits for it, or for a moment only."""
        return self.seconds is not None and (self.blocks == "nothing" or self.seconds < 1.0)

    @property
    def is_code(self) -> bool:
        """Whether it is a block of code, whose locks are not known."""
        return _CODE.match(self.statement) is not None

    def __str__(self) -> str:
        first, *rest = self.statement.splitlines()
        lines = [f"{first} ..." if rest else first]
        if self.table is not None:
            rows = "rows unknown (never analyzed)" if self.rows is None else f"about {self.rows:,} rows"
            lines.append(f"locks {self.table} ({self.lock}), {rows}, {(self.bytes or 0) / 1e6:,.1f} MB")
        took = (
            "an unknown time"
            if self.seconds is None
            else _MOMENT
            if self.seconds < 1
            else f"about {self.seconds:.0f} s"
        )
        apart = "" if self.in_transaction else ", in no transaction"
        if self.is_code:
            lines.append(f"a block of code: what it locks and how long it takes cannot be read from its text{apart}")
        else:
            lines.append(f"blocks {self.blocks}; takes {took}{apart}")
        return "\n    ".join(lines)


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """What an upgrade would do.

    Attributes:
        current: the revision of the schema; None if there is no schema.
        head: the revision to reach.
        steps: the statements, in their order.

    Example::

        plan = plan_upgrade("postgresql://app@db/app")
        assert plan.online, str(plan)
    """

    current: str | None
    head: str
    steps: tuple[MigrationStep, ...]

    @property
    def online(self) -> bool:
        """Whether jobs go on meanwhile. Waiting for a lock is not counted: see ``lock_timeout`` of the upgrade."""
        return all(step.online for step in self.steps)

    @property
    def slow(self) -> tuple[MigrationStep, ...]:
        """The statements that take longer than a moment, or for an unknown time, whether jobs go on or not."""
        return tuple(step for step in self.steps if step.seconds is None or step.seconds >= 1.0)

    def __str__(self) -> str:
        if not self.steps:
            return f"revision {self.current}: nothing to do"
        if self.current is None and self.online:
            return f"there is no schema: {len(self.steps)} statements create it at revision {self.head}; nobody waits"
        lines, revision = [], None
        for step in self.steps:
            if step.revision != revision:
                revision = step.revision
                lines.append(f"revision {revision}")
            lines.append(f"  {step}")
        slow, code = (sum(found) for found in zip(*((not one.online, one.is_code) for one in self.steps), strict=True))
        lines.append("jobs go on meanwhile" if self.online else f"{slow} statements hold up jobs: see above")
        if code:
            lines[-1] += f"; not counting {code} block{'s' * (code > 1)} of code"
        if any("\n" in step.statement for step in self.steps):
            lines.append("... stands for the other lines of a statement: queuert migrate sql prints them")
        return "\n".join(lines)


def plan_upgrade(dsn: str, *, schema: str = DEFAULT_SCHEMA, revision: str = "head") -> MigrationPlan:
    """Return what ``upgrade`` would do to this database. It reads the catalog, and changes and locks nothing.

    Raises:
        StateUnavailableError: the database cannot be reached.
        MigrationError: this version of Queuert does not know its revision, or ``revision``.
    """
    status = migrations.status(dsn, schema=schema)
    head = status.head if revision == "head" else revision
    if not status.pending or status.current == head:
        return MigrationPlan(status.current, head, ())
    sizes = {} if status.current is None else _sizes(dsn, schema)
    script = _Script()
    migrations.write_sql(script, schema=schema, revision=f"{status.current or 'base'}:{revision}")
    return MigrationPlan(status.current, head, tuple(_steps(script, schema, sizes)))


class _Script(io.StringIO):
    """Keeps statements apart: Alembic writes one at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.statements: list[str] = []

    def write(self, text: str) -> int:
        self.statements.append(text.strip().removesuffix(";"))
        return len(text)


def _sizes(dsn: str, schema: str) -> dict[str, tuple[int | None, int]]:
    # Of a table that was never analyzed, reltuples is -1. An empty one has no rows, whatever the statistics say.
    query = """
        SELECT relation.relname,
            CASE WHEN NOT bool_or(part.reltuples < 0 AND part.relkind = 'r' AND pg_relation_size(part.oid) > 0)
                THEN sum(greatest(part.reltuples, 0))::bigint END,
            sum(pg_table_size(part.oid))::bigint
        FROM pg_class AS relation
        CROSS JOIN LATERAL (
            SELECT relation.oid UNION SELECT relid FROM pg_partition_tree(relation.oid)
        ) AS parts (oid)
        JOIN pg_class AS part ON part.oid = parts.oid
        WHERE relation.relnamespace = to_regnamespace(quote_ident(%s)) AND relation.relkind IN ('r', 'i', 'v', 'p', 'S')
        GROUP BY relation.relname
    """
    with migrations.connect_to(dsn) as connection:
        return {name: (rows, size) for name, rows, size in connection.execute(query, [schema]).fetchall()}


def _steps(script: _Script, schema: str, sizes: Mapping[str, tuple[int | None, int]]) -> Iterator[MigrationStep]:
    revision, in_transaction = "", False
    known = dict(sizes)
    for text in script.statements:
        if running := re.match(r"-- Running upgrade .*-> (\w+)", text):
            revision = running[1]
        elif text in {"BEGIN", "COMMIT"}:
            in_transaction = text == "BEGIN"
        elif revision and "alembic_version" not in text and not text.startswith(("--", "SET ")):
            yield _step(text, revision, schema, in_transaction=in_transaction, sizes=known)
            if made := _NEW_TABLE.match(text.lstrip()):
                known.pop(made[1], None)


def _step(
    text: str, revision: str, schema: str, *, in_transaction: bool, sizes: Mapping[str, tuple[int | None, int]]
) -> MigrationStep:
    flat = " ".join(text.split()).replace(f'"{schema}".', "")
    for pattern, lock, work in _STATEMENTS:
        found = re.match(pattern, flat, re.IGNORECASE)
        if found is None:
            continue
        if found[1] not in sizes:
            break  # An earlier statement of the plan makes it, and nobody else can use it yet.
        rows, size = sizes[found[1]]
        seconds = _seconds(work, rows, size, twice=lock == "SHARE UPDATE EXCLUSIVE")
        return MigrationStep(
            revision, text, found[1], lock, _BLOCKS[lock], in_transaction, rows, size, round(seconds, 1)
        )
    else:
        if _CODE.match(flat):
            return MigrationStep(revision, text, None, None, "unknown", in_transaction)
        if not _NO_LOCK.match(flat):
            return MigrationStep(revision, text, None, None, "unknown", in_transaction, seconds=None)
    return MigrationStep(revision, text, None, None, "nothing", in_transaction)


def _seconds(work: str, rows: int | None, size: int, *, twice: bool) -> float:
    if work == "index":
        return (size / _SHORT_ROW if rows is None else rows) * _INDEX_ROW + size / _READ * (2 if twice else 1)
    return size / _WRITE if work == "rewrite" else size / _READ if work == "read" else 0.0
