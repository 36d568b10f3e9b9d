"""Clients by address: each kind of store, its options, and what is said of addresses that are not valid."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from psycopg.conninfo import conninfo_to_dict

from queuert import AsyncClient, Client, InProcessWorker, JobType, JobTypes, PostgresState, Processors, migrations
from queuert.embedded import EmbeddedServerError
from queuert.errors import ChainNotFoundError, ConfigurationError, SchemaMissingError, UnsuitableServerError
from queuert.notify import InProcessNotify
from queuert.observability.events import ChainStarted
from queuert.state.adapter import StateAdapter
from queuert.testing.events import EventLog
from queuert.urls import postgres_from_url, state_from_url
from tests.conftest import StartRedis
from tests.support.waiting import WAIT

work = JobType("work", input=int, output=int)
JOB_TYPES = JobTypes(work)

SECRET = "hunter2"


def starts_and_finds(url: str) -> None:
    """Both kinds of client of the address find what the other has started."""
    with Client.from_url(url, JOB_TYPES) as client:
        chain = client.start_chain(work, 1)
        assert client.get_chain(chain.id, work).id == chain.id
        with pytest.raises(ChainNotFoundError):
            client.get_chain("another")


async def runs(url: str) -> None:
    """A worker of the address runs what its client has started."""
    processors = Processors(JOB_TYPES)
    processors.handles(work)(lambda attempt: attempt.input + 1)
    async with AsyncClient.from_url(url, JOB_TYPES) as client, InProcessWorker(client, processors):
        chain = await client.start_chain(work, 1)
        assert await chain.result(timeout=WAIT) == 2


# --- Postgres ---------------------------------------------------------------------------------------------------------


async def test_postgres(dsn: str) -> None:
    starts_and_finds(dsn)
    await runs(dsn.replace("postgresql://", "postgres://"))


def test_a_schema_of_postgres(dsn: str) -> None:
    migrations.upgrade(dsn, schema="other")
    starts_and_finds(f"{dsn}?schema=other&application_name=from%20url")
    with pytest.raises(SchemaMissingError):
        Client.from_url(f"{dsn}?schema=missing", JOB_TYPES).open()


def test_a_connection_string_of_libpq_will_do(dsn: str) -> None:
    parts = conninfo_to_dict(dsn)
    starts_and_finds(" ".join(f"{name}={value}" for name, value in parts.items()))


def test_the_arguments_of_the_class(dsn: str) -> None:
    log, notify = EventLog(), InProcessNotify()
    with Client.from_url(dsn, JOB_TYPES, notify=notify, observability=log, max_connections=2) as client:
        assert client.notify is notify
        assert client.job_types is JOB_TYPES
        client.start_chain(work, 1)
        assert len(log.of(ChainStarted)) == 1


def test_a_subclass_stays_one(dsn: str) -> None:
    class Mine(Client):
        pass

    assert type(Mine.from_url(dsn, JOB_TYPES)) is Mine


@pytest.mark.parametrize(
    ("url", "dsn", "schema"),
    [
        ("postgresql://h/d", "postgresql://h/d", "queuert"),
        ("Postgres://h/D?schema=s", "postgres://h/D", "s"),
        (
            "postgresql://u:p%3Fw@h1:1,h2:2/d?sslmode=require&schema=s&application_name=a%20b",
            "postgresql://u:p%3Fw@h1:1,h2:2/d?sslmode=require&application_name=a%20b",
            "s",
        ),
        ("host=h password='a?b=c'", "host=h password='a?b=c'", "queuert"),
        ("host=h password='a://b'", "host=h password='a://b'", "queuert"),
    ],
)
def test_what_is_libpqs_is_left_to_libpq(url: str, dsn: str, schema: str) -> None:
    assert postgres_from_url(url) == (dsn, schema)


def test_options_may_be_given_apart(dsn: str) -> None:
    migrations.upgrade(dsn, schema="other")
    state = state_from_url(dsn, schema="other", answer_timeout="5", prepare_threshold="none")
    assert isinstance(state, PostgresState)
    assert state.schema == "other"
    with Client(state, JOB_TYPES) as client:
        client.start_chain(work, 1)


# --- Redis ------------------------------------------------------------------------------------------------------------


async def test_redis(redis_url: str) -> None:
    starts_and_finds(redis_url)
    await runs(f"{redis_url}?namespace=shop&answer_timeout=5")


def test_namespaces_of_redis(redis_url: str) -> None:
    with Client.from_url(f"{redis_url}?namespace=one", JOB_TYPES) as one:
        chain = one.start_chain(work, 1)
        with Client.from_url(f"{redis_url}?namespace=two", JOB_TYPES) as two, pytest.raises(ChainNotFoundError):
            two.get_chain(chain.id)


def test_redis_that_is_to_flush_before_it_answers(redis_url: str) -> None:
    starts_and_finds(f"{redis_url}?wait_for_flush=no")
    with pytest.raises(UnsuitableServerError, match="appendonly"):
        Client.from_url(f"{redis_url}?wait_for_flush=yes", JOB_TYPES).open()


def test_redis_by_a_unix_socket(private_redis: StartRedis, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("s") / "redis.sock"
    password = private_redis(options={"unixsocket": str(path)}).password
    starts_and_finds(f"unix://:{password}@{path}?db=1")


# --- SQLite -----------------------------------------------------------------------------------------------------------


async def test_sqlite_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    starts_and_finds("sqlite:///queue.db")
    assert (tmp_path / "queue.db").exists()
    starts_and_finds(f"sqlite:///{tmp_path}/absolute.db?answer_timeout=5")
    assert (tmp_path / "absolute.db").exists()
    await runs(f"sqlite:///{quote('a name ?#%.db')}")
    assert (tmp_path / "a name ?#%.db").exists()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:"])
async def test_sqlite_in_memory(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    starts_and_finds(url)
    await runs(url)
    assert list(tmp_path.iterdir()) == []


# --- a server of one's own --------------------------------------------------------------------------------------------

EMBEDDED = """
import sys
from queuert import Client, JobType, JobTypes
from queuert.embedded import shared

work = JobType("work", input=int, output=int)
with Client.from_url(sys.argv[1], JobTypes(work)) as client, Client.from_url(sys.argv[1], JobTypes(work)) as other:
    chain = client.start_chain(work, 1)
    assert other.get_chain(chain.id, work).id == chain.id
    (running,) = shared._running.values()
    print(client.list_chains(limit=100).items.__len__(), running.server.pid, running.server.data_dir)
"""


def embedded(url: str, cwd: Path) -> tuple[int, int, Path]:
    """Run a program on the address: how many chains it found, its server's id, and where that kept its data."""
    done = subprocess.run(
        [sys.executable, "-c", EMBEDDED, url],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(Path.cwd()), *sys.path]))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    chains, pid, path = done.stdout.split()
    return int(chains), int(pid), Path(path)


@pytest.mark.timeout(300)
def test_an_embedded_postgres_goes_with_its_process(tmp_path: Path) -> None:
    chains, pid, path = embedded("embedded://", tmp_path)
    assert chains == 1
    assert not Path(f"/proc/{pid}").exists()
    assert not path.exists()


@pytest.mark.timeout(300)
def test_an_embedded_postgres_that_is_kept(tmp_path: Path) -> None:
    relative, absolute = "embedded:///data?schema=mine", f"embedded:///{tmp_path}/data?schema=mine"
    assert [embedded(url, tmp_path)[0] for url in (relative, absolute)] == [1, 2]
    assert (tmp_path / "data" / "PG_VERSION").exists()


def test_a_directory_that_is_in_use(private_postgres: Any) -> None:
    server = private_postgres()
    with pytest.raises(EmbeddedServerError, match="stop that process"):
        state_from_url(f"embedded:///{server.data_dir}")


# --- what is not valid ----------------------------------------------------------------------------------------------


def refusal(make: Callable[[], object]) -> str:
    with pytest.raises(ConfigurationError) as raised:
        make()
    assert SECRET not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize(
    "url", ["", "queue.db", f"me:{SECRET}@host/db", f"://{SECRET}", f"mysql://me:{SECRET}@host/db", "file:///queue.db"]
)
def test_an_unknown_scheme_is_reported_what_is_known(url: str) -> None:
    message = refusal(lambda: state_from_url(url))
    for scheme in ("postgresql://", "redis://", "sqlite://", "embedded://"):
        assert scheme in message


def test_a_driver_in_the_scheme_is_left_out() -> None:
    assert "leave out" in refusal(lambda: state_from_url(f"postgresql+psycopg://me:{SECRET}@host/db"))


@pytest.mark.parametrize(
    ("url", "named"),
    [
        (f"postgresql://me:{SECRET}@host/db?shema=s", "schema"),
        (f"redis://me:{SECRET}@host?schema=s", "namespace"),
        (f"redis://me:{SECRET}@host?decode_responses=yes", "namespace"),
        ("sqlite:///queue.db?mode=ro", "answer_timeout"),
        ("embedded://?namespace=n", "schema"),
    ],
)
def test_an_unknown_option_is_reported_what_is_known(url: str, named: str) -> None:
    assert named in refusal(lambda: state_from_url(url))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://host/db?answer_timeout=soon",
        "postgresql://host/db?answer_timeout=0",
        "postgresql://host/db?prepare_threshold=-1",
        "postgresql://host/db?schema=a&schema=b",
        'postgresql://host/db?schema=a"b',
        f"postgresql://me:{SECRET}@[host/db",
        f"host=h password={SECRET} nonsense=1",
        f"redis://me:{SECRET}@host:port/0",
        f"redis://me:a?{SECRET}@host/0",
        f"redis://me:{SECRET}@host?ssl_cert_reqs=none",
        "redis://host?namespace=%7B",
        "redis://host?connect_timeout=never",
        "redis://host?wait_for_flush=1",
        "sqlite://queue.db",
        "sqlite://host/queue.db",
        "embedded://data",
    ],
)
def test_an_address_that_makes_no_sense(url: str) -> None:
    assert refusal(lambda: state_from_url(url))


@pytest.mark.parametrize("url", ["redis://host", "sqlite://", "unix:///socket"])
def test_only_postgres_has_migrations(url: str) -> None:
    assert "migrations" in refusal(lambda: postgres_from_url(url))


def test_a_package_that_is_missing_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("queuert.state.redis", "queuert.notify.redis"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    assert "pip install 'queuert[redis]'" in refusal(lambda: state_from_url("redis://localhost"))


def test_no_adapter_is_imported_before_it_is_requested_for() -> None:
    program = (
        "import sys, queuert, queuert.urls; queuert.Client.from_url('sqlite://', queuert.JobTypes());"
        "print([name for name in ('redis', 'alembic', 'queuert.embedded') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("url", [f"postgresql://me:{SECRET}@host/db", f"redis://me:{SECRET}@host"])
def test_a_password_is_not_shown(url: str) -> None:
    state: StateAdapter = state_from_url(url)
    assert SECRET not in repr(state)
    assert SECRET not in repr(state.default_notify())


@pytest.mark.parametrize("rest", ["?secret=word@host/db", "?secret@host/db"])
def test_what_may_be_the_rest_of_a_password_is_not_shown(rest: str) -> None:
    message = refusal(lambda: state_from_url(f"postgresql://app:abc{rest}"))
    assert "secret" not in message
    assert "write %3F for a ? in a password" in message


# --- the class with the address of a URL ------------------------------------------------------------------------------


def test_the_class_reads_the_schema_of_an_address(dsn: str) -> None:
    assert PostgresState(f"{dsn}?schema=billing&connect_timeout=3").schema == "billing"
    assert PostgresState(f"{dsn}?schema=billing", schema="billing").schema == "billing"
    assert PostgresState(dsn).schema == "queuert"
    with Client(PostgresState(f"{dsn}?schema=queuert&connect_timeout=3"), JobTypes()) as client:
        assert client.count_jobs() == []
    with pytest.raises(ConfigurationError, match="option 'schema' must have one value, got two"):
        PostgresState(f"{dsn}?schema=billing", schema="shop")


def test_the_class_says_of_a_driver_in_the_scheme_to_leave_it_out() -> None:
    for address in ("postgresql+psycopg://app@db/app", "postgresql+asyncpg://app@db/app?schema=billing"):
        with pytest.raises(ConfigurationError, match=r"leave out the driver after \+"):
            PostgresState(address)
