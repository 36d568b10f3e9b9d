"""Which statements a claim sends whose keys take turns: one, but where the last claim could not know better."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queuert import PostgresState
from queuert.ids import new_token
from queuert.limits import Limits
from queuert.state.postgres.sync_store import PostgresStore
from queuert.state.types import ClaimRequest
from queuert.testing.conformance.builders import job

CLAIMS = ("claim_next_key", "claim_next_keys", "claim_fair")


@pytest.fixture
def store(dsn: str) -> Iterator[PostgresStore]:
    store = PostgresState(dsn).sync_store(max_connections=1)
    assert isinstance(store, PostgresStore)
    store.open()
    yield store
    store.close()


@pytest.fixture
def sent(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the statements of fair claims that the store has sent."""
    names = {id(store._sql.prepared[name]): name for name in CLAIMS}
    sent: list[str] = []
    fetch = store._fetch

    def noted(statement: object, *more: object) -> object:
        sent.append(names[id(statement)])
        return fetch(statement, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "_fetch", noted)
    return sent


def start(store: PostgresStore, keys: int, each: int = 1, *, input: str = "1") -> None:
    store.start_jobs([job(limit_key=f"key{key:03d}", input=input) for key in range(keys) for _ in range(each)])


def claim(store: PostgresStore, limit: int, *, max_bytes: int = 10**6, types: tuple[str, ...] = ("work",)) -> int:
    leases, limits = dict.fromkeys(types, 60.0), {"work": Limits(fair=True)}
    return len(store.claim(ClaimRequest(leases, limit, "me", new_token(), limits, max_bytes=max_bytes)))


def test_one_statement_where_there_are_more_keys_than_jobs_wanted(store: PostgresStore, sent: list[str]) -> None:
    start(store, 20, 2)
    assert [claim(store, limit) for limit in (1, 5, 9, 8)] == [1, 5, 9, 8]
    assert sent == ["claim_next_key", "claim_next_keys", "claim_next_keys", "claim_next_keys"]


def test_few_keys_are_remembered_until_there_are_more(store: PostgresStore, sent: list[str]) -> None:
    start(store, 3, 8)
    assert [claim(store, 4) for _ in range(3)] == [4, 4, 4]
    assert sent == ["claim_next_keys", "claim_fair", "claim_fair", "claim_fair"]
    del sent[:]
    start(store, 9, 2)
    assert [claim(store, 4) for _ in range(3)] == [4, 4, 4]
    assert sent == ["claim_fair", "claim_next_keys", "claim_next_keys"]


def test_a_queue_without_jobs_takes_one_statement(store: PostgresStore, sent: list[str]) -> None:
    assert claim(store, 4) == claim(store, 4) == 0
    assert sent == ["claim_next_keys", "claim_next_keys"]


def test_inputs_that_do_not_fit_are_remembered_until_they_do(store: PostgresStore, sent: list[str]) -> None:
    start(store, 40, input=f'"{"x" * 1000}"')
    assert [claim(store, 8, max_bytes=3500) for _ in range(3)] == [3, 3, 3]
    assert sent == ["claim_next_keys", "claim_fair", "claim_fair", "claim_fair"]
    del sent[:]
    assert [claim(store, 8) for _ in range(3)] == [8, 8, 8]
    assert sent == ["claim_fair", "claim_next_keys", "claim_next_keys"]


def test_several_types_are_claimed_together(store: PostgresStore, sent: list[str]) -> None:
    start(store, 9)
    assert claim(store, 4, types=("work", "other")) == 4
    assert sent == ["claim_fair"]
