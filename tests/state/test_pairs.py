"""Whatever meets on one job, in any order of the statements: the outcome is that of one after the other."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest

from queuert.state.postgres import PostgresState
from queuert.state.postgres.sync_store import PostgresStore
from tests.state import scenes
from tests.state.interleaving import Explorer, Operation, Run

pytestmark = pytest.mark.timeout(300)

ALL = os.environ.get("QUEUERT_ALL_ORDERS") == "1"
"""Every order of every pair in every scene: thousands, in some minutes."""

SAMPLE = None if ALL else 3
"""Orders of each pair, otherwise, in one scene."""


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def store(dsn: str) -> Iterator[PostgresStore]:
    store = PostgresState(dsn).sync_store()
    store.open()
    yield store
    store.close()


def _explore_scene(
    name: str,
    actions: Sequence[scenes.Action],
    sample: int | None,
    dsn: str,
    store: PostgresStore,
    connection: psycopg.Connection[Any],
) -> int:
    """Every order ends as some order of whole operations does."""
    scene = scenes.Scene(name, store, connection)
    allowed = scenes.outcomes(scene, actions, store, connection)

    def setup() -> Sequence[Operation]:
        scene.again()
        return [action(scene) for action in actions]

    def check(run: Run) -> None:
        assert connection.execute(scenes.IMPOSSIBLE).fetchall() == []
        assert not [one for one in run.results if isinstance(one, Exception)]
        assert scenes.outcome(connection, run.results) in allowed

    return Explorer(dsn, setup, check).explore(sample)


def _name(given: object) -> str:
    """A name that is the same in every process."""
    if isinstance(given, tuple):
        return "-".join(map(_name, given))
    return str(getattr(given, "__name__", given))


@pytest.mark.parametrize("one", scenes.HOMES, ids=lambda action: action.__name__)
def test_pairs(
    one: scenes.Action,
    dsn: str,
    store: PostgresStore,
    connection: psycopg.Connection[Any],
) -> None:
    """Whatever meets on one job leaves the tables as one after the other would, and says so."""
    count = 0
    for name, first, second in scenes.meetings(everywhere=ALL):
        if first is one:
            try:
                count += _explore_scene(name, (first, second), SAMPLE, dsn, store, connection)
            except AssertionError as error:
                raise AssertionError(f"{_name((first, second))} of a chain that is {name}: {error}") from error
    assert count >= len(scenes.HOMES) - list(scenes.HOMES).index(one)
    print(f"{one.__name__}: {count} orders")


@pytest.mark.quick
@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("reopened", scenes.retry, scenes.unblock),
        ("running", scenes.cancel, scenes.go_on),
        ("second", scenes.complete, scenes.go_on),
        ("running", scenes.delete, scenes.go_on),
    ],
)
def test_all_orders(
    name: str,
    one: scenes.Action,
    other: scenes.Action,
    dsn: str,
    store: PostgresStore,
    connection: psycopg.Connection[Any],
) -> None:
    """The pairs that are most delicate, in every order there is."""
    assert _explore_scene(name, (one, other), None, dsn, store, connection) > 3


@pytest.mark.parametrize(
    ("name", "actions"),
    [
        ("cancelled", (scenes.retry, scenes.unblock, scenes.cancel)),
        ("blocked", (scenes.cancel, scenes.unblock, scenes.wait_for)),
        ("running", (scenes.delete, scenes.wait_for, scenes.go_on)),
        ("expired", (scenes.complete, scenes.finish, scenes.reap_at_the_cap)),
        ("failed", (scenes.retry, scenes.wait_for, scenes.delete)),
    ],
    ids=_name,
)
def test_threes(
    name: str,
    actions: Sequence[scenes.Action],
    dsn: str,
    store: PostgresStore,
    connection: psycopg.Connection[Any],
) -> None:
    """The same with three connections."""
    assert _explore_scene(name, actions, 30, dsn, store, connection) > 3
