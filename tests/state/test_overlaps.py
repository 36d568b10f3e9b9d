"""Overlaps that break queues: two blockers that close at once, and starts of one deduplication key at once.

Each scenario also runs on a store whose statement is wrong in a way that real queues were, and must notice it there.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg
import pytest

from queuert.deduplication import Deduplicate
from queuert.ids import new_id, new_token
from queuert.state.postgres import PostgresState
from queuert.state.postgres.sync_store import PostgresStore
from queuert.state.types import ClaimedJob, ClaimRequest, Finish, FinishKind, NewJob, StartedJob
from tests.state.interleaving import Explorer, Operation, Run, SteppedStore
from tests.state.scenes import IMPOSSIBLE
from tests.support.statements import replace_statements

_TIMEOUT = 60.0
pytestmark = pytest.mark.timeout(300)

# Looks at all blockers of the jobs that wait, as they are in the snapshot of the statement.
LOOKS_WITHOUT_A_LOCK = b"""
    UPDATE queuert.job SET status = 'ready', open_blockers = 0
    WHERE id IN (SELECT job_id FROM queuert.job_blocker WHERE blocker_chain_id = ANY (%(chains)s::text[]))
        AND status = 'blocked'
        AND NOT EXISTS (
            SELECT FROM queuert.job_blocker AS entry JOIN queuert.job AS chain ON chain.id = entry.blocker_chain_id
            WHERE entry.job_id = job.id AND chain.chain_status = 'open')
    RETURNING type, status
"""

# The same after locking the jobs that wait, but in one statement: the snapshot is older than the lock.
LOCKS_AND_LOOKS_AT_ONCE = b"""
    WITH locked AS MATERIALIZED (
        SELECT id FROM queuert.job
        WHERE id IN (SELECT job_id FROM queuert.job_blocker WHERE blocker_chain_id = ANY (%(chains)s::text[]))
        ORDER BY id FOR UPDATE
    )
    UPDATE queuert.job SET status = 'ready', open_blockers = 0
    FROM locked
    WHERE job.id = locked.id AND job.status = 'blocked'
        AND NOT EXISTS (
            SELECT FROM queuert.job_blocker AS entry JOIN queuert.job AS chain ON chain.id = entry.blocker_chain_id
            WHERE entry.job_id = locked.id AND chain.chain_status = 'open')
    RETURNING job.type, job.status
"""

NO_LOCK = b"SELECT type FROM unnest(%(types)s::text[], %(keys)s::text[]) AS asked (type, key)"

# The slot is taken, but by the statement that looks.
LOCKS_AND_FINDS_AT_ONCE = b"""
    WITH asked AS MATERIALIZED (
        SELECT * FROM json_to_recordset(%(keys)s::json) AS k (place int, type text, key text)
    ),
    slot AS (
        INSERT INTO queuert.deduplication (type, key) SELECT type, key FROM asked
        ON CONFLICT (type, key) DO UPDATE SET taken = deduplication.taken + 1
        RETURNING type, key
    )
    SELECT asked.place, job.id, job.type, job.status, job.created_at, job.chain_status
    FROM slot JOIN asked USING (type, key) JOIN queuert.job ON job.type = asked.type AND deduplication_key = asked.key
"""

# The jobs that wait are not locked with the chains that are about to close.
LOCKS_NO_DEPENDENTS = b"""
    WITH locked AS MATERIALIZED (
        SELECT id FROM queuert.job WHERE id = ANY (%(rows)s::text[]) ORDER BY created_at, id FOR NO KEY UPDATE
    )
    UPDATE queuert.job
    SET has_dependents = has_dependents OR locked.id = ANY (%(awaited)s::text[])
    FROM locked WHERE job.id = locked.id RETURNING job.id
"""

WRONG_RELEASES = {
    "no lock": {"lock_in_order": LOCKS_NO_DEPENDENTS, "release_dependents": LOOKS_WITHOUT_A_LOCK},
    "lock and look in one statement": {
        "lock_in_order": LOCKS_NO_DEPENDENTS,
        "release_dependents": LOCKS_AND_LOOKS_AT_ONCE,
    },
}
WRONG_STARTS = {
    "no lock": {"lock_deduplication_keys": NO_LOCK},
    "lock and look in one statement": {"lock_deduplication_keys": NO_LOCK, "find_duplicates": LOCKS_AND_FINDS_AT_ONCE},
}

OpenStore = Callable[..., AbstractContextManager[PostgresStore]]


@pytest.fixture
def opened(dsn: str) -> OpenStore:
    """Open a store on the test's database, with statements changed."""

    @contextmanager
    def open_store(changed: dict[str, bytes] | None = None, max_connections: int = 4) -> Iterator[PostgresStore]:
        state = PostgresState(dsn)
        replace_statements(state, changed or {})
        store = state.sync_store(max_connections=max_connections)
        assert isinstance(store, PostgresStore)
        store.open()
        try:
            yield store
        finally:
            store.close()

    return open_store


@pytest.fixture
def observer(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def all_of(calls: Sequence[Callable[[], object]]) -> list[Any]:
    """The results of calls that run side by side, each on a thread of its own."""
    with ThreadPoolExecutor(len(calls)) as threads:
        return [future.result(_TIMEOUT) for future in [threads.submit(call) for call in calls]]


def until_done_or_blocked(observer: psycopg.Connection[Any], pid: int, done: threading.Event) -> None:
    """Wait until the other party has got through its statements, or waits for a lock."""
    for _ in range(20_000):
        if done.wait(0.001):
            return
        row = observer.execute("SELECT cardinality(pg_blocking_pids(%s))", [pid]).fetchone()
        if row is not None and row[0] > 0:
            return
    raise AssertionError("the other party neither ended nor waits for a lock")


# --- two blockers of one job ------------------------------------------------------------------------------------------


def complete(job: ClaimedJob) -> Finish:
    return Finish(job, FinishKind.COMPLETE, output="1")


def pairs_of_blockers(store: PostgresStore, count: int) -> list[tuple[ClaimedJob, ClaimedJob]]:
    """Running chains, two by two; a job waits for both of each."""
    store.start_jobs([NewJob(new_id(), "work", "1") for _ in range(2 * count)])
    held = store.claim(ClaimRequest({"work": 600.0}, 2 * count, "me", new_token()))
    pairs = list(zip(held[::2], held[1::2], strict=True))
    store.start_jobs([NewJob(new_id(), "waits", "1", blockers=(one.id, other.id)) for one, other in pairs])
    return pairs


def stuck(observer: psycopg.Connection[Any]) -> int:
    """Jobs that are blocked although all their blockers have closed."""
    row = observer.execute(
        """
        SELECT count(*) FROM queuert.job
        WHERE status = 'blocked' AND NOT EXISTS (
            SELECT FROM queuert.job_blocker JOIN queuert.job AS chain ON chain.id = blocker_chain_id
            WHERE job_id = job.id AND chain.chain_status = 'open')
        """
    ).fetchone()
    assert row is not None
    return int(row[0])


def close_in_overlapping_transactions(
    store: PostgresStore, observer: psycopg.Connection[Any], pair: tuple[ClaimedJob, ClaimedJob]
) -> None:
    """The second transaction does all it can, up to its commit, before the first one commits."""
    pids: list[int] = []
    begun, done, may_commit = threading.Event(), threading.Event(), threading.Event()

    def second() -> None:
        with store.transaction(pair[1]) as transaction:
            pids.append(transaction.connection.info.backend_pid)
            begun.set()
            transaction.finish(complete(pair[1]))
            done.set()
            assert may_commit.wait(_TIMEOUT)

    with ThreadPoolExecutor(1) as threads:
        with store.transaction(pair[0]) as transaction:
            transaction.finish(complete(pair[0]))
            other = threads.submit(second)
            assert begun.wait(_TIMEOUT)
            until_done_or_blocked(observer, pids[0], done)
        may_commit.set()
        other.result(_TIMEOUT)


def test_two_blockers_close_in_overlapping_transactions(opened: OpenStore, observer: psycopg.Connection[Any]) -> None:
    """Fifty of fifty jobs are released when both of their blockers close in transactions that overlap."""
    with opened() as store:
        for pair in pairs_of_blockers(store, 50):
            close_in_overlapping_transactions(store, observer, pair)
        assert stuck(observer) == 0
        assert len(store.claim(ClaimRequest({"waits": 60.0}, 100, "me", new_token()))) == 50


@pytest.mark.parametrize("changed", WRONG_RELEASES.values(), ids=WRONG_RELEASES.keys())
def test_a_wrong_release_is_noticed_by_overlapping_transactions(
    opened: OpenStore, observer: psycopg.Connection[Any], changed: dict[str, bytes]
) -> None:
    with opened(changed) as store:
        for pair in pairs_of_blockers(store, 5):
            close_in_overlapping_transactions(store, observer, pair)
        assert stuck(observer) == 5


def close_at_once(store: PostgresStore, pairs: Sequence[tuple[ClaimedJob, ClaimedJob]]) -> None:
    """Two threads that close one of each pair, pair by pair."""
    together = threading.Barrier(2)

    def close(which: int) -> None:
        for pair in pairs:
            together.wait(_TIMEOUT)
            assert store.finish([complete(pair[which])])[0].written

    all_of([lambda: close(0), lambda: close(1)])


def test_two_blockers_close_on_free_threads(opened: OpenStore, observer: psycopg.Connection[Any]) -> None:
    """Two hundred of two hundred jobs are released when two threads close their blockers side by side."""
    with opened() as store:
        close_at_once(store, pairs_of_blockers(store, 200))
        assert stuck(observer) == 0
        assert len(store.claim(ClaimRequest({"waits": 60.0}, 300, "me", new_token()))) == 200


@pytest.mark.parametrize("changed", WRONG_RELEASES.values(), ids=WRONG_RELEASES.keys())
def test_a_wrong_release_is_noticed_by_free_threads(
    opened: OpenStore, observer: psycopg.Connection[Any], changed: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a round trip a statement, so that threads meet in between: mostly at once, however busy the machine is."""
    monkeypatch.setattr(PostgresStore, "_exchanged", SteppedStore._exchanged)
    with opened(changed) as store:
        for _ in range(20):
            close_at_once(store, pairs_of_blockers(store, 200))
            if stuck(observer) > 0:
                return
    pytest.fail("all jobs were released")


# --- starts of one key ------------------------------------------------------------------------------------------------


def report(key: str) -> NewJob:
    return NewJob(new_id(), "report", "1", deduplication=Deduplicate(key))


def chains_by_key(observer: psycopg.Connection[Any]) -> dict[str, list[str]]:
    """The ids of the chains that stand, by deduplication key."""
    rows = observer.execute("SELECT deduplication_key, array_agg(id) FROM queuert.job GROUP BY 1").fetchall()
    return dict(rows)


def start_each_key_by_four(store: PostgresStore, keys: Sequence[str]) -> dict[str, list[StartedJob]]:
    """Four callers start each key at once; what each of them got."""
    together = threading.Barrier(4)

    def start() -> list[StartedJob]:
        found = []
        for key in keys:
            together.wait(_TIMEOUT)
            found += store.start_jobs([report(key)])
        return found

    answers = all_of([start] * 4)
    return {key: [answer[place] for answer in answers] for place, key in enumerate(keys)}


def test_four_callers_start_a_hundred_keys(opened: OpenStore, observer: psycopg.Connection[Any]) -> None:
    """Of four that start one key at once, one writes a chain, and all hold its id; for each of a hundred keys."""
    keys = [f"key {number}" for number in range(100)]
    with opened() as store:
        found = start_each_key_by_four(store, keys)
    chains = chains_by_key(observer)
    assert sorted(chains) == sorted(keys)
    for key, answers in found.items():
        assert chains[key] == [answers[0].id]
        assert {one.id for one in answers} == {answers[0].id}
        assert sorted(one.existing for one in answers) == [False, True, True, True]


@pytest.mark.parametrize("changed", WRONG_STARTS.values(), ids=WRONG_STARTS.keys())
def test_a_wrong_start_is_noticed_by_four_callers(
    opened: OpenStore, observer: psycopg.Connection[Any], changed: dict[str, bytes]
) -> None:
    with opened(changed) as store:
        start_each_key_by_four(store, [f"key {number}" for number in range(100)])
    assert any(len(ids) > 1 for ids in chains_by_key(observer).values())


def race_for_one_key(
    store: PostgresStore, dsn: str, racers: int, rolled_back: int, key: str = "one"
) -> tuple[list[StartedJob], list[StartedJob]]:
    """Start one key by many, each in a transaction of its own, of which the first ones that write a chain roll back.

    What those got that committed, and those that rolled back.
    """
    together = threading.Barrier(racers)
    left = list(range(rolled_back))
    kept: list[StartedJob] = []
    dropped: list[StartedJob] = []

    def race() -> None:
        with psycopg.connect(dsn) as connection:
            together.wait(_TIMEOUT)
            [started] = store.start_jobs([report(key)], connection=connection)
            if not started.existing and left:
                left.pop()
                dropped.append(started)
                connection.rollback()
            else:
                kept.append(started)
                connection.commit()

    all_of([race] * racers)
    return kept, dropped


def test_fifty_racers_for_one_key(opened: OpenStore, observer: psycopg.Connection[Any], dsn: str) -> None:
    """Fifty that start one key at once write one chain; all the others hold its id."""
    with opened() as store:
        kept, _ = race_for_one_key(store, dsn, 50, 0)
    [chain] = chains_by_key(observer)["one"]
    assert Counter((one.id, one.existing) for one in kept) == {(chain, False): 1, (chain, True): 49}


def test_an_id_that_was_rolled_back_is_never_returned(
    opened: OpenStore, observer: psycopg.Connection[Any], dsn: str
) -> None:
    """Ten winners in a row roll back: who waits for one writes a chain itself, and none holds an id that is gone."""
    with opened() as store:
        kept, dropped = race_for_one_key(store, dsn, 50, 10)
    [chain] = chains_by_key(observer)["one"]
    assert len(dropped) == 10
    assert Counter((one.id, one.existing) for one in kept) == {(chain, False): 1, (chain, True): 39}


@pytest.mark.parametrize("changed", WRONG_STARTS.values(), ids=WRONG_STARTS.keys())
def test_a_wrong_start_is_noticed_by_fifty_racers(
    opened: OpenStore, observer: psycopg.Connection[Any], dsn: str, changed: dict[str, bytes]
) -> None:
    # Threads may happen to run one after the other: it is raced for other keys until two write a chain.
    with opened(changed) as store:
        for number in range(50):
            race_for_one_key(store, dsn, 50, 0, key=f"key {number}")
            if len(chains_by_key(observer)[f"key {number}"]) > 1:
                return
    pytest.fail("nobody wrote a second chain in 50 races")


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_the_second_waits_for_the_first_ones_outcome(
    opened: OpenStore, observer: psycopg.Connection[Any], dsn: str, commits: bool
) -> None:
    with opened() as store:
        first, second = start_while_another_is_open(store, observer, dsn, commits=commits)
    chains = chains_by_key(observer)["one"]
    assert chains == [first.id if commits else second.id]
    assert (second.id, second.existing) == (chains[0], commits)


@pytest.mark.parametrize("changed", WRONG_STARTS.values(), ids=WRONG_STARTS.keys())
def test_a_wrong_start_is_noticed_while_another_is_open(
    opened: OpenStore, observer: psycopg.Connection[Any], dsn: str, changed: dict[str, bytes]
) -> None:
    with opened(changed) as store:
        start_while_another_is_open(store, observer, dsn, commits=True)
    assert len(chains_by_key(observer)["one"]) == 2


def start_while_another_is_open(
    store: PostgresStore, observer: psycopg.Connection[Any], dsn: str, *, commits: bool
) -> tuple[StartedJob, StartedJob]:
    """The second start does all it can before the first one's transaction ends."""
    done = threading.Event()
    with psycopg.connect(dsn) as mine, psycopg.connect(dsn) as others, ThreadPoolExecutor(1) as threads:
        [first] = store.start_jobs([report("one")], connection=mine)

        def start() -> StartedJob:
            [started] = store.start_jobs([report("one")], connection=others)
            done.set()
            return started

        second = threads.submit(start)
        until_done_or_blocked(observer, others.info.backend_pid, done)
        if commits:
            mine.commit()
        else:
            mine.rollback()
        return first, second.result(_TIMEOUT)


# --- a job that started what it waits for -----------------------------------------------------------------------------


def start_while_a_child_closes(
    dsn: str, store: PostgresStore, observer: psycopg.Connection[Any], changed: dict[str, bytes]
) -> tuple[int, list[object]]:
    """A job waits for a chain that is younger than itself; a new one, for both, starts while that chain closes.

    How many orders of the two there were, and the errors in all of them.
    """

    def setup() -> Sequence[Operation]:
        observer.execute("DELETE FROM queuert.job_blocker")
        observer.execute("DELETE FROM queuert.job")
        store.start_jobs([NewJob("parent", "parent", "1", id_chosen=True)])
        [parent] = store.claim(ClaimRequest({"parent": 60.0}, 1, "me", new_token()))
        child = NewJob("child", "child", "1", id_chosen=True)
        store.finish([Finish(parent, FinishKind.WAIT, starts=(child,), blockers=("child",))])
        [held] = store.claim(ClaimRequest({"child": 60.0}, 1, "me", new_token()))
        waits = NewJob("waits", "waits", "1", blockers=("parent", "child"), id_chosen=True)
        return [on_changed(lambda one: one.start_jobs([waits])), on_changed(lambda one: one.finish([complete(held)]))]

    def on_changed(operation: Operation) -> Operation:
        def run(one: PostgresStore) -> object:
            vars(one._sql).update(changed)
            vars(one._sql).pop("prepared", None)
            return operation(one)

        return run

    failed: list[object] = []

    def check(run: Run) -> None:
        errors = [result for result in run.results if isinstance(result, Exception)]
        failed.extend(errors)
        if not errors:
            assert observer.execute(IMPOSSIBLE).fetchall() == []

    return Explorer(dsn, setup, check).explore(sample=60), failed


def test_a_start_waits_for_a_job_and_for_what_that_waits_for(
    dsn: str, opened: OpenStore, observer: psycopg.Connection[Any]
) -> None:
    """Parents are locked before the children that they wait for by whoever locks both: nobody hangs in the other."""
    with opened() as store:
        count, failed = start_while_a_child_closes(dsn, store, observer, {})
    assert count > 3
    assert failed == []


def test_locks_in_the_other_order_are_noticed(dsn: str, opened: OpenStore, observer: psycopg.Connection[Any]) -> None:
    with opened() as store:
        _, failed = start_while_a_child_closes(dsn, store, observer, {"lock_in_order": LOCKS_NO_DEPENDENTS})
    assert failed
