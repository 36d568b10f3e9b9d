"""The schema goes first: workers and clients of the version before go on while it is migrated, and beside the new ones.

The version before is the last commit whose code needs an older schema, as git has it; a source tree without git has no
other version to try.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from queuert import InProcessWorker, PostgresState, migrations
from queuert.client import AsyncClient, Client
from queuert.errors import SchemaMissingError
from queuert.state.postgres.settings import REQUIRED_REVISION
from tests.migrations import rolling

pytestmark = pytest.mark.timeout(300)

_ROOT = Path(__file__).parents[2]
_SETTINGS = "queuert/state/postgres/settings.py"
_REVISION = re.compile(r'^REQUIRED_REVISION = "(\d+)"', re.MULTILINE)
_BATCHES = 8
"""So many batches are started in each stretch of the roll-out, at least."""


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, check=True).stdout


def _commit_before() -> tuple[str, str] | None:
    """The last commit that needs an older schema than this tree, and which; None where there is none."""
    try:
        commits = _git("log", "--format=%H", "HEAD", "--", _SETTINGS).decode().split()
        newer = "HEAD"
        for commit in commits:
            found = _REVISION.search(_git("show", f"{commit}:{_SETTINGS}").decode())
            if found is None:
                return None
            if found[1] < REQUIRED_REVISION:
                return (newer, found[1]) if newer == "HEAD" else (f"{newer}^", found[1])
            newer = commit
    except (OSError, subprocess.CalledProcessError):
        return None
    return None


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The package of the version before, unpacked, and the revision that it needs."""
    found = _commit_before()
    if found is None:
        pytest.skip("this tree has no history with an older schema in it")
    commit, revision = found
    directory = tmp_path_factory.mktemp("before")
    archive = _git("archive", commit, "queuert")
    subprocess.run(["tar", "-x", "-C", str(directory)], input=archive, check=True)
    return directory, revision


class Process:
    """A worker or a client of a version."""

    def __init__(self, role: str, version: str, package: Path, dsn: str) -> None:
        self.role = role
        self._process = subprocess.Popen(
            [sys.executable, rolling.__file__, role],
            env={**os.environ, "PYTHONPATH": str(package), "VERSION": version, "PYTHONSAFEPATH": "1", "DSN": dsn},
            stdout=subprocess.PIPE,
            text=True,
        )

    def started_some(self) -> None:
        """Wait until a client has started some more chains."""
        assert self._process.stdout is not None
        for _ in range(_BATCHES):
            assert self._process.stdout.readline()

    def stop(self) -> list[str]:
        """Ask it to stop, which it must do cleanly; the ids that a client was told."""
        self._process.terminate()
        said, _ = self._process.communicate()
        assert self._process.returncode == 0, said
        lines = said.splitlines()
        return list(json.loads(lines[-1])) if self.role == "start" else []

    def close(self) -> None:
        """End it, if it has not ended."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


class Rollout:
    """A database, and processes of two versions on it."""

    def __init__(self, dsn: str, old: Path) -> None:
        self.dsn = dsn
        self._packages = {"old": old, "new": _ROOT}
        self._all: list[Process] = []
        self._connection = psycopg.connect(dsn, autocommit=True)
        self.rows("CREATE TABLE ran (job_id text, version text)")

    def begin(self, role: str, version: str) -> Process:
        """A process of a version."""
        process = Process(role, version, self._packages[version], self.dsn)
        self._all.append(process)
        return process

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        cursor = self._connection.execute(query.encode())
        return cursor.fetchall() if cursor.description else []

    def wait_for_work_of(self, version: str) -> None:
        """Wait until a worker of this version has done some more."""
        query = f"SELECT count(*) FROM ran WHERE version = '{version}'"
        [(wanted,)] = self.rows(f"SELECT count(*) + 10 FROM ran WHERE version = '{version}'")
        while self.rows(query) < [(wanted,)]:
            self.rows("SELECT pg_sleep(0.02)")

    def wait_until_all_ended(self) -> None:
        """Wait until no job is open."""
        while self.rows(
            "SELECT 1 FROM queuert.job WHERE status IN ('blocked', 'scheduled', 'ready', 'running') LIMIT 1"
        ):
            self.rows("SELECT pg_sleep(0.02)")

    def close(self) -> None:
        """End everything."""
        for process in self._all:
            process.close()
        self._connection.close()


@pytest.fixture
def rollout(bare_dsn: str, before: tuple[Path, str]) -> Iterator[Rollout]:
    """A database with the schema of the version before."""
    package, revision = before
    migrations.upgrade(bare_dsn, revision=revision)
    rollout = Rollout(bare_dsn, package)
    yield rollout
    rollout.close()


def test_the_version_before_goes_on_while_the_schema_is_migrated_and_beside_the_new_one(rollout: Rollout) -> None:
    worker, client = rollout.begin("work", "old"), rollout.begin("start", "old")
    client.started_some()
    rollout.wait_for_work_of("old")

    migrations.upgrade(rollout.dsn, lock_timeout=20.0)
    client.started_some()
    rollout.wait_for_work_of("old")

    new_client = rollout.begin("start", "new")
    new_client.started_some()
    rollout.wait_for_work_of("old")

    new_worker = rollout.begin("work", "new")
    client.started_some()
    rollout.wait_for_work_of("new")

    worker.stop()
    acknowledged = client.stop() + new_client.stop()
    rollout.wait_until_all_ended()
    new_worker.stop()

    ended = dict(rollout.rows("SELECT id, chain_status FROM queuert.job WHERE chain_index = 0"))
    assert {ended.get(id) for id in acknowledged} == {"completed"}
    assert ended.keys() == set(acknowledged)
    [(jobs, ran, once)] = rollout.rows(
        "SELECT (SELECT count(*) FROM queuert.job), count(*), count(DISTINCT job_id) FROM ran"
    )
    assert jobs == ran == once, "an effect is missing, or stands twice"
    assert rollout.rows("SELECT max(attempt), sum(lease_expirations) FROM queuert.job") == [(1, 0)]


@pytest.mark.quick
def test_the_new_version_refuses_an_old_schema_and_touches_nothing(rollout: Rollout) -> None:
    """Workers and clients alike, with an error that says what to do; the command ends with 3."""
    state = PostgresState(rollout.dsn)
    with (
        pytest.raises(SchemaMissingError, match="queuert migrate up"),
        Client(state, rolling.JOB_TYPES) as client,
    ):
        client.start_chain(rolling.double, 1)
    assert InProcessWorker(AsyncClient(state, rolling.JOB_TYPES), rolling.processors()).run() == 3
    assert rollout.rows("SELECT count(*) FROM queuert.job") == [(0,)]
