"""Attributes as a client takes them: checked before anything is written, and found again."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from queuert import AsyncClient, Client, JobType, JobTypes, NewChain, PostgresState
from queuert.attributes import MAX_VALUES, attribute_filter, attributes_of, attributes_text, checked_attributes
from queuert.errors import ConfigurationError, InvalidIdentifierError
from queuert.notify.in_process import InProcessNotify

number = JobType("number", input=int, output=int)
JOB_TYPES = JobTypes(number)


@pytest.fixture
def client(dsn: str) -> Iterator[Client]:
    with Client(PostgresState(dsn), JOB_TYPES, notify=InProcessNotify()) as client:
        yield client


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("a", "a"),
        (" a ", " a "),
        (17, "17"),
        (-1, "-1"),
        (17.0, "17"),
        (0.5, "0.5"),
        (1e300, "1e+300"),
        (-0.0, "0"),
        (10**200, str(10**200)),
        ([], ()),
        (["a"], ("a",)),
        (("b", "a", "b"), ("b", "a")),
        ([1, 1.0, "1", 2], ("1", "2")),
    ],
)
def test_values(given: Any, kept: Any) -> None:
    checked = checked_attributes({"name": given})
    assert checked == {"name": kept}
    assert attributes_of(attributes_text(checked)) == checked


BAD_VALUES: list[Any] = [
    None, True, False, math.nan, math.inf, b"a", Decimal(1), {"a": 1}, {"a"}, [None], [["a"]], [True], 10**300,
]  # fmt: skip


@pytest.mark.parametrize("value", BAD_VALUES, ids=repr)
def test_values_of_other_kinds(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="attribute 'name'"):
        checked_attributes({"name": value})


@pytest.mark.parametrize("value", ["", "x" * 513, "a\0", "\ud800", "\U0001f600" * 251, ["a", ""]], ids=ascii)
def test_texts_that_cannot_be_stored(value: Any) -> None:
    with pytest.raises(InvalidIdentifierError, match="attribute 'name'"):
        checked_attributes({"name": value})


@pytest.mark.parametrize("name", ["", "a b", "a=b", "é", "1a", "a" * 65, "a\n", 17, None], ids=repr)
def test_names(name: Any) -> None:
    with pytest.raises(InvalidIdentifierError, match="attribute name"):
        checked_attributes({name: "a"})
    assert checked_attributes({"a" * 64: "a", "_a.B:c/d-1": "a"})


def test_how_many() -> None:
    most: dict[str, Any] = {"tags": [str(at) for at in range(MAX_VALUES - 1)], "user": 17}
    assert len(attribute_filter(most)) == MAX_VALUES
    with pytest.raises(ConfigurationError, match=f"at most {MAX_VALUES} values altogether, got 65"):
        checked_attributes({**most, "more": 1})


@pytest.mark.parametrize("given", [[("a", "b")], "user=17", 17])
def test_no_mapping(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="attributes must be a mapping"):
        checked_attributes(given)


def test_nothing_is_written_of_a_batch_that_is_refused(client: Client, dsn: str) -> None:
    bad: Any = {"user": None}
    with pytest.raises(ConfigurationError):
        client.start_chains([NewChain(number, 1, attributes={"user": 17}), NewChain(number, 1, attributes=bad)])
    with pytest.raises(InvalidIdentifierError):
        client.start_chain(number, 1, attributes={"a b": 1})
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT id FROM queuert.job").fetchall() == []


def test_found_again(client: Client) -> None:
    mine = client.start_chain(number, 1, attributes={"user": 17, "tags": ["a", "b"]})
    other = client.start_chain(number, 1, attributes={"user": "18", "tags": ["a"]})
    client.start_chain(number, 1)
    same: list[Any] = [17, 17.0, "17", [17], ["17", 17]]
    for user in same:
        assert [one.id for one in client.list_chains(attributes={"user": user})] == [mine.id]
    assert [one.id for one in client.list_chains(attributes={"tags": "a"})] == [other.id, mine.id]
    assert [one.id for one in client.list_chains(attributes={"tags": ["b", "a"]})] == [mine.id]
    assert client.list_chains(attributes={"user": 17}, statuses=["failed"]).items == ()
    assert len(client.list_chains(attributes={})) == len(client.list_chains(attributes=None)) == 3
    page = client.list_chains(attributes={"tags": "a"}, limit=1, oldest_first=True)
    rest = client.list_chains(attributes={"tags": "a"}, limit=1, oldest_first=True, cursor=page.next_cursor)
    assert ([one.id for one in page], [one.id for one in rest], rest.next_cursor) == ([mine.id], [other.id], None)


def test_shown_by_the_handle(client: Client) -> None:
    chain = client.start_chain(number, 1, attributes={"user": 17, "tags": ["a", "b"]})
    kept = {"user": "17", "tags": ("a", "b")}
    assert chain.attributes == chain.refresh().attributes == kept
    assert client.list_chains(attributes={"user": 17}).items[0].attributes == kept
    assert [one.attributes for one in client.get_chains([chain.id])] == [kept]


def test_what_is_requested_for_is_checked(client: Client) -> None:
    with pytest.raises(ConfigurationError, match="attribute 'tags' must have at least one value"):
        client.list_chains(attributes={"tags": []})
    with pytest.raises(InvalidIdentifierError):
        client.list_chains(attributes={"user": ""})
    bad: Any = {"user": True}
    with pytest.raises(ConfigurationError):
        client.list_chains(attributes=bad)


def test_a_copy_for_a_middleware_keeps_them(client: Client) -> None:
    given = NewChain(number, 1, attributes={"user": 17})
    [chain] = client.start_chains([given.replace(attributes={**(given.attributes or {}), "by": "middleware"})])
    assert chain.refresh().attributes == {"user": "17", "by": "middleware"}
    assert given.replace(priority=1).attributes == {"user": 17}


async def test_asynchronously(dsn: str) -> None:
    async with AsyncClient(PostgresState(dsn), JOB_TYPES, notify=InProcessNotify()) as client:
        [chain, _] = await client.start_chains(
            [NewChain(number, 1, attributes={"user": 17}), NewChain(number, 1, attributes={"user": 18})]
        )
        [found] = await client.list_chains(attributes={"user": 17})
        assert (found.id, found.attributes) == (chain.id, {"user": "17"})
