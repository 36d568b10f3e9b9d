"""pgbench, the server's own tool: a second ceiling, with no Python in it, on the table of the bare one.

Its variables hold what one statement returned and the next one is given. Tokens are made by the server.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks.child import Meter, Request, serve
from benchmarks.contestants import bare_postgres
from queuert.embedded.binaries import SYSTEM_POSTGRES, find_postgres

_ONE = """
INSERT INTO bare_job (id, type, input)
VALUES (:client_id || '-' || extract(epoch FROM clock_timestamp()), 'noop', '1') RETURNING id;
"""

_FUSED = """
WITH done AS (
    UPDATE bare_job SET status = 'completed', output = given.output, finished_at = clock_timestamp(),
        lease_expires_at = NULL
    FROM unnest(:ids::text[], :outputs::jsonb[]) AS given (id, output)
    WHERE bare_job.id = given.id AND lease_token = :token::uuid AND lease_expires_at IS NOT NULL
),
following AS MATERIALIZED (SELECT gen_random_uuid() AS token),
claimed AS (
    UPDATE bare_job SET status = 'running', attempt = attempt + 1, lease_token = following.token, holder = 'bare',
        lease_expires_at = clock_timestamp() + interval '60 seconds'
    FROM following
    WHERE bare_job.ctid = ANY (ARRAY(
        SELECT ctid FROM bare_job WHERE type = 'noop' AND status = 'ready' ORDER BY scheduled_at
        LIMIT :batch::bigint FOR UPDATE SKIP LOCKED))
    RETURNING id, input
)
SELECT coalesce(array_agg(id), '{}') AS ids, coalesce(array_agg(input), '{}') AS outputs,
    (SELECT token FROM following) AS token
FROM claimed \\gset
"""

_NOTHING = {"ids": "{}", "outputs": "{}", "token": "00000000-0000-0000-0000-000000000000"}


def start_single(request: Request) -> dict[str, float]:
    """One row a statement, one after the other."""
    return _run(request, _ONE, request.jobs, {})


def drain(request: Request) -> dict[str, float]:
    """The statement that completes a batch and claims the next."""
    batch = int(request.option("batch", 100))
    answer = _run(request, _FUSED, -(-request.jobs // batch) + 1, {**_NOTHING, "batch": str(batch)})
    with psycopg.connect(request.server) as connection:
        row = connection.execute("select count(*) from bare_job where status <> 'completed'").fetchone()
    if row is None or row[0] != 0:
        raise SystemExit(f"not all jobs have ended: {row}")
    return answer


def _run(request: Request, script: str, transactions: int, variables: dict[str, str]) -> dict[str, float]:
    """Time it as pgbench does: without the time that the connection took."""
    parts = conninfo_to_dict(request.server)
    # Others can see arguments.
    environment = {**os.environ, "PGPASSWORD": str(parts.pop("password", ""))}
    address = make_conninfo("", **parts)
    defined = [f"-D{name}={value}" for name, value in variables.items()]
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script)
        file.flush()
        command = [str(_program()), "-n", "-M", "prepared", "-c1", f"-t{transactions}", "-f", file.name, *defined]
        with Meter(request.jobs, children=True) as meter:
            reported = subprocess.run([*command, address], capture_output=True, text=True, check=False, env=environment)
    found = re.search(r"tps = ([\d.]+)", reported.stdout)
    if reported.returncode != 0 or found is None:
        raise SystemExit(f"pgbench failed: {reported.stderr.strip()}")
    seconds = transactions / float(found[1])
    answer = {**meter.answer(), "rate": request.jobs / seconds, "seconds": seconds}
    del answer["rss_mib"]  # That of the program that started it.
    return answer


def _program() -> Path:
    """Beside the server, of the system's packages, or on the PATH."""
    found = shutil.which("pgbench")
    candidates = [find_postgres().bindir / "pgbench", *sorted(SYSTEM_POSTGRES.glob("*/bin/pgbench"), reverse=True)]
    for path in [*candidates, *([Path(found)] if found else [])]:
        if path.exists():
            return path
    raise SystemExit("absent: there is no pgbench here")


if __name__ == "__main__":
    serve(
        {
            "prepare": bare_postgres.prepare,
            "load": bare_postgres.load,
            "start_single": start_single,
            "drain": drain,
        }
    )
