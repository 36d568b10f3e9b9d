"""Lists are put together from several indexes: whatever a chain or job is doing, it is on them once, in its place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from queuert.ids import new_token
from queuert.jobs import ChainStatus, JobError, JobStatus
from queuert.state import Store
from queuert.state.paging import ChainFilter, JobFilter, PageRequest
from queuert.state.postgres import PostgresState
from queuert.state.types import ClaimedJob, ClaimRequest, Finish, FinishKind, NewJob

CHAINS = {
    "running": ChainStatus.OPEN,
    "completed": ChainStatus.COMPLETED,
    "failed": ChainStatus.FAILED,
    "cancelled": ChainStatus.CANCELLED,
    "long and running": ChainStatus.OPEN,
    "long and completed": ChainStatus.COMPLETED,
    "long and failed": ChainStatus.FAILED,
    "long and cancelled": ChainStatus.CANCELLED,
    "long and ready": ChainStatus.OPEN,
    "ready": ChainStatus.OPEN,
}
"""Chains by what their last jobs are."""

KINDS = {"completed": FinishKind.COMPLETE, "failed": FinishKind.FAIL, "cancelled": FinishKind.CANCEL}


@pytest.fixture
def store(dsn: str) -> Iterator[Store]:
    store = PostgresState(dsn).sync_store()
    store.open()
    yield store
    store.close()


def claimed(store: Store) -> ClaimedJob:
    [job] = store.claim(ClaimRequest({"work": 60.0}, 1, "me", new_token()))
    return job


@pytest.fixture
def filled(store: Store) -> Store:
    """A store with one chain of each kind; jobs of one type, so that first and later ones share what they can share."""
    for name in CHAINS:
        store.start_jobs([NewJob(name, "work", "1")])
        last = name.removeprefix("long and ")
        if name != last:
            following = NewJob(f"after {name}", "work", "2")
            store.finish([Finish(claimed(store), FinishKind.CONTINUE, continuation=following)])
        if last != "ready":
            job = claimed(store)
            if last in KINDS:
                error = JobError("error", "it did not work") if last == "failed" else None
                output = "1" if last == "completed" else None
                store.finish([Finish(job, KINDS[last], output=output, error=error)])
    return store


def walk(store: Store, filter: ChainFilter | JobFilter, *, oldest_first: bool) -> list[str]:
    """The ids on all pages, three at a time."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        request = PageRequest(3, cursor, oldest_first)
        page = (
            store.list_chains(filter, request) if isinstance(filter, ChainFilter) else store.list_jobs(filter, request)
        )
        found += [one.id for one in page]
        cursor = page.next_cursor
        if cursor is None:
            return found


@pytest.mark.parametrize("oldest_first", [True, False])
@pytest.mark.parametrize("types", [None, ("work",)])
def test_chains_of_every_status(filled: Store, types: tuple[str, ...] | None, oldest_first: bool) -> None:
    for wanted in [*((status,) for status in ChainStatus), (ChainStatus.OPEN, ChainStatus.FAILED), None]:
        expected = [name for name, status in CHAINS.items() if wanted is None or status in wanted]
        found = walk(filled, ChainFilter(types=types, statuses=wanted), oldest_first=oldest_first)
        assert found == (expected if oldest_first else expected[::-1])


@pytest.mark.parametrize("oldest_first", [True, False])
@pytest.mark.parametrize("types", [None, ("work",)])
def test_jobs_of_every_status(filled: Store, types: tuple[str, ...] | None, oldest_first: bool) -> None:
    jobs: dict[str, JobStatus] = {}
    for name in CHAINS:
        last = JobStatus(name.removeprefix("long and "))
        jobs[name] = JobStatus.CONTINUED if name.startswith("long") else last
        if name.startswith("long"):
            jobs[f"after {name}"] = last
    for wanted in [*((status,) for status in JobStatus), (JobStatus.RUNNING, JobStatus.READY), None]:
        expected = [name for name, status in jobs.items() if wanted is None or status in wanted]
        found = walk(filled, JobFilter(types=types, statuses=wanted), oldest_first=oldest_first)
        assert found == (expected if oldest_first else expected[::-1])


def test_counts_are_of_first_and_later_jobs(filled: Store) -> None:
    counts = {one.status: one.count for one in filled.count_jobs()}
    assert counts == {
        JobStatus.CONTINUED: 5,
        JobStatus.RUNNING: 2,
        JobStatus.READY: 2,
        JobStatus.COMPLETED: 2,
        JobStatus.FAILED: 2,
        JobStatus.CANCELLED: 2,
    }


def test_a_type_of_which_all_jobs_run_is_found(store: Store) -> None:
    """Without types in the filter these are looked for in several indexes."""
    store.start_jobs([NewJob("a", "work", "1")])
    claimed(store)
    assert walk(store, ChainFilter(), oldest_first=False) == walk(store, JobFilter(), oldest_first=False) == ["a"]
    assert [one.count for one in store.count_jobs()] == [1]
