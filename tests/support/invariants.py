"""The invariants of every row of `job`, as additional check constraints of the tests' databases.

Every statement that writes a row parses each check again: all checks together would cost the start of one chain as
much as the write of its row. So only the tests' databases have them.
"""

from __future__ import annotations

import psycopg

CHECKS = {
    "job_status_known": """status IN
        ('blocked', 'scheduled', 'ready', 'running', 'continued', 'completed', 'failed', 'cancelled')""",
    "job_root_is_chain": "(chain_index = 0) = (id = chain_id)",
    "job_chain_status_on_root": "(chain_index = 0) = (chain_status IS NOT NULL)",
    "job_chain_status_known": "chain_status IN ('open', 'completed', 'failed', 'cancelled')",
    # Lists of chains rely on this.
    "job_chain_status_is_its_own": """chain_index > 0 OR status = 'continued'
        OR chain_status = CASE WHEN status IN ('completed', 'failed', 'cancelled') THEN status ELSE 'open' END""",
    "job_open_blockers_not_negative": "open_blockers >= 0",
    "job_continued_by_one": "(status = 'continued') = (continued_by IS NOT NULL)",
    "job_deduplication_on_root": "deduplication_key IS NULL OR chain_index = 0",
    "job_result_ttl_not_negative": "result_ttl >= 0",
    "job_failures_are_bounded": """CASE WHEN failures IS NULL THEN true
        WHEN jsonb_typeof(failures) <> 'array' THEN false
        ELSE jsonb_array_length(failures) BETWEEN 1 AND least(attempt, 20) END""",
    "job_expires_when_closed": "expires_at IS NULL OR chain_status <> 'open'",
}


def add_checks(dsn: str, schema: str = "queuert") -> None:
    """Add the checks to the database of a test."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for name, condition in CHECKS.items():
            connection.execute(f'ALTER TABLE "{schema}".job ADD CONSTRAINT {name} CHECK ({condition})'.encode())
