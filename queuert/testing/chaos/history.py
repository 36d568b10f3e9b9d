"""The history of a run as tables of a small database in memory, so that invariants are queries, whatever the store.

| table | what | from |
|---|---|---|
| `a` | calls of clients, and their answers | their log |
| `c` | every change of a job's status or token, in order | a trigger; of Redis, its append-only file |
| `e` | effects, written in the transaction that finished the job | handlers |
| `x` | the beginning and end of handlers, outside of any transaction | handlers |
| `s` | jobs as they are at the end | the store |
| `b` | which job waited for which chain | the store |
| `business` | rows that clients wrote in the transaction of a start | clients |
| `p` | events of workers | their observability |
| `stops` | how workers that were asked to stop ended | the run |
| `leftover` | the leases that these left | the run |
| `hangs` | stacks of workers that did not stop, as JSON | the run |
| `ends`, `away` | when processes ended, and which workers and clients were frozen or disconnected | the run |
| `outages` | when the store was broken, or down | the run |
| `f` | faults | the run |
| `holds` | which process had the write lock of a file, when | the run |
| `w` | requests that the receiver of webhooks got, and what it answered; connections elsewhere | the receiver |
| `deliveries` | the log of deliveries | the store |
| `resources` | memory and open files of the processes | the run |

An operator deletes chains, and a client that does not know how a start went repeats it: then a job of the same id has
another life. `c_lives`, `e_lives` and `s_lives` are the changes, the effects and the jobs with the number of their
`life`: how often the job had been deleted before.

Times are seconds since 1970, by the clock of the one machine.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "a": (
        "client", "op", "how", "id", "outcome", "result_id", "deduplicated", "key", "began", "ended", "try", "type",
        "error",
    ),
    "c": (
        "number", "job_id", "chain_id", "type", "kind", "at", "committed", "began", "tx", "old_status", "new_status",
        "old_token", "new_token", "old_attempt", "new_attempt", "old_lease", "new_lease", "old_scheduled",
        "new_scheduled", "old_uncounted", "new_uncounted", "old_expirations", "new_expirations", "chain_index",
        "holder", "output",
    ),
    "e": ("job_id", "attempt", "token", "tx", "at"),
    "x": ("job_id", "attempt", "mark", "at", "pid", "slot", "detail"),
    "s": (
        "id", "type", "chain_id", "chain_index", "status", "chain_status", "attempt", "uncounted",
        "lease_expirations", "open_blockers", "created_at", "scheduled_at", "finished_at", "chain_closed_at", "key",
        "continued_by", "output", "holder", "limit_key",
    ),
    "b": ("job_id", "chain_id", "closed"),
    "business": ("id",),
    "p": ("worker", "name", "at", "job_id", "attempt", "pid", "slot", "holder", "detail", "operation"),
    "stops": ("slot", "pid", "code", "leases", "kind", "began", "ended", "killed"),
    "hangs": ("pid", "reported"),
    "ends": ("role", "slot", "pid", "at", "code"),
    "away": ("slot", "began", "ended"),
    "leftover": ("pid", "job_id", "attempt"),
    "f": ("number", "kind", "began", "ended", "happened", "detail", "target"),
    "outages": ("began", "ended", "down"),
    "holds": ("pid", "began", "ended"),
    "w": ("place", "delivery_id", "chain_id", "status", "verified", "at"),
    "deliveries": ("delivery_id", "attempt", "status", "error"),
    "resources": ("role", "slot", "pid", "at", "resident", "files", "threads", "kinds", "rest", "allowed"),
    "facts": ("name", "value"),
}  # fmt: skip
"""The columns of each table."""

_INDEXES = (
    "CREATE INDEX c_job ON c (job_id, number)", "CREATE INDEX e_job ON e (job_id)", "CREATE INDEX s_id ON s (id)",
    "CREATE INDEX a_id ON a (id)", "CREATE INDEX s_chain ON s (chain_id, chain_index)", "CREATE INDEX c_tx ON c (tx)",
    "CREATE INDEX x_job ON x (job_id, attempt)", "CREATE INDEX b_job ON b (job_id)", "CREATE INDEX p_name ON p (name)",
    "CREATE INDEX b_chain ON b (chain_id)", "CREATE INDEX a_key ON a (key) WHERE key <> ''",
    "CREATE INDEX c_chain ON c (chain_id, number)", "CREATE INDEX p_job ON p (job_id, attempt)",
)  # fmt: skip

_DELETED_BEFORE = "SELECT count(*) FROM c AS gone WHERE gone.job_id = {} AND gone.kind = 'delete' AND gone.number < {}"
_EVER = "9e999"
_VIEWS = (
    f"CREATE VIEW c_lives AS SELECT c.*, ({_DELETED_BEFORE.format('c.job_id', 'c.number')}) AS life FROM c",
    f"CREATE VIEW s_lives AS SELECT s.*, ({_DELETED_BEFORE.format('s.id', _EVER)}) AS life FROM s",
    # An effect is of the life in which its token was that of a lease; of the last one if there is none.
    f"""CREATE VIEW e_lives AS SELECT e.*, coalesce(
            (SELECT max(life) FROM c_lives AS held WHERE held.job_id = e.job_id AND held.new_token = e.token),
            ({_DELETED_BEFORE.format("e.job_id", _EVER)})) AS life FROM e""",
)


class History:
    """The tables, and the queries on them."""

    def __init__(self, store: str = "postgres") -> None:
        self.store = store
        self._database = sqlite3.connect(":memory:")
        self._database.row_factory = sqlite3.Row
        for table, columns in COLUMNS.items():
            self._database.execute(f"CREATE TABLE {table} ({', '.join(f'{name!r}' for name in columns)})")
        for statement in (*_INDEXES, *_VIEWS):
            self._database.execute(statement)

    def add(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows; columns that a row lacks are NULL, keys without a column are skipped."""
        columns = COLUMNS[table]
        statement = f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})"
        self._database.executemany(statement, ([row.get(name) for name in columns] for row in rows))

    def rows(self, query: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[sqlite3.Row]:
        """Return the rows of a query."""
        return self._database.execute(query, values).fetchall()

    def one(self, query: str, values: Sequence[Any] = ()) -> Any:
        """Return the only value of a query."""
        return self.rows(query, values)[0][0]

    def numbers(self, query: str) -> list[float]:
        """Return the first column of a query, without NULL, sorted."""
        return sorted(float(row[0]) for row in self.rows(query) if row[0] is not None)

    def fact(self, name: str, default: Any = None) -> Any:
        """Return the values recorded under a name."""
        found = self.rows("SELECT value FROM facts WHERE name = ?", (name,))
        return found[0][0] if found else default

    def save(self, path: Path) -> None:
        """Write all tables to a database file, for later analysis."""
        self._database.commit()
        path.unlink(missing_ok=True)
        self._database.execute("VACUUM INTO ?", (str(path),))

    def close(self) -> None:
        """Close the database."""
        self._database.close()
