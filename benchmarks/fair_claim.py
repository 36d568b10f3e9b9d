"""What a claim costs whose keys take turns, compared with a plain one: `python -m benchmarks.fair_claim`.

One type has a backlog of one key, and ten jobs of each of many others. Claims of both kinds run by turns on one
connection, each in a transaction that is rolled back, so that all find the same backlog. Printed are medians of the
server's time by EXPLAIN ANALYZE, with prepared statements, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import psycopg
from psycopg import sql

from benchmarks.servers import postgres
from queuert import migrations
from queuert.ids import new_token
from queuert.limits import Limits
from queuert.state.postgres import claiming
from queuert.state.postgres.statements import Statements
from queuert.state.types import ClaimRequest

_SQL = Statements("queuert")
_LOAD = b"""
    INSERT INTO queuert.job (id, type, chain_id, chain_type, chain_status, scheduled_at, input, limit_key)
    SELECT %(name)s || n, 'work', %(name)s || n, 'work', 'open', clock_timestamp() - (1 + n %% 997) * interval '1 ms',
        '1', CASE WHEN %(name)s = 'one' THEN 'key05000' ELSE 'key' || lpad(n::text, 5, '0') END
    FROM generate_series(1, %(count)s) AS n
"""


def _load(connection: psycopg.Connection[Any], backlog: int, keys: int) -> None:
    found = connection.execute(
        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'queuert' AND tablename = 'job'"
        " AND indexname <> 'job_pkey'"
    ).fetchall()
    for name, _ in found:
        connection.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier("queuert", name)))
    connection.execute(_LOAD, {"name": "one", "count": backlog})
    for _ in range(10):
        connection.execute(_LOAD, {"name": f"of{_}-", "count": keys})
    for _, definition in found:
        connection.execute(definition.encode())
    connection.execute("VACUUM ANALYZE queuert.job")


def _prepare(connection: psycopg.Connection[Any], name: str, statement: bytes, values: Mapping[str, Any]) -> list[str]:
    names = list(dict.fromkeys(re.findall(rb"%\((\w+)\)s", statement)))
    text = re.sub(rb"%\((\w+)\)s", lambda found: b"$%d" % (names.index(found[1]) + 1), statement).replace(b"%%", b"%")
    connection.execute(sql.SQL("PREPARE {} AS ").format(sql.Identifier(name)).as_bytes() + text)
    return [name.decode() for name in names]


def _seconds(connection: psycopg.Connection[Any], name: str, names: Sequence[str], values: Mapping[str, Any]) -> float:
    given = sql.SQL(", ").join(sql.Literal(values[each]) for each in names)
    text = sql.SQL("EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE {} ({})").format(sql.Identifier(name), given)
    with connection.transaction(force_rollback=True):
        row = connection.execute(text).fetchone()
    assert row is not None
    return float((row[0] if isinstance(row[0], list) else json.loads(row[0]))[0]["Execution Time"]) / 1000


def measure(dsn: str, limit: int, rounds: int, keys: int) -> tuple[float, float]:
    """The medians of the seconds of a plain claim and of one whose keys take turns."""
    request = ClaimRequest({"work": 60.0}, limit, "bench", new_token())
    fair = ClaimRequest({"work": 60.0}, limit, "bench", new_token(), {"work": Limits(fair=True)})
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET jit = off; SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan")
        plain_names = _prepare(connection, "plain", _SQL.claim, {})
        # As a store claims where there are more keys than jobs wanted.
        fair_statement = _SQL.claim_next_key if limit == 1 else _SQL.claim_next_keys
        fair_names = _prepare(connection, "fair", fair_statement, {})
        plain, turns = [], []
        for number in range(rounds + 20):
            cursor = f"key{(number * 7919) % keys:05d}"
            plain.append(_seconds(connection, "plain", plain_names, claiming.claim(request)))
            values = (claiming.claim_next_key if limit == 1 else claiming.claim_next_keys)(fair, {"work": cursor})
            turns.append(_seconds(connection, "fair", fair_names, values))
        return median(plain[20:]), median(turns[20:])


def main() -> None:
    """Print a line for each size of a claim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backlog", type=int, default=1_000_000, help="jobs of one key (default: 1000000)")
    parser.add_argument("--keys", type=int, default=10_000, help="other keys, with ten jobs each (default: 10000)")
    parser.add_argument("--rounds", type=int, default=300, help="claims of each kind (default: 300)")
    given = parser.parse_args()
    with postgres() as server:
        dsn = server.template("loaded", migrations.upgrade)
        with server.copy(dsn) as copy:
            with psycopg.connect(copy, autocommit=True) as connection:
                _load(connection, given.backlog, given.keys)
            print(f"{'jobs a claim':>12}{'plain ms':>12}{'fair ms':>12}{'ratio':>8}")
            for limit in (1, 10, 50):
                plain, fair = measure(copy, limit, given.rounds, given.keys)
                print(f"{limit:>12}{plain * 1e3:>12.3f}{fair * 1e3:>12.3f}{fair / plain:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
