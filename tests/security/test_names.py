"""Names that become part of SQL, of channels or of keys: what is no plain name is refused before anything is sent."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from queuert import PostgresState, migrations
from queuert.cli import main
from queuert.errors import QueuertError
from queuert.notify.postgres import PostgresNotify
from queuert.notify.redis import RedisNotify
from queuert.spark.errors import SparkOptionError
from queuert.spark.options import ConnectionOptions, WriteOptions, parse_options
from queuert.spark.read.options import ReadOptions
from queuert.state.postgres.roles import Role, roles_sql
from queuert.state.postgres.statements import Statements
from queuert.state.redis import RedisState
from queuert.state.redis.settings import key_prefix
from queuert.urls import postgres_from_url, state_from_url

DSN = "postgresql://nobody@127.0.0.1:1/nowhere"
PIECES = [
    '"', "'", "''", '""', ";", "--", "/*", "*/", "\\", "\x00", "\n", "\r", "\t", " ", "$$", "%s", "%(x)s", "{schema}",
    "{}",
    "é", "\u202e", "\ufeff", "\ud800", "A", "-", ".", ":", "drop schema public cascade",
    "pg_sleep(9)", "\u0131", "\u212a",
]  # fmt: skip


def hostile_names() -> list[str]:
    """Five hundred, the same each time: quotes, ends of statements, controls, letters that fold to others, lengths."""
    chance = random.Random(26)
    names = [
        "",
        " ",
        "1st",
        "a" * 41,
        "a" * 64,
        "queuert ",
        " queuert",
        "queuert\n",
        "Queuert",
        'x".job; --',
        "a\u0301",
    ]
    while len(names) < 500:
        parts = [chance.choice(PIECES), *chance.choices([*PIECES, "queuert", "_", "7"], k=chance.randrange(4))]
        chance.shuffle(parts)
        names.append("".join(parts))
    return names


@pytest.fixture(autouse=True)
def _nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither the drivers nor libpq connect to anything."""
    tried: list[object] = []

    def refuse(*given: object, **_: object) -> None:
        tried.append(given)
        raise AssertionError("a connection was tried")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr("psycopg.Connection.connect", refuse)
    monkeypatch.setattr("psycopg.AsyncConnection.connect", refuse)
    yield
    assert tried == []


SCHEMAS: dict[str, Callable[[str], object]] = {
    "store": lambda name: PostgresState(DSN, schema=name),
    "statements": Statements,
    "notifications": lambda name: PostgresNotify(DSN, schema=name),
    "migrate": lambda name: migrations.upgrade(DSN, schema=name),
    "migrate down": lambda name: migrations.downgrade(DSN, schema=name, revision="base"),
    "migration status": lambda name: migrations.status(DSN, schema=name),
    "migration as SQL": lambda name: migrations.sql(schema=name),
    "grants": lambda name: roles_sql(name),
    "names of roles": lambda name: roles_sql(names={Role.CLIENT: name}),
    "address": lambda name: state_from_url(DSN, schema=name),
    "address of migrations": lambda name: postgres_from_url(DSN, schema=name),
}


@pytest.mark.parametrize("where", SCHEMAS)
def test_names_of_schemas(where: str) -> None:
    plain = {"a" * 41, "a" * 64} if where == "names of roles" else set()
    accepted = [name for name in hostile_names() if name not in plain and not _is_refused(SCHEMAS[where], name)]
    assert accepted == []


def _is_refused(make: Callable[[str], object], name: str) -> bool:
    try:
        make(name)
    except QueuertError as error:
        return str(error) != ""
    return False


@pytest.mark.parametrize("command", ["migrate up", "migrate sql", "migrate roles", "stats", "worker x:y"])
def test_the_option_of_the_command_line(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Some characters cannot come by a command line; each of the others is a wrong one, told in one printable line."""
    for name in hostile_names()[::20]:
        if "\x00" in name or "\ud800" in name:
            continue
        words = command.split()
        address = [] if words[:2] in (["migrate", "sql"], ["migrate", "roles"]) else ["--url", DSN]
        assert main([*words, *address, f"--schema={name}"]) == 2, name
        reported = capsys.readouterr().err
        assert len(reported.splitlines()) == 1
        assert reported.rstrip("\n").isprintable()


@pytest.mark.parametrize("kind", [ConnectionOptions, ReadOptions, WriteOptions])
def test_options_of_spark(kind: Any) -> None:
    given = {"url": DSN, "jobType": "work"} if kind is WriteOptions else {"url": DSN}
    if kind is ReadOptions:
        given["table"] = "jobs"
    for name in hostile_names():
        with pytest.raises(SparkOptionError, match="schema"):
            parse_options(kind, {**given, "schema": name})


@pytest.mark.parametrize("name", ["'", "x'; select 1; --", "00000003-0000001B-1'", "", "0 0", "g"])
def test_snapshots_of_spark(name: str) -> None:
    """The server takes no parameter there, so it must be what servers call them."""
    with pytest.raises(SparkOptionError, match="snapshot"):
        parse_options(ReadOptions, {"url": DSN, "table": "jobs", "snapshot": name})


def test_namespaces_of_redis() -> None:
    """Keys and channels are no language: any text does that keeps them in one slot, and apart from other namespaces."""
    made: dict[str, str] = {}
    for name in {*hostile_names(), *PIECES}:
        if _is_refused(lambda name: RedisState("redis://127.0.0.1:1", namespace=name), name):
            assert _is_refused(lambda name: RedisNotify("redis://127.0.0.1:1", namespace=name), name)
            assert _is_refused(lambda name: state_from_url("redis://127.0.0.1:1", namespace=name), name)
            continue
        key = key_prefix(name)
        assert (key.count("{"), key.count("}"), key.index("{")) == (1, 1, 0)
        made[key] = name
    beginnings = sorted(made)
    assert not any(later.startswith(key) for key, later in pairwise(beginnings))
    for name in ("", "{", "}", "a}:b", "\x00", "\ud800"):
        assert _is_refused(key_prefix, name), name
