"""Pairs of operations in every order of their statements leave the tables whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest

from queuert.errors import LeaseLostError
from queuert.ids import new_token
from queuert.jobs import JobError
from queuert.policies import RetryPolicy
from queuert.state.postgres import PostgresState
from queuert.state.postgres.sync_store import PostgresStore
from queuert.state.types import (
    ClaimedJob,
    ClaimRequest,
    Finish,
    FinishKind,
    FinishResult,
    NewJob,
    ReapRequest,
    ReapResult,
    Renewal,
    StartedJob,
)
from tests.state.interleaving import Explorer, Operation, Run
from tests.state.scenes import IMPOSSIBLE

pytestmark = pytest.mark.timeout(300)


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


Setup = Callable[[], Sequence[Operation]]


@pytest.fixture
def explore(dsn: str, connection: psycopg.Connection[Any]) -> Callable[..., int]:
    """Explore all orders: from empty tables, with a check for impossible rows besides the test's own."""

    def run(setup: Setup, check: Callable[[Run], None], sample: int | None = None) -> int:
        def fresh() -> Sequence[Operation]:
            connection.execute("DELETE FROM queuert.job_blocker")
            connection.execute("DELETE FROM queuert.job")
            return setup()

        def checked(run: Run) -> None:
            assert connection.execute(IMPOSSIBLE).fetchall() == []
            assert not [one for one in run.results if isinstance(one, Exception)]
            check(run)

        return Explorer(dsn, fresh, checked).explore(sample)

    return run


# --- what the parties do ----------------------------------------------------------------------------------------------


def job(id: str, *blockers: str, type: str = "work") -> NewJob:
    return NewJob(id, type, "{}", blockers=blockers, id_chosen=True)


def request(limit: int = 1) -> ClaimRequest:
    return ClaimRequest({"work": 60.0}, limit, "me", new_token())


def claimed(store: PostgresStore, *ids: str) -> list[ClaimedJob]:
    """New jobs under a lease, in this order."""
    store.start_jobs([job(id) for id in ids])
    found = {one.id: one for one in store.claim(request(len(ids)))}
    return [found[id] for id in ids]


def expired(store: PostgresStore, connection: psycopg.Connection[Any], *ids: str) -> list[ClaimedJob]:
    """Jobs whose lease is long over."""
    found = claimed(store, *ids)
    connection.execute("UPDATE queuert.job SET lease_expires_at = now() - interval '1 hour' WHERE status = 'running'")
    return found


def claims(limit: int = 1) -> Operation:
    return lambda store: store.claim(request(limit))


def reaps(most: int = 25) -> Operation:
    policy = RetryPolicy(max_attempts=most, initial_delay=0.0)
    return lambda store: store.reap(ReapRequest({"work": policy}))


def finishes(one: ClaimedJob, kind: FinishKind = FinishKind.COMPLETE) -> Operation:
    finish = Finish(one, kind, output="1", error=JobError("fail", "no") if kind is FinishKind.FAIL else None)
    return lambda store: store.finish([finish])


def finishes_inside(one: ClaimedJob) -> Operation:
    def run(store: PostgresStore) -> object:
        with store.transaction(one) as transaction:
            return [transaction.finish(Finish(one, FinishKind.COMPLETE, output="1"))]

    return run


def starts(*jobs: NewJob) -> Operation:
    return lambda store: store.start_jobs(jobs)


def written(result: object) -> list[bool]:
    assert isinstance(result, list)
    return [one.written for one in result if isinstance(one, FinishResult)]


def taken(result: object) -> list[str]:
    assert isinstance(result, list)
    return [one.id for one in result if isinstance(one, ClaimedJob)]


def reaped(result: object) -> list[str]:
    assert isinstance(result, ReapResult)
    return [one.id for one in result.reaped]


# --- pairs ------------------------------------------------------------------------------------------------------------


def test_claim_and_claim(explore: Callable[..., int], store: PostgresStore) -> None:
    def setup() -> Sequence[Operation]:
        store.start_jobs([job("a"), job("b")])
        return [claims(), claims()]

    def check(run: Run) -> None:
        assert sorted(taken(run.results[0]) + taken(run.results[1])) == ["a", "b"]

    assert explore(setup, check) == 2


def test_claim_and_reap(explore: Callable[..., int], store: PostgresStore, connection: psycopg.Connection[Any]) -> None:
    def setup() -> Sequence[Operation]:
        expired(store, connection, "a")
        return [claims(), reaps()]

    def check(run: Run) -> None:
        assert reaped(run.results[1]) == ["a"]
        assert taken(run.results[0]) == (["a"] if run.order[0] == 1 else [])

    assert explore(setup, check) == 2


def test_renew_and_reap(explore: Callable[..., int], store: PostgresStore, connection: psycopg.Connection[Any]) -> None:
    def setup() -> Sequence[Operation]:
        [held] = expired(store, connection, "a")
        return [lambda store: store.renew([Renewal(held.lease, 60.0)]), reaps()]

    def check(run: Run) -> None:
        renewed, result = run.results
        assert isinstance(renewed, list)
        assert renewed[0] != bool(reaped(result))

    assert explore(setup, check) == 2


def test_renew_and_reap_at_the_cap(
    explore: Callable[..., int], store: PostgresStore, connection: psycopg.Connection[Any]
) -> None:
    """The reaper picks the job in one transaction and fails it in another: renewed between them, it is let be."""

    def setup() -> Sequence[Operation]:
        [held] = expired(store, connection, "a")
        return [lambda store: store.renew([Renewal(held.lease, 60.0)]), reaps(most=1)]

    def check(run: Run) -> None:
        renewed, result = run.results
        assert isinstance(renewed, list)
        # A renewal that finds the row locked says False and may ask again; it must not be both.
        assert not (renewed[0] and reaped(result))
        [row] = connection.execute("SELECT status FROM queuert.job").fetchall()
        assert row[0] == ("failed" if reaped(result) else "running")

    assert explore(setup, check) > 3


@pytest.mark.parametrize("most", [25, 1])
@pytest.mark.parametrize("how", [finishes, finishes_inside])
def test_finish_and_reap(
    explore: Callable[..., int],
    store: PostgresStore,
    connection: psycopg.Connection[Any],
    most: int,
    how: Callable[[ClaimedJob], Operation],
) -> None:
    def setup() -> Sequence[Operation]:
        [held] = expired(store, connection, "a")
        connection.execute("UPDATE queuert.job SET has_dependents = true")
        return [_or_lost(how(held)), reaps(most)]

    def check(run: Run) -> None:
        assert (written(run.results[0]) == [True]) != bool(reaped(run.results[1]))

    assert explore(setup, check, sample=60) > 3


def _or_lost(operation: Operation) -> Operation:
    """A transaction that finds its lease lost raises; as a result, it is a finish that was not written."""

    def run(store: PostgresStore) -> object:
        try:
            return operation(store)
        except LeaseLostError:
            return [False]

    return run


def test_finish_and_finish(explore: Callable[..., int], store: PostgresStore) -> None:
    """Two finishes of one lease: the same one stands for both."""

    def setup() -> Sequence[Operation]:
        [held] = claimed(store, "a")
        return [finishes(held), finishes(held)]

    def check(run: Run) -> None:
        assert [written(result) for result in run.results] == [[True], [True]]

    assert explore(setup, check) > 1


def test_two_finishes_that_differ(explore: Callable[..., int], store: PostgresStore) -> None:
    """Two finishes of one lease that contradict each other: one is written, and the other is told."""

    def setup() -> Sequence[Operation]:
        [held] = claimed(store, "a")
        return [finishes(held), finishes(held, FinishKind.FAIL)]

    def check(run: Run) -> None:
        assert sorted(written(result) for result in run.results) == [[False], [True]]

    assert explore(setup, check) > 1


@pytest.mark.parametrize("how", [finishes, finishes_inside])
def test_start_and_the_end_of_its_blocker(
    explore: Callable[..., int],
    store: PostgresStore,
    connection: psycopg.Connection[Any],
    how: Callable[[ClaimedJob], Operation],
) -> None:
    def setup() -> Sequence[Operation]:
        [held] = claimed(store, "a")
        return [starts(job("b", "a")), how(held)]

    def check(run: Run) -> None:
        assert written(run.results[1]) == [True]
        [started] = run.results[0] if isinstance(run.results[0], list) else []
        assert isinstance(started, StartedJob)
        assert connection.execute("SELECT status FROM queuert.job WHERE id = 'b'").fetchone() == ("ready",)

    assert explore(setup, check) > 3


@pytest.mark.parametrize("how", [finishes, finishes_inside])
def test_two_blockers_of_one_job(
    explore: Callable[..., int],
    store: PostgresStore,
    connection: psycopg.Connection[Any],
    how: Callable[[ClaimedJob], Operation],
) -> None:
    def setup() -> Sequence[Operation]:
        first, second = claimed(store, "a", "b")
        store.start_jobs([job("c", "a", "b")])
        return [how(first), how(second)]

    def check(run: Run) -> None:
        assert [written(result) for result in run.results] == [[True], [True]]
        assert connection.execute("SELECT status FROM queuert.job WHERE id = 'c'").fetchone() == ("ready",)

    assert explore(setup, check, sample=70) > 10


def test_start_waits_for_a_chain_and_its_dependent(
    explore: Callable[..., int], store: PostgresStore, connection: psycopg.Connection[Any]
) -> None:
    """A job that waits for a chain, and for another that waits for the same, starts while the first one closes.

    The dependent's id is below its blocker's: an order of locks by id alone would let the two wait for each other.
    """

    def setup() -> Sequence[Operation]:
        [held] = claimed(store, "m")
        store.start_jobs([job("a", "m")])
        return [starts(job("z", "a", "m")), finishes(held)]

    def check(run: Run) -> None:
        assert written(run.results[1]) == [True]
        assert connection.execute("SELECT open_blockers FROM queuert.job WHERE id = 'z'").fetchone() == (1,)

    assert explore(setup, check, sample=70) > 3


def test_the_explorer_finds_a_lost_update(dsn: str, connection: psycopg.Connection[Any]) -> None:
    """The explorer itself: a counter that is read and then written loses an increment in some order."""
    connection.execute("CREATE TABLE counter (n int)")

    def increment(store: PostgresStore) -> object:
        with store._connections.connection() as own, own.transaction():
            row = own.execute("SELECT n FROM counter").fetchone()
            assert row is not None
            own.execute("UPDATE counter SET n = %s", [row[0] + 1])
        return None

    def setup() -> Sequence[Operation]:
        connection.execute("DELETE FROM counter")
        connection.execute("INSERT INTO counter VALUES (0)")
        return [increment, increment]

    found: list[int] = []

    def check(run: Run) -> None:
        row = connection.execute("SELECT n FROM counter").fetchone()
        assert row is not None
        found.append(row[0])

    assert Explorer(dsn, setup, check).explore() > 5
    assert set(found) == {1, 2}
