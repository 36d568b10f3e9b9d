"""The embedded servers listen where every user of the machine can reach them: they let in whoever has the address."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import redis
from psycopg import sql

from queuert.embedded import EmbeddedPostgres, EmbeddedRedis, EmbeddedServerError
from queuert.embedded.shared import shared_postgres
from tests.conftest import server_is_missing
from tests.support.addresses import as_user

pytestmark = pytest.mark.timeout(240)
NOBODY = 65534

TRY_POSTGRES = """
import encodings.idna, os, socket, sys
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
def message(text):
    return (len(text) + 4).to_bytes(4, "big") + text
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
    connection.sendall(message(b"\\0\\3\\0\\0user\\0postgres\\0database\\0postgres\\0\\0"))
    head = connection.recv(9)
    print(os.geteuid(), head[:1].decode(), int.from_bytes(head[5:9], "big"))
"""
"""Asks for a connection as the superuser; prints who did, the server's answer, and the way of authentication."""

TRY_REDIS = """
import encodings.idna, os, socket, sys
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as connection:
    connection.sendall(b"CONFIG GET dir\\r\\n")
    print(os.geteuid(), connection.recv(100).decode().split(" ")[0])
"""


def as_another_user(program: str, port: int) -> tuple[int, list[str]]:
    """What the program prints, run as nobody where this process is root."""
    done = subprocess.run(
        [sys.executable, "-SE", "-c", program, str(port)], capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    who, *said = done.stdout.split()
    assert os.geteuid() != 0 or int(who) == NOBODY
    return int(who), said


@pytest.fixture(scope="module")
def postgres() -> Iterator[EmbeddedPostgres]:
    try:
        with EmbeddedPostgres(durable=False) as server:
            yield server
    except EmbeddedServerError as error:
        server_is_missing(error)


@pytest.fixture(scope="module")
def valkey() -> Iterator[EmbeddedRedis]:
    try:
        with EmbeddedRedis(options={"masterauth": "another-secret"}) as server:
            yield server
    except EmbeddedServerError as error:
        server_is_missing(error)


def test_postgres_asks_another_user_of_the_machine_for_a_password(postgres: EmbeddedPostgres) -> None:
    _, said = as_another_user(TRY_POSTGRES, postgres.port)
    assert said == ["R", "10"]  # A request to authenticate by SASL, where 0 would be "you are in".


@pytest.mark.parametrize("password", ["", "postgres", "0" * 32])
@pytest.mark.parametrize("database", ["postgres", "template1"])
def test_postgres_refuses_who_has_no_or_another_password(
    postgres: EmbeddedPostgres, password: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSFILE", "/nonexistent")
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(as_user(postgres.dsn(database), "postgres", password))


def test_postgres_refuses_replication_without_a_password(postgres: EmbeddedPostgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(as_user(postgres.dsn(), "postgres", ""), replication="database")


def test_redis_refuses_another_user_of_the_machine(valkey: EmbeddedRedis) -> None:
    _, said = as_another_user(TRY_REDIS, valkey.port)
    assert said == ["-NOAUTH"]


def test_redis_refuses_another_password(valkey: EmbeddedRedis) -> None:
    with redis.Redis.from_url(valkey.url(password="wrong")) as client, pytest.raises(redis.AuthenticationError):
        client.ping()


def command_lines() -> str:
    """The arguments of all processes of the machine, as everybody can see them."""
    texts = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            texts.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(texts)


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
def test_no_argument_log_or_repr_has_a_password(postgres: EmbeddedPostgres, valkey: EmbeddedRedis) -> None:
    shown = command_lines()
    assert str(postgres.data_dir) in shown
    assert f"127.0.0.1:{valkey.port}" in shown
    texts = [shown, postgres.log_tail(10_000), valkey.log_tail(10_000), repr(postgres), repr(valkey)]
    for secret in (postgres.password, valkey.password, "another-secret"):
        assert len(secret) > 8
        assert not [text for text in texts if secret in text]


def test_what_holds_a_password_is_readable_for_its_owner_alone(
    postgres: EmbeddedPostgres, valkey: EmbeddedRedis
) -> None:
    for server in (postgres, valkey):
        found = [path for path in server.data_dir.glob("queuert.*") if server.password in path.read_text()]
        assert found
        assert all(path.stat().st_mode & 0o077 == 0 for path in found)
        assert server.data_dir.stat().st_mode & 0o077 == 0
    assert not [path for path in postgres.data_dir.parent.iterdir() if path.is_file() and is_secret(path, postgres)]


def is_secret(path: Path, server: EmbeddedPostgres) -> bool:
    """Whether the file beside the data holds the password."""
    return server.password.encode() in path.read_bytes()


def test_each_server_has_a_password_of_its_own(postgres: EmbeddedPostgres) -> None:
    with EmbeddedPostgres(durable=False) as other, EmbeddedRedis() as third, EmbeddedRedis() as fourth:
        assert len({postgres.password, other.password, third.password, fourth.password}) == 4


def test_a_directory_keeps_its_password_for_the_next_process(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "data") as first:
        address = urlsplit(first.dsn())
    with EmbeddedPostgres(tmp_path / "data") as second:
        assert urlsplit(second.dsn()).password == address.password
        psycopg.connect(second.dsn()).close()
    assert urlsplit(shared_postgres(tmp_path / "data")).password == address.password


def test_a_directory_that_let_everybody_in_is_closed_to_others(tmp_path: Path) -> None:
    """As versions before this one made it: without a password, and with one of the user's own tables in it."""
    data = tmp_path / "data"
    with EmbeddedPostgres(data) as before, psycopg.connect(before.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE things AS SELECT 42 AS answer")
        connection.execute("ALTER ROLE postgres PASSWORD NULL")
    (tmp_path / "data" / "queuert.password").unlink()
    (tmp_path / "data" / "pg_hba.conf").write_text("local all all trust\nhost all all 127.0.0.1/32 trust\n")
    with EmbeddedPostgres(tmp_path / "data") as server:
        _, said = as_another_user(TRY_POSTGRES, server.port)
        assert said == ["R", "10"]
        with psycopg.connect(server.dsn()) as connection:
            assert connection.execute("SELECT answer FROM things").fetchone() == (42,)
        password = server.password
    with EmbeddedPostgres(tmp_path / "data") as again:
        assert again.password == password
        psycopg.connect(again.dsn()).close()


def test_a_role_that_is_made_there_needs_a_password_too(postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE without_password LOGIN"))
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(as_user(postgres.dsn(), "without_password"))
