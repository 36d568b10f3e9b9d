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
from queuert.ids import new_id, new_token
from queuert.notify.in_process import InProcessNotify

number = JobType("number", input=int, output=int)
anything: Any = number
TYPES = JobTypes(number)
INSIDES = re.compile(
    r"(?i)\b(select|insert into|update|delete from|where|returning|evalsha)\b|\.py\b|/\w+/\w+|://|\$\d|%\("
)


def test_ids_have_74_random_bits_and_tokens_122() -> None:
    """All that may be set varies, of the bits that RFC 9562 leaves to chance."""
    ids, tokens = [uuid.UUID(new_id()) for _ in range(2_000)], [uuid.UUID(new_token()) for _ in range(2_000)]
    assert {one.version for one in ids} == {7}
    assert {one.version for one in tokens} == {4}
    assert {one.variant for one in (*ids, *tokens)} == {uuid.RFC_4122}
    assert len({*ids, *tokens}) == 4_000
    for made, bits in ((ids, 74), (tokens, 122)):
        low = 0xFFF_3FFF_FFFFFFFFFFFF if bits == 74 else (1 << 128) - 1
        varies = 0
        for one in made[1:]:
            varies |= (one.int ^ made[0].int) & low
        assert varies.bit_count() == bits


def test_ids_are_drawn_from_the_systems_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not from a generator whose next number can be worked out from those before."""
    monkeypatch.setattr("os.urandom", lambda count: b"\xff" * count)
    assert new_id().endswith("7fff-bfff-ffffffffffff")


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
def test_what_the_database_says_is_told_by_its_first_line(client: Client, dsn: str, what: str) -> None:
    """Without the statement, the row that failed, or where in the code it was."""
    with psycopg.connect(dsn) as connection:
        connection.execute(BROKEN[what].encode())
    with pytest.raises(QueuertError) as caught:
        client.start_chain(number, 424_242)
    told = str(caught.value)
    assert "424242" not in told
    assert "\n" not in told
    assert INSIDES.search(told.replace("queuert migrate up", "")) is None, told


def test_a_schema_that_is_not_there(bare_dsn: str) -> None:
    with pytest.raises(SchemaMissingError) as caught, Client(PostgresState(bare_dsn), TYPES, notify=InProcessNotify()):
        pass
    assert INSIDES.search(str(caught.value)) is None
