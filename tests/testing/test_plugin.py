"""The pytest plugin, in a pytest of its own, as in a program that uses queuert."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from queuert.testing.databases import with_database
from tests.support.addresses import as_user, password_of

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 120.0
"""Seconds: an upper bound for a run of pytest, with a server of its own that it starts and migrates."""

pytestmark = pytest.mark.timeout(3 * LIMIT)

TESTS = """
import psycopg
import pytest
from queuert import Client, JobType, JobTypes
from queuert.errors import JobIdConflictError

work = JobType("work", input=str, output=str)

@pytest.mark.parametrize("n", range(3))
def test_each_has_an_empty_store(queuert_state, queuert_dsn, n):
    with Client(queuert_state, JobTypes(work)) as client, psycopg.connect(queuert_dsn) as connection:
        print("database", connection.info.dbname)
        client.start_chain(work, "a", id="the same", connection=connection)
        connection.commit()
        with pytest.raises(JobIdConflictError):
            client.start_chain(work, "a", id="the same")
        assert [event.kind for event in client.list_events()] == ["created"]
        assert client.get_event_log().level == "all"
"""

PREPARED = """
import psycopg
import pytest

LEFT_OPEN = []

@pytest.fixture(scope="session")
def queuert_prepare():
    def prepare(dsn):
        connection = psycopg.connect(dsn, autocommit=True)
        connection.execute("create table if not exists mine (n int)")
        LEFT_OPEN.append(connection)  # as the pool of an engine does
    return prepare

@pytest.mark.parametrize("n", range(2))
def test_own_tables_are_there(queuert_dsn, n):
    with psycopg.connect(queuert_dsn) as connection:
        connection.execute("insert into mine values (1)")
"""


def run(where: Path, *arguments: str, dsn: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {name: value for name, value in os.environ.items() if name != "QUEUERT_TEST_DSN"}
    given = {} if dsn is None else {"QUEUERT_TEST_DSN": dsn}
    without = [option for name in ("cacheprovider", "asyncio", "randomly", "valkey") for option in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", "-p", "pytest_queuert", *without, "-W", "error"]
    return subprocess.run(
        [*command, *arguments],
        cwd=where,
        env={**known, "PYTHONPATH": str(ROOT), **given, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )


def passed(done: subprocess.CompletedProcess[str], count: int) -> bool:
    assert f"{count} passed" in done.stdout, done.stdout + done.stderr
    return done.returncode == 0


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The tests of a program that uses queuert."""
    (tmp_path / "test_program.py").write_text(TESTS)
    (tmp_path / "test_prepared.py").write_text(PREPARED)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def databases(dsn: str) -> set[str]:
    with psycopg.connect(dsn) as connection:
        return {row[0] for row in connection.execute("select datname from pg_database")}


def test_on_a_server_that_is_given(program: Path, bare_dsn: str) -> None:
    """By the variable, or by the setting; what was made is gone afterwards."""
    done = run(program, "test_program.py", "-s", dsn=bare_dsn)
    assert passed(done, 3)
    used = set(re.findall(r"database (\w+)", done.stdout))
    assert len(used) == 3
    assert not used & databases(bare_dsn)
    (program / "pytest.ini").write_text(f"[pytest]\nqueuert_test_dsn = {bare_dsn}\n")
    assert passed(run(program, "test_prepared.py", "--strict-config"), 2)
    with psycopg.connect(bare_dsn) as connection:
        found = connection.execute("select count(*) from pg_tables where schemaname !~ '^(pg_|information)'").fetchone()
    assert found == (0,), "nothing was written to the database itself"


def test_on_an_embedded_server(program: Path) -> None:
    assert passed(run(program, "test_program.py"), 3)


def test_for_a_role_that_may_not_create_databases(program: Path, bare_dsn: str) -> None:
    """All tests share a schema, which is emptied after each and dropped at the end."""
    name = bare_dsn.rpartition("/")[2]
    role = f"{name}_small"
    with psycopg.connect(bare_dsn, autocommit=True) as connection:
        made = sql.SQL("create role {} login password {}").format(sql.Identifier(role), password_of(bare_dsn))
        connection.execute(made)
        connection.execute(f'grant create on database "{name}" to "{role}"'.encode())
        connection.execute(f'grant create, usage on schema public to "{role}"'.encode())
        small = as_user(with_database(bare_dsn, name), role)
        assert passed(run(program, dsn=small), 5)
        schemas = connection.execute("select nspname from pg_namespace where nspname ~ 'queuert'").fetchall()
        assert schemas == []
        connection.execute(f'drop owned by "{role}" cascade'.encode())
        connection.execute(f'drop role "{role}"'.encode())


def test_without_a_server_the_fixture_says_what_to_do(program: Path) -> None:
    done = run(program, "test_program.py", QUEUERT_PG_BINDIR="/nowhere")
    assert "no Postgres for queuert_database: set QUEUERT_TEST_DSN, or mend this" in done.stdout
    assert done.returncode == 1


def test_loading_it_imports_nothing_of_the_package() -> None:
    """pytest loads it at every start, also of programs that need it in no test."""
    code = (
        "import sys, pytest_queuert; print({name.partition('.')[0] for name in sys.modules} & {'queuert', 'psycopg'})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_it_is_an_entry_point_of_its_own_name() -> None:
    """So that naming it with ``-p``, or in ``pytest_plugins``, does not load it twice."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {"pytest_queuert": "pytest_queuert"}
    shipped = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert shipped["pytest_queuert.py"] == "pytest_queuert.py"
