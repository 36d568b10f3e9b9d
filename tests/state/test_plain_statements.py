"""What most starts and finishes are has lean statements, which say and refuse the same as the general ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from queuert.errors import JobIdConflictError
from queuert.ids import new_token
from queuert.jobs import AbortReason, ChainStatus, JobStatus
from queuert.run_at import after
from queuert.state import Store
from queuert.state.postgres import PostgresState, finishing, parameters
from queuert.state.types import ClaimedJob, ClaimRequest, Finish, FinishKind, FinishResult, NewJob
from tests.state.test_round_trips import steps

TEXTS = ["null", '"null"', '"a\\"b\\\\c,{}"', '{"a": [1, null, "ä"]}', "[]", "1e400", '""', "NULL".lower()]
"""JSON that is easily taken for something else on its way through an array."""


@pytest.fixture
def store(dsn: str) -> Iterator[Store]:
    store = PostgresState(dsn).sync_store()
    store.open()
    yield store
    store.close()


@pytest.fixture
def connection(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def claimed(store: Store, count: int = 1, *, seconds: float = 60.0) -> list[ClaimedJob]:
    return store.claim(ClaimRequest({"work": seconds}, count, "me", new_token()))


def complete(job: ClaimedJob, output: str = "1") -> Finish:
    return Finish(job, FinishKind.COMPLETE, output=output)


# --- arrays -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "texts",
    [
        [],
        ["a"],
        [""],
        ["", ""],
        ["NULL", "{}", ",", " a "],
        ['"'],
        ['","'],
        ["a", '","', "b"],
        ["\\", '\\"', "\\\\"],
        ["ä\n\t", "\U0001f600"],
    ],
)
def test_an_array_has_the_texts_that_were_given(connection: psycopg.Connection[Any], texts: list[str]) -> None:
    row = connection.execute("SELECT %s::text[]", [parameters.text_array(texts)]).fetchone()
    assert row == (texts,)


# --- starts -----------------------------------------------------------------------------------------------------------


def stored(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return connection.execute(
        """
        SELECT type, chain_type, chain_id = id, chain_index, chain_status, status, priority, input::text, trace_context,
            limit_key, result_ttl, has_dependents, scheduled_at - created_at, attempt, deduplication_key, attributes
        FROM queuert.job ORDER BY created_at
        """
    ).fetchall()


def test_both_statements_write_the_same(store: Store, connection: psycopg.Connection[Any]) -> None:
    """All that a plain start may have, by either statement: one job of another priority makes it the general one."""
    jobs = [
        NewJob(f"a{number}", "work", text, priority=3, trace_context="t", limit_key="k", result_ttl=60.0)
        for number, text in enumerate(TEXTS)
    ]
    assert parameters.plain_start(jobs) is not None
    store.start_jobs(jobs)
    plain = stored(connection)
    connection.execute("DELETE FROM queuert.job")
    odd = NewJob("odd", "work", "1", priority=4)
    assert parameters.plain_start([*jobs, odd]) is None
    store.start_jobs([*jobs, odd])
    connection.execute("DELETE FROM queuert.job WHERE id = 'odd'")
    assert plain == stored(connection)
    assert len(plain) == len(TEXTS)


@pytest.mark.parametrize(
    "other", [{"type": "play"}, {"priority": 1}, {"trace_context": "t"}, {"limit_key": "k"}, {"result_ttl": 1.0},
              {"run_at": after(hours=1)}, {"attributes": {"user": "1"}}]
)  # fmt: skip
def test_what_jobs_do_not_share_goes_by_the_general_statement(other: dict[str, Any]) -> None:
    jobs = [NewJob("a", "work", "1"), replace(NewJob("b", "work", "1"), **other)]
    assert parameters.plain_start(jobs) is None


def test_plain_starts_are_in_the_order_of_the_call(store: Store) -> None:
    started = store.start_jobs([NewJob(f"a{number}", "work", "1") for number in range(300)])
    assert [one.id for one in started] == [f"a{number}" for number in range(300)]
    assert [one.created_at for one in started] == sorted({one.created_at for one in started})
    assert [job.id for job in claimed(store, 300)] == [one.id for one in started]


def test_a_plain_start_of_an_id_that_exists_is_refused(store: Store) -> None:
    store.start_jobs([NewJob("a", "work", "1", id_chosen=True)])
    with pytest.raises(JobIdConflictError):
        store.start_jobs([NewJob("b", "work", "1", id_chosen=True), NewJob("a", "work", "1", id_chosen=True)])
    assert store.get_jobs(["b"]) == [None]


# --- finishes
# ----------------------------------------------------------------------------------------------------------


def test_plain_completions_keep_what_was_returned(store: Store) -> None:
    store.start_jobs([NewJob(f'a"{number}', "work", "1", result_ttl=60.0) for number in range(len(TEXTS))])
    finishes = [complete(job, text) for job, text in zip(claimed(store, len(TEXTS)), TEXTS, strict=True)]
    assert finishing.all_simple_completions(finishes)
    assert store.finish(finishes) == [FinishResult(one.job.id) for one in finishes]
    jobs = store.get_jobs([one.job.id for one in finishes])
    assert [job and job.status for job in jobs] == [JobStatus.COMPLETED] * len(TEXTS)
    assert [job and job.output for job in jobs[:5]] == [None, "null", 'a"b\\c,{}', {"a": [1, None, "ä"]}, []]
    for chain in store.get_chains([one.job.id for one in finishes]):
        assert chain is not None
        assert chain.status is ChainStatus.COMPLETED
        assert chain.closed_at is not None
        assert chain.expires_at is not None


def test_an_error_of_an_earlier_attempt_is_gone(store: Store) -> None:
    store.start_jobs([NewJob("a", "work", "1")])
    [job] = claimed(store)
    store.finish([Finish(job, FinishKind.RETRY, crashed=True)])
    [job] = claimed(store)
    store.finish([complete(job)])
    [found] = store.get_jobs(["a"])
    assert found is not None
    assert found.last_error is None


@pytest.mark.parametrize("kind", [FinishKind.COMPLETE, FinishKind.RETRY, FinishKind.INTERRUPT])
def test_tokens_hold_each_for_its_own_job(store: Store, kind: FinishKind) -> None:
    """An old attempt's finish is refused, although its job is held by a token that is among those of the batch.

    With a retry in the batch all of it goes by the statement for failures, with an interruption by the general one.
    """
    store.start_jobs([NewJob("a", "work", "1")])
    [old] = claimed(store)
    store.release([old.lease])
    store.start_jobs([NewJob("b", "work", "1")])
    a, b = claimed(store, 2)
    assert a.token == b.token != old.token
    results = store.finish(
        [complete(old, '"old"'), Finish(b, kind, output="1" if kind is FinishKind.COMPLETE else None)]
    )
    assert results[0] == FinishResult("a", AbortReason.TAKEN_BY_ANOTHER_WORKER)
    assert results[1].written
    assert [job and job.status for job in store.get_jobs(["a"])] == [JobStatus.RUNNING]


@pytest.mark.parametrize("last", ["old", "new"])
def test_two_finishes_of_one_job_are_reported_apart(store: Store, last: str) -> None:
    """Of an attempt that has lost its lease, and of the one that has it now, in one batch, in either order."""
    store.start_jobs([NewJob("a", "work", "1")])
    [old] = claimed(store)
    store.release([old.lease])
    [new] = claimed(store)
    batch = [complete(old, '"old"'), complete(new, '"new"')]
    results = store.finish(batch if last == "new" else batch[::-1])
    assert sorted(result.written for result in results) == [False, True]
    [job] = store.get_jobs(["a"])
    assert job is not None
    assert job.output == "new"


def test_a_dependent_that_came_meanwhile_is_released(store: Store) -> None:
    """The claim knew of none: the lean statement leaves such a row to the general one."""
    store.start_jobs([NewJob("a", "work", "1"), NewJob("b", "work", "1")])
    a, b = claimed(store, 2)
    store.start_jobs([NewJob("waiting", "join", "1", blockers=("a",))])
    assert finishing.all_simple_completions([complete(a), complete(b)])
    results = store.finish([complete(a), complete(b)])
    assert all(result.written for result in results)
    assert "join" in [type for result in results for type in result.due_types]
    assert [job and job.status for job in store.get_jobs(["waiting"])] == [JobStatus.READY]


def test_great_outputs_go_by_the_general_statement(store: Store) -> None:
    store.start_jobs([NewJob("a", "work", "1")])
    [job] = claimed(store)
    finish = complete(job, f'"{"x" * (9 * 1024 * 1024)}"')
    assert not finishing.all_simple_completions([finish])
    assert store.finish([finish])[0].written


@pytest.mark.parametrize("count", [1, 50])
def test_plain_completions_are_one_statement(dsn: str, store: Store, count: int) -> None:
    store.start_jobs([NewJob(f"a{number}", "work", "1") for number in range(count)])
    finishes = [complete(job) for job in claimed(store, count)]
    assert steps(dsn, lambda store: store.finish(finishes)) == 1


# --- inside the caller's transaction ----------------------------------------------------------------------------------


def test_a_transaction_that_completes_takes_two_statements_of_ours(dsn: str, store: Store) -> None:
    """The lock, the finish, and COMMIT: BEGIN is not counted."""
    store.start_jobs([NewJob("a", "work", "1")])
    [job] = claimed(store)

    def work(store: Any) -> None:
        with store.transaction(job) as held:
            held.finish(complete(job))

    assert steps(dsn, work) == 3


def test_whoever_waits_since_this_very_transaction_is_released(store: Store) -> None:
    """The job's own transaction starts a chain that waits for the job's: its row is locked, but not against itself."""
    store.start_jobs([NewJob("a", "work", "1")])
    [job] = claimed(store)
    with store.transaction(job) as held:
        store.start_jobs([NewJob("waiting", "join", "1", blockers=("a",))], connection=held.connection)
        result = held.finish(complete(job))
    assert result.due_types == ("join",)
    assert [one and one.status for one in store.get_jobs(["waiting"])] == [JobStatus.READY]


# --- what they cost ---------------------------------------------------------------------------------------------------


def entries(connection: psycopg.Connection[Any]) -> dict[str, str]:
    """The indexes of jobs, by name, with the condition on what has an entry."""
    return dict(
        connection.execute(
            """
            SELECT indexrelid::regclass::text, coalesce(pg_get_expr(indpred, indrelid), 'true')
            FROM pg_index WHERE indrelid = 'queuert.job'::regclass
            """
        ).fetchall()
    )


def test_the_commonest_moves_write_few_entries(store: Store, connection: psycopg.Connection[Any]) -> None:
    """Each version of a row has an entry in every index whose condition holds: few may hold on the way of most jobs."""

    def holding() -> set[str]:
        return {
            name.removeprefix("queuert.")
            for name, condition in entries(connection).items()
            if connection.execute(f"SELECT FROM queuert.job WHERE id = 'a' AND ({condition})".encode()).rowcount
        }

    store.start_jobs([NewJob("a", "work", "1")])
    assert holding() == {"job_pkey", "job_ready", "job_limit_free", "job_listing_first"}
    [job] = claimed(store)
    assert holding() == {"job_pkey", "job_running"}
    store.finish([complete(job)])
    assert holding() == {"job_pkey", "job_listing_first"}


@pytest.mark.parametrize(("threshold", "mode"), [(1, "force_generic_plan"), (None, "auto")])
def test_connections_that_prepare_are_reported_to_plan_once(dsn: str, threshold: int | None, mode: str) -> None:
    store = PostgresState(dsn, prepare_threshold=threshold).sync_store(max_connections=1)
    store.open()
    try:
        assert store._fetch(b"SHOW plan_cache_mode") == [(mode,)]
    finally:
        store.close()


def test_the_schema_has_one_check(dsn: str, connection: psycopg.Connection[Any]) -> None:
    """Each is parsed anew by every statement that writes a row. The others are of the tests' databases alone."""
    from tests.support.invariants import CHECKS

    names = {
        name
        for (name,) in connection.execute(
            "SELECT conname FROM pg_constraint WHERE conrelid = 'queuert.job'::regclass AND contype = 'c'"
        )
    }
    assert names - set(CHECKS) == {"job_lease_while_running"}
