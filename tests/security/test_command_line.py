"""Secrets come by the environment: none is an argument of any process, and none is printed."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from queuert import Client, JobType, JobTypes, PostgresState
from queuert.cli import main
from queuert.errors import QueuertError
from queuert.notify.in_process import InProcessNotify
from queuert.testing.databases import with_database
from tests.support.addresses import as_user

WORD = "Rumpelstilzchen"

APPLICATION = """
import os, psutil
from queuert import JobType, JobTypes, Processors

look = JobType("look", input=str, output=list)
processors = Processors(JobTypes(look))


@processors.handles(look, executor="process")
def looking(attempt):
    own = psutil.Process()
    return [" ".join(one.cmdline()) for one in (own, own.parent())]
"""


@pytest.fixture
def address(dsn: str) -> Iterator[str]:
    """The test's database, for a login whose password is known here."""
    role = sql.Identifier(f"login_of_{conninfo_to_dict(dsn)['dbname']}")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN SUPERUSER PASSWORD {}").format(role, sql.Literal(WORD)))
        yield as_user(dsn, role._obj[0], WORD)
        connection.execute(sql.SQL("REASSIGN OWNED BY {} TO current_user").format(role))
        connection.execute(sql.SQL("DROP ROLE {}").format(role))


@pytest.mark.timeout(180)
def test_no_process_of_a_worker_shows_the_address(dsn: str, address: str, tmp_path: Path) -> None:
    """What `ps` shows of a worker, and of the process in which its handler runs."""
    (tmp_path / "app_of_the_test.py").write_text(APPLICATION, encoding="utf-8")
    look: JobType[str, list[str]] = JobType("look", input=str, output=list)
    command = [sys.executable, "-m", "queuert", "worker", "app_of_the_test:processors", "--log-json"]
    environment = {**os.environ, "QUEUERT_URL": address}
    worker = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        with Client(PostgresState(dsn), JobTypes(look)) as client:
            seen = client.start_chain(look, "x").result(100.0)
        mine = " ".join(psutil.Process(worker.pid).cmdline())
    finally:
        worker.terminate()
        log, _ = worker.communicate(timeout=60)
    assert len(seen) == 2
    assert "queuert worker" in seen[1].replace("-m ", "")
    for shown in (*seen, mine):
        assert WORD not in shown
        assert "postgresql://" not in shown
    assert WORD not in log
    assert "attempt 1 of job" in log


@pytest.mark.parametrize(
    ("url", "code"),
    [
        (f"postgresql://me:{WORD}@127.0.0.1:1/nowhere?connect_timeout=1", 3),
        (f"host=127.0.0.1 port=1 dbname=nowhere password={WORD} connect_timeout=1", 3),
        (f"postgresql://me:{WORD}@127.0.0.1:1/nowhere?nonsense=1", 2),
        (f"postgresql://me:{WORD}@[::1/nowhere", 2),
        (f"mongodb://me:{WORD}@host/db", 2),
        (f"redis://me:{WORD}@127.0.0.1:1/0?connect_timeout=1&answer_timeout=1", 3),
        (f"redis://me:{WORD}@127.0.0.1:1/0?nonsense=1", 2),
        (f"password='{WORD}", 2),
    ],
)
def test_no_message_repeats_the_password(
    url: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor does a traceback, as --debug shows it."""
    monkeypatch.setenv("QUEUERT_URL", url)
    assert main(["stats"]) == code
    captured = capsys.readouterr()
    assert WORD not in captured.out + captured.err
    with pytest.raises(QueuertError) as caught:
        main(["--debug", "stats"])
    assert WORD not in "".join(traceback.format_exception(caught.value))


def test_what_the_libraries_objects_show(address: str) -> None:
    state = PostgresState(address)
    client = Client(state, JobTypes(), notify=InProcessNotify())
    texts = [repr(one) for one in (state, client, state._settings, state.default_notify(), state.sync_store())]
    assert WORD not in " ".join(texts)
    assert with_database(address, "x") != address
