"""How many statements the operations on chains take: the frequent ones one, whatever the rare ones need."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from queuert.deduplication import Deduplicate
from queuert.ids import new_token
from queuert.run_at import after
from queuert.state.postgres import PostgresState
from queuert.state.types import ClaimRequest, Finish, FinishKind, NewJob
from tests.state.interleaving import Explorer, Operation


def steps(dsn: str, operation: Operation) -> int:
    """Statements of an operation, and its COMMIT if it has one."""
    run = Explorer(dsn, lambda: [operation], lambda run: None).run()
    assert not isinstance(run.results[0], Exception)
    return len(run.order)


def plain(id: str) -> NewJob:
    return NewJob(id, "work", "1", id_chosen=True, priority=3, limit_key="k", trace_context="t", run_at=after(hours=1))


def test_plain_starts_are_one_statement(dsn: str) -> None:
    assert steps(dsn, lambda store: store.start_jobs([plain("a"), plain("b"), plain("c")])) == 1


def test_starts_with_attributes_are_one_statement(dsn: str) -> None:
    """Whether all of the batch have some, or one."""
    jobs = [plain("a"), replace(plain("b"), attributes={"user": "17", "tags": ("a", "b")})]
    assert steps(dsn, lambda store: store.start_jobs(jobs)) == 1
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT count(*) FROM queuert.chain_attribute").fetchone() == (3,)


@pytest.mark.parametrize("count", [1, 50])
def test_keys_take_four_however_many(dsn: str, count: int) -> None:
    """The slots, the look-up, the insert, and COMMIT; without the insert when all of them are there."""
    jobs = [NewJob(f"a{n}", "work", "1", deduplication=Deduplicate(f"key {n}")) for n in range(count)]
    assert steps(dsn, lambda store: store.start_jobs(jobs)) == 4
    assert steps(dsn, lambda store: store.start_jobs(jobs)) == 3


@pytest.mark.parametrize("count", [1, 50])
def test_attaching_takes_three_however_many(dsn: str, count: int) -> None:
    """The look-up, the insert, and COMMIT; the look-up and COMMIT when all of them are there."""
    jobs = [NewJob(f"a{n}", "work", "1", id_chosen=True, attach=True) for n in range(count)]
    assert steps(dsn, lambda store: store.start_jobs(jobs)) == 3
    assert steps(dsn, lambda store: store.start_jobs(jobs)) == 2


def test_finishes_without_dependents_are_one_statement(dsn: str) -> None:
    store = PostgresState(dsn).sync_store()
    store.open()
    try:
        store.start_jobs([NewJob(f"a{n}", "work", "1") for n in range(3)])
        done, gone_on, again = store.claim(ClaimRequest({"work": 60.0}, 3, "me", new_token()))
    finally:
        store.close()
    finishes = [
        Finish(done, FinishKind.COMPLETE, output="1"),
        Finish(gone_on, FinishKind.CONTINUE, output="1", continuation=NewJob("b", "next", "1", limit_key="k")),
        Finish(again, FinishKind.RETRY, crashed=True),
    ]
    assert steps(dsn, lambda store: store.finish(finishes)) == 1
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT limit_key FROM queuert.job WHERE id = 'b'").fetchone() == ("k",)
