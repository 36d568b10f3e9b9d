"""The SQL, one statement a file in ``sql/``, read once and bound to a schema."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from queuert.migrations import check_schema_name


class Statements:
    """All statements of one schema, as bytes for the driver. A file ``sql/claim.sql`` is the attribute ``claim``."""

    def __init__(self, schema: str) -> None:
        self.schema = check_schema_name(schema)
        for name, text in _texts().items():
            setattr(self, name, text.replace("{schema}", f'"{schema}"').encode())

    start_jobs: bytes
    lock_rows: bytes
    add_blockers: bytes
    unblock: bytes
    claim: bytes
    renew: bytes
    release: bytes
    release_claim: bytes
    finish: bytes
    hold: bytes
    reap: bytes
    fail_expired: bytes
    lease_states: bytes
    next_due: bytes
    get_jobs: bytes
    get_chains: bytes
    get_blockers: bytes
    counts: bytes
    notify: bytes
    schema_revision: bytes


@cache
def _texts() -> dict[str, str]:
    folder = files("queuert.state.postgres") / "sql"
    return {
        entry.name.removesuffix(".sql"): entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".sql")
    }
