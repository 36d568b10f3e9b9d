"""The statements of the raw ceiling, for two tables: one as small as the work allows, and this library's own.

Each job has its row, a lease with its holder and token, an attempt counter, an output, and a completion that is fenced
by the token. What the second costs more than the first is the price of the columns and indexes; what this library costs
more than the second is the price of its code and of what its statements can do besides.
"""

from __future__ import annotations

from dataclasses import dataclass

USER_TABLE = "create table user_write (id bigint generated always as identity primary key, value bigint not null)"

TABLE = f"""
CREATE TABLE bare_job (
    created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    scheduled_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at      timestamptz,
    lease_expires_at timestamptz,
    lease_token      uuid,
    attempt          integer NOT NULL DEFAULT 0,
    id               text COLLATE "C" PRIMARY KEY,
    type             text COLLATE "C" NOT NULL,
    status           text COLLATE "C" NOT NULL DEFAULT 'ready',
    holder           text,
    input            jsonb NOT NULL,
    output           jsonb
) WITH (fillfactor = 70);
CREATE INDEX bare_job_ready ON bare_job (type, scheduled_at) WHERE status = 'ready';
{USER_TABLE};
"""

WRITE = b"INSERT INTO user_write (value) VALUES (%b)"

_GIVEN = "unnest(%(ids)b::text[], %(types)b::text[], %(inputs)b::jsonb[])"
_OWN_COLUMNS = "id, type, chain_id, chain_type, chain_status, input"

_SMALL_FINISH = "status = 'completed', finished_at = clock_timestamp(), lease_expires_at = NULL"
_OWN_FINISH = f"{_SMALL_FINISH}, chain_status = 'completed', chain_closed_at = clock_timestamp()"

_LEASE = """status = 'running', attempt = attempt + 1, lease_token = %(next)b::uuid, holder = 'bare',
    lease_expires_at = clock_timestamp() + interval '60 seconds'"""


@dataclass(frozen=True)
class Statements:
    """What is done to one table."""

    table: str
    insert: bytes
    insert_one: bytes
    copy: bytes
    claim: bytes
    finish: bytes
    finish_one: bytes
    fill: bytes

    @property
    def fused(self) -> bytes:
        """Complete what is done and claim what is free."""
        return b"WITH done AS (" + self.finish + b")" + self.claim

    @property
    def unfinished(self) -> bytes:
        """How many have not been completed."""
        return f"SELECT count(*) FROM {self.table} WHERE status IN ('ready', 'running')".encode()


def _claim(table: str, leased: str, order: str) -> bytes:
    return f"""
UPDATE {table} SET {leased}
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM {table} WHERE type = 'noop' AND status = 'ready' ORDER BY {order}
    LIMIT %(limit)b::bigint FOR UPDATE SKIP LOCKED))
RETURNING id, input::text
""".encode()


def _finish(table: str, finish: str) -> bytes:
    return f"""
UPDATE {table} AS job SET {finish}, output = given.output
FROM unnest(%(ids)b::text[], %(outputs)b::jsonb[]) AS given (id, output)
WHERE job.id = given.id AND lease_token = %(token)b::uuid AND lease_expires_at IS NOT NULL
""".encode()


def _finish_one(table: str, finish: str) -> bytes:
    return f"""
UPDATE {table} SET {finish}, output = %b::jsonb
WHERE id = %b AND lease_token = %b::uuid AND lease_expires_at IS NOT NULL RETURNING id
""".encode()


SMALL = Statements(
    "bare_job",
    f"INSERT INTO bare_job (id, type, input) SELECT * FROM {_GIVEN} RETURNING id".encode(),
    b"INSERT INTO bare_job (id, type, input) VALUES (%b, 'noop', %b::jsonb) RETURNING id",
    b"COPY bare_job (id, type, input) FROM STDIN",
    _claim("bare_job", _LEASE, "scheduled_at"),
    _finish("bare_job", _SMALL_FINISH),
    _finish_one("bare_job", _SMALL_FINISH),
    b"""
    INSERT INTO bare_job (id, type, scheduled_at, input)
    SELECT 'filled-' || lpad(n::text, 12, '0'), 'noop', clock_timestamp(), to_jsonb(n)
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
    """,
)

OWN = Statements(
    "queuert.job",
    f"""
    INSERT INTO queuert.job ({_OWN_COLUMNS})
    SELECT id, type, id, type, 'open', input FROM {_GIVEN} AS given (id, type, input) RETURNING id
    """.encode(),
    f"""
    INSERT INTO queuert.job ({_OWN_COLUMNS})
    SELECT id, 'noop', id, 'noop', 'open', input FROM (VALUES (%b, %b::jsonb)) AS given (id, input) RETURNING id
    """.encode(),
    f"COPY queuert.job ({_OWN_COLUMNS}) FROM STDIN".encode(),
    _claim(
        "queuert.job",
        f"{_LEASE}, started_at = clock_timestamp()",
        "attempt - uncounted - lease_expirations - priority, scheduled_at",
    ),
    _finish("queuert.job", _OWN_FINISH),
    _finish_one("queuert.job", _OWN_FINISH),
    b"""
    INSERT INTO queuert.job (id, type, chain_id, chain_type, chain_status, scheduled_at, input)
    SELECT id, type, id, type, 'open', clock_timestamp(), to_jsonb(n)
    FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
    CROSS JOIN LATERAL (SELECT 'filled-' || lpad(n::text, 12, '0') AS id,
        CASE %(types)s::bigint WHEN 1 THEN 'noop' ELSE 'type' || n %% %(types)s::bigint END AS type) AS named
    """,
)

FILL_FINISHED = b"""
INSERT INTO queuert.job
    (id, type, chain_id, chain_type, chain_status, status, attempt, created_at, scheduled_at, started_at, finished_at,
     chain_closed_at, lease_token, holder, input, output)
SELECT id, 'noop', id, 'noop', 'completed', 'completed', 1, at, at, at, at, at, gen_random_uuid(), 'gone', to_jsonb(n),
    to_jsonb(n)
FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
CROSS JOIN LATERAL (
    SELECT '0-filled-' || lpad(n::text, 12, '0') AS id, clock_timestamp() - interval '1 day' AS at
) AS named
"""
"""Jobs that have ended, in this library's table."""
