"""The demo's own tables, beside Queuert's in one schema, and the statements on them.

None has a key: a second commit of one job must show as a second row, not be refused by the database.
"""

from __future__ import annotations

from typing import Final, LiteralString

CREATE: Final[tuple[LiteralString, ...]] = (
    """
    CREATE TABLE queuert_demo.plan (files integer NOT NULL, reader text NOT NULL)
    """,
    "CREATE TABLE queuert_demo.answers (chains bigint NOT NULL, lines bigint NOT NULL, symbols bigint NOT NULL)",
    """
    CREATE TABLE queuert_demo.source_file (
        chain_id text NOT NULL, module text NOT NULL, path text NOT NULL, size bigint NOT NULL, lines integer NOT NULL,
        digest text NOT NULL, error text
    )
    """,
    "CREATE TABLE queuert_demo.symbol (module text NOT NULL, kind text NOT NULL, name text NOT NULL, line integer)",
    "CREATE TABLE queuert_demo.imported (module text NOT NULL, target text NOT NULL, at_top boolean NOT NULL)",
    """
    CREATE TABLE queuert_demo.effect (
        job_id text NOT NULL, chain_id text NOT NULL, attempt integer NOT NULL, worker text NOT NULL,
        made_at timestamptz NOT NULL DEFAULT clock_timestamp()
    )
    """,
)

ADD_PLAN: Final = "INSERT INTO queuert_demo.plan (files, reader) VALUES (%s, %s)"

ADD_ANSWERS: Final = "INSERT INTO queuert_demo.answers (chains, lines, symbols) VALUES (%s, %s, %s)"

ADD_FILE: Final = """
INSERT INTO queuert_demo.source_file (chain_id, module, path, size, lines, digest, error)
VALUES (%s, %s, %s, %s, %s, %s, %s)
"""

ADD_SYMBOLS: Final = """
INSERT INTO queuert_demo.symbol (module, kind, name, line)
SELECT %s, * FROM unnest(%s::text[], %s::text[], %s::integer[])
"""

ADD_IMPORTS: Final = """
INSERT INTO queuert_demo.imported (module, target, at_top)
SELECT %s, * FROM unnest(%s::text[], %s::boolean[])
"""

ADD_EFFECT: Final = "INSERT INTO queuert_demo.effect (job_id, chain_id, attempt, worker) VALUES (%s, %s, %s, %s)"

GET_MODULES: Final = """
SELECT file.module, file.lines, file.size, coalesce(found.symbols, 0)
FROM queuert_demo.source_file AS file
LEFT JOIN (SELECT module, count(*) AS symbols FROM queuert_demo.symbol GROUP BY module) AS found USING (module)
ORDER BY file.module
"""

GET_IMPORTS: Final = "SELECT module, target, at_top FROM queuert_demo.imported ORDER BY module, target"
