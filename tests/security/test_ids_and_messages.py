"""Ids that nobody guesses, and errors that tell a caller what to do and nothing of the insides."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from queuert import Client, JobType, JobTypes, PostgresState
from queuert.errors import QueuertError, SchemaMissingError
from queuert.ids import new_id, new_ids, new_token
from queuert.notify.in_process import InProcessNotify

number = JobType("number", input=int, output=int)
anything: Any = number
TYPES = JobTypes(number)
INSIDES = re.compile(
    r"(?i)\b(select|insert into|update|delete from|where|returning|evalsha)\b|\.py\b|/\w+/\w+|://|\$\d|%\("
)


def varying_bits(made: list[str], of: int) -> int:
    """How many of the bits in a mask are not the same in all ids."""
    numbers = [uuid.UUID(one).int for one in made]
    varies = 0
    for one in numbers[1:]:
        varies |= (one ^ numbers[0]) & of
    return varies.bit_count()


def test_ids_have_74_random_bits_and_tokens_122() -> None:
    """All that may be set varies, of the bits that RFC 9562 leaves to chance."""
    ids, tokens = [new_id() for _ in range(2_000)], [new_token() for _ in range(2_000)]
    assert {uuid.UUID(one).version for one in ids} == {7}
    assert {uuid.UUID(one).version for one in tokens} == {4}
    assert {uuid.UUID(one).variant for one in (*ids, *tokens)} == {uuid.RFC_4122}
    assert len({*ids, *tokens}) == 4_000
    assert varying_bits(ids, 0xFFF_3FFF_FFFFFFFFFFFF) == 74
    assert varying_bits(tokens, (1 << 128) - 1) == 122


def test_ids_of_one_call_have_60() -> None:
    """The other bits count."""
    ids = new_ids(2_000)
    assert {uuid.UUID(one).version for one in ids} == {7}
    assert {uuid.UUID(one).variant for one in ids} == {uuid.RFC_4122}
    assert len(set(ids)) == 2_000
    assert varying_bits(ids, 0x000_0FFF_FFFFFFFFFFFF) == 60


def test_ids_and_tokens_are_drawn_from_the_systems_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not from a generator whose next number can be worked out from those before."""
    monkeypatch.setattr("os.urandom", lambda count: b"\xff" * count)
    assert new_id().endswith("7fff-bfff-ffffffffffff")
    assert [one[20:] for one in new_ids(2)] == ["fff-ffffffffffff"] * 2
    assert new_token() == "ffffffff-ffff-4fff-bfff-ffffffffffff"


@pytest.fixture
def client(dsn: str) -> Any:
    with Client(PostgresState(dsn), TYPES, notify=InProcessNotify()) as client:
        yield client


MISTAKES: dict[str, Callable[[Client], object]] = {
    "an id that is there": lambda client: [client.start_chain(number, 1, id="x") for _ in range(2)],
    "no such chain": lambda client: client.get_chain("not there"),
    "no such job": lambda client: client.get_job("not there"),
    "a blocker that is not there": lambda client: client.start_chain(number, 1, blockers=["not there"]),
    "a wrong input": lambda client: client.start_chain(anything, "x"),
    "a wrong id": lambda client: client.start_chain(number, 1, id="a\x00"),
    "a wrong cursor": lambda client: client.list_chains(cursor="x"),
    "a retry of an open one": lambda client: client.retry_chain(client.start_chain(number, 1)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_messages_hold_no_sql_no_address_and_no_path(client: Client, mistake: str) -> None:
    with pytest.raises(QueuertError) as caught:
        MISTAKES[mistake](client)
    assert INSIDES.search(str(caught.value)) is None, str(caught.value)


BROKEN = {
    "a table that is gone": "drop table queuert.job cascade",
    "a column that is gone": "alter table queuert.job drop column result_ttl cascade",
    "a rule of the database": "alter table queuert.job add constraint mine check (input is null) not valid",
    "a trigger of somebody's": "create function queuert.mine() returns trigger language plpgsql as"
    " $$ begin raise exception 'no'; end $$; create trigger mine before insert on queuert.job"
    " for each row execute function queuert.mine()",
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_the_database_says_is_reported_by_its_first_line(client: Client, dsn: str, what: str) -> None:
    """Without the statement, the row that failed, or where in the code it was."""
    with psycopg.connect(dsn) as connection:
        connection.execute(BROKEN[what].encode())
    with pytest.raises(QueuertError) as caught:
        client.start_chain(number, 424_242)
    reported = str(caught.value)
    assert "424242" not in reported
    assert "\n" not in reported
    assert INSIDES.search(reported.replace("queuert migrate up", "")) is None, reported


@pytest.mark.parametrize(
    ("address", "reported"),
    [
        ("postgresql://bob:s3cret@127.0.0.1:1/mine", "port 1"),
        ("redis://bob:s3cret@127.0.0.1:1/0", "127.0.0.1:1"),
        ("sqlite:////not-there/mine.db", "/not-there"),
    ],
)
def test_who_cannot_reach_the_store_is_reported_where(address: str, reported: str) -> None:
    """And neither as whom, nor with what."""
    with pytest.raises(QueuertError) as caught, Client.from_url(address, TYPES) as client:
        client.start_chain(number, 1)
    assert reported in str(caught.value)
    assert not {"bob", "s3cret"} & set(re.findall(r"\w+", str(caught.value)))


def test_a_schema_that_is_not_there(bare_dsn: str) -> None:
    with pytest.raises(SchemaMissingError) as caught, Client(PostgresState(bare_dsn), TYPES, notify=InProcessNotify()):
        pass
    assert INSIDES.search(str(caught.value)) is None
