"""The embedded Postgres: its life, its data, and its end."""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest

from queuert.embedded import EmbeddedPostgres, EmbeddedServerError, identity, server
from queuert.embedded.binaries import PostgresBinaries, find_postgres
from queuert.embedded.ports import HOST, ReservedPort
from queuert.embedded.workspace import Workspace, processes_in
from tests.conftest import StartPostgres

pytestmark = pytest.mark.timeout(240)

WAIT = 100
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")

OWNER = """
import sys
from queuert.embedded import EmbeddedPostgres

if __name__ == "__main__":
    server = EmbeddedPostgres(settings={"fsync": "off"}).start()
    print(server.pid, server.data_dir, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True, scope="module")
def _needs_postgres(postgres_server: str) -> None:
    """Without Postgres these are skipped, or fail, as everywhere."""


@pytest.fixture
def temporary(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for temporary files of this test's own, in this process too.

    Whoever starts a server removes what the dead have left in the directory that all share, at any moment.
    """
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    return temporary


@pytest.fixture
def owner(temporary: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process with a server of its own; it ends when its input does."""
    command = [sys.executable, "-c", OWNER]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        try:
            yield process
            process.stdin.close()
            process.wait(WAIT)
        finally:
            process.kill()


def server_of(owner: subprocess.Popen[str]) -> tuple[int, Path]:
    assert owner.stdout is not None
    pid, data_dir = owner.stdout.readline().split()
    return int(pid), Path(data_dir)


def wait_for_end(process: int) -> None:
    """Wait for a process that is no child of ours, by its descriptor: a zombie has ended too."""
    try:
        assert select.select([process], [], [], WAIT)[0], "the process goes on"
    finally:
        os.close(process)


def query(server: EmbeddedPostgres, statement: LiteralString) -> object:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        cursor = connection.execute(statement)
        row = cursor.fetchone() if cursor.description else None
        return None if row is None else row[0]


def test_settings_reach_the_server(private_postgres: StartPostgres) -> None:
    server = private_postgres(durable=False, settings={"max_connections": 17, "application_name": "it's me"})
    assert query(server, "show max_connections") == "17"
    assert query(server, "show application_name") == "it's me"
    assert query(server, "show fsync") == "off"
    assert query(server, "show server_encoding") == "UTF8"


@pytest.mark.fault
def test_data_outlive_a_crash(private_postgres: StartPostgres) -> None:
    server = private_postgres()
    assert query(server, "show fsync") == "on"
    query(server, "create table things as select 42 as answer")
    port, pid = server.port, server.pid
    server.kill()
    assert not server.running
    server.start()
    assert (server.port, query(server, "select answer from things")) == (port, 42)
    assert server.pid != pid
    server.restart()
    assert (server.port, query(server, "select answer from things")) == (port, 42)


@pytest.mark.fault
def test_restarts_with_a_busy_orphan(private_postgres: StartPostgres) -> None:
    """A backend that computes does not notice at once that its postmaster is gone."""
    server = private_postgres()
    with contextlib.closing(psycopg.connect(server.dsn(), autocommit=True)) as connection:
        connection.pgconn.send_query(b"select count(*) from generate_series(1, 2000000)")
        server.kill()
        server.start()
    assert query(server, "select 1") == 1


def test_a_temporary_directory_goes_with_the_server() -> None:
    with EmbeddedPostgres(durable=False) as server:
        directory = server.data_dir
        assert directory.is_dir()
    assert not directory.parent.exists()


def test_a_given_directory_stays(tmp_path: Path) -> None:
    directory = tmp_path / "with a space" / "data"
    with EmbeddedPostgres(directory) as first:
        query(first, "create table things as select 42 as answer")
    with EmbeddedPostgres(directory) as second:
        assert query(second, "select answer from things") == 42
    assert (directory / "PG_VERSION").exists()


def test_starting_and_stopping_twice_does_nothing(private_postgres: StartPostgres) -> None:
    server = private_postgres(durable=False)
    pid = server.pid
    assert server.start().pid == pid
    server.stop()
    server.stop()
    with pytest.raises(EmbeddedServerError, match="not running"):
        _ = server.pid


def test_a_failed_start_shows_the_log() -> None:
    failing = EmbeddedPostgres(durable=False, settings={"max_connections": "nonsense"})
    with pytest.raises(EmbeddedServerError, match="max_connections"):
        failing.start()
    failing.close()


def test_a_directory_in_use_is_refused(private_postgres: StartPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_ORPHAN_SECONDS", 0.0)
    first = private_postgres(durable=False)
    second = EmbeddedPostgres(first.data_dir)
    with pytest.raises(EmbeddedServerError, match="stop that process"):
        second.start()
    assert query(first, "select 1") == 1


def test_a_taken_port_is_an_error_when_it_was_requested_for(private_postgres: StartPostgres) -> None:
    taken = private_postgres(durable=False).port
    other = EmbeddedPostgres(durable=False, port=taken)
    with pytest.raises(EmbeddedServerError, match="Address already in use"):
        other.start()
    other.close()


def test_a_taken_port_of_our_own_choice_is_chosen_again(
    private_postgres: StartPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = [private_postgres(durable=False).port]

    class TakenAtFirst(ReservedPort):
        def __init__(self) -> None:
            super().__init__()
            if taken:
                self.number = taken.pop()

    monkeypatch.setattr(server, "ReservedPort", TakenAtFirst)
    with EmbeddedPostgres(durable=False) as other:
        assert query(other, "select 1") == 1
    assert taken == []


@LINUX
def test_nobody_takes_the_port_of_a_server_that_is_down(private_postgres: StartPostgres) -> None:
    down = private_postgres(durable=False)
    port = down.port
    down.kill()
    with socket.socket() as listener, pytest.raises(OSError, match="Address already in use"):
        listener.bind((HOST, port))
    down.start()
    assert down.port == port
    assert query(down, "select 1") == 1


@LINUX
@pytest.mark.fault
def test_a_zombie_with_the_old_pid_does_not_prevent_a_start(private_postgres: StartPostgres) -> None:
    server = private_postgres(durable=False)
    server.kill()
    with subprocess.Popen(["true"]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        pid_file = server.data_dir / "postmaster.pid"
        _, _, rest = pid_file.read_text().partition("\n")
        pid_file.write_text(f"{zombie.pid}\n{rest}")
        server.start()
    assert query(server, "select 1") == 1


@LINUX
@pytest.mark.fault
def test_a_stranger_with_the_old_pid_does_not_prevent_a_start(private_postgres: StartPostgres) -> None:
    server = private_postgres(durable=False)
    server.kill()
    pid_file = server.data_dir / "postmaster.pid"
    _, _, rest = pid_file.read_text().partition("\n")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as stranger:
        pid_file.write_text(f"{stranger.pid}\n{rest}")
        server.start()
    assert query(server, "select 1") == 1


@LINUX
@pytest.mark.fault
def test_ends_with_a_killed_owner_and_is_cleaned_up_by_the_next(owner: subprocess.Popen[str]) -> None:
    pid, data_dir = server_of(owner)
    process = os.pidfd_open(pid)  # while it is there: nobody can wait for one that has ended and was reaped
    owner.send_signal(signal.SIGKILL)
    wait_for_end(process)
    assert data_dir.exists()
    assert server.wait_until(lambda: not any(processes_in(data_dir)), WAIT)
    # The server ends with the owner's thread that has started it; others may keep the lock for a moment longer.
    owner.wait(WAIT)

    def is_removed() -> bool:
        # Another process that looks at the same time has the lock for that moment, too, or removes what is in it.
        Workspace(in_memory=False).remove()
        return not data_dir.parent.exists()

    assert server.wait_until(is_removed, WAIT)


@LINUX
def test_ends_with_an_owner_that_just_ends(owner: subprocess.Popen[str]) -> None:
    pid, data_dir = server_of(owner)
    assert owner.stdin is not None
    owner.stdin.close()
    assert owner.wait(WAIT) == 0
    assert not Path(f"/proc/{pid}/cwd").exists()
    assert not data_dir.exists()


def test_a_living_owner_keeps_its_directory(owner: subprocess.Popen[str]) -> None:
    _, data_dir = server_of(owner)
    Workspace(in_memory=False).remove()
    assert data_dir.exists()


def test_outlives_the_thread_that_started_it() -> None:
    server = EmbeddedPostgres(durable=False)
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    with server:
        assert query(server, "select 1") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_root_falls_back_to_nobody_with_a_private_copy(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Namespaces are not allowed, and the installation cannot be read by others."""
    original = find_postgres()

    def can_run(binaries: object, who: str) -> bool:
        return who == "nobody" and binaries != original

    monkeypatch.setattr(identity, "can_run", can_run)
    identity.choose_identity.cache_clear()
    try:
        with EmbeddedPostgres() as server:
            assert query(server, "select 1") == 1
            assert Path(f"/proc/{server.pid}").stat().st_uid != 0
        copies = list(temporary.glob("queuert-pg-*"))
        identity.choose_identity.cache_clear()
        identity.choose_identity(original)
        assert list(temporary.glob("queuert-pg-*")) == copies
    finally:
        identity.choose_identity.cache_clear()


@pytest.mark.parametrize(
    ("user", "allowed", "expected"),
    [
        (os.getuid() or 65534, "", "self"),
        (0, "namespace nobody", "namespace"),
        (0, "nobody", "nobody"),
        (4000000000, "namespace", "namespace"),
        (4000000000, "", "with a name"),
        (0, "", "as an ordinary user"),
    ],
)
def test_an_identity_is_found_or_its_want_explained(
    user: int, allowed: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation = PostgresBinaries(tmp_path / "bin")
    monkeypatch.setattr(identity, "can_run", lambda _, who: who in allowed)
    monkeypatch.setattr(identity, "private_copy", lambda binaries: binaries)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    if " " in expected:
        with pytest.raises(EmbeddedServerError, match=expected):
            identity.choose_identity(installation)
    else:
        assert identity.choose_identity(installation) == (expected, installation)
