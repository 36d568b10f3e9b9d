"""The contract as a model: random sequences of operations, after each of which the store must show what the model says.

The model is a dictionary of jobs and the rules of the contract in their plainest form. It knows one client and no
concurrency; races have tests of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import hypothesis.strategies as st
import psycopg
import pytest
import redis
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from queuert.deduplication import Deduplicate
from queuert.errors import (
    BlockerReferenceError,
    ChainNotRetriableError,
    JobNotTriggerableError,
)
from queuert.ids import new_id, new_token
from queuert.jobs import AbortReason, ChainStatus, JobStatus
from queuert.policies import RetryPolicy
from queuert.run_at import RunAt
from queuert.state import Store
from queuert.state.adapter import StateAdapter
from queuert.state.postgres import PostgresState
from queuert.state.redis import RedisState
from queuert.state.sqlite import SQLiteState
from queuert.state.types import (
    ClaimedJob,
    ClaimRequest,
    Finish,
    FinishKind,
    NewJob,
    ReapRequest,
    Renewal,
    WorkerlessCompletion,
)
from queuert.testing.redis_scan import scan
from tests.model.sequences import try_sequences
from tests.model.simulation.outside import WholeStore

pytestmark = pytest.mark.timeout(600)

TYPES = ("a", "b")
AT_ONCE = RetryPolicy(max_attempts=1000, initial_delay=0.0, jitter=0.0, max_crashes=1000)
LATER = RunAt(delay=3600.0)

READY, BLOCKED, SCHEDULED, RUNNING = JobStatus.READY, JobStatus.BLOCKED, JobStatus.SCHEDULED, JobStatus.RUNNING


@dataclass
class ModelJob:
    """What the model knows of one job."""

    id: str
    type: str
    chain: str
    index: int
    status: JobStatus
    blockers: list[str] = field(default_factory=list)
    later: bool = False
    key: str | None = None
    attempt: int = 0
    uncounted: int = 0
    expirations: int = 0
    token: str | None = None
    waits_for: set[str] = field(default_factory=set)
    """Those of its blockers that it was not let go by."""


class Model:
    """Jobs and chains by the plainest rules."""

    def __init__(self) -> None:
        self.jobs: dict[str, ModelJob] = {}
        self.chains: dict[str, ChainStatus] = {}

    def tail(self, chain: str) -> ModelJob:
        return max((job for job in self.jobs.values() if job.chain == chain), key=lambda job: job.index)

    def open_among(self, chains: Iterable[str]) -> set[str]:
        return {chain for chain in chains if self.chains[chain] is ChainStatus.OPEN}

    def resting_status(self, job: ModelJob) -> JobStatus:
        if job.waits_for:
            return BLOCKED
        return SCHEDULED if job.later else READY

    def standing_in(self, type: str, key: str, scope: str) -> str | None:
        same = [
            job.id
            for job in self.jobs.values()
            if job.index == 0 and (job.type, job.key) == (type, key)
            and (scope == "any" or self.chains[job.id] is ChainStatus.OPEN)
        ]  # fmt: skip
        return same[-1] if same else None

    def add(self, job: ModelJob) -> None:
        self.jobs[job.id] = job
        if job.index == 0:
            self.chains[job.id] = ChainStatus.OPEN
        job.waits_for = self.open_among(job.blockers)
        job.status = self.resting_status(job)

    def close(self, chain: str, status: ChainStatus) -> None:
        self.chains[chain] = status
        for job in self.jobs.values():
            job.waits_for.discard(chain)
            if job.status is BLOCKED:
                job.status = self.resting_status(job)

    def reopen(self, chain: str) -> None:
        """Who still waits for others waits for it again; who was let go is not stopped."""
        self.chains[chain] = ChainStatus.OPEN
        for job in self.jobs.values():
            if job.status is BLOCKED and chain in job.blockers:
                job.waits_for.add(chain)

    def references(self, chain: str) -> bool:
        return any(chain in job.blockers for job in self.jobs.values() if job.chain != chain)

    def delete(self, chain: str) -> None:
        del self.chains[chain]
        self.jobs = {id: job for id, job in self.jobs.items() if job.chain != chain}


FINISHES = {
    FinishKind.COMPLETE: (JobStatus.COMPLETED, ChainStatus.COMPLETED),
    FinishKind.FAIL: (JobStatus.FAILED, ChainStatus.FAILED),
    FinishKind.CANCEL: (JobStatus.CANCELLED, ChainStatus.CANCELLED),
}


class StoreMachine(RuleBasedStateMachine):
    """Operations on a store, told to the model as well."""

    place: Place
    store: Store

    leases = Bundle("leases")
    stale = Bundle("stale")

    @initialize()
    def begin(self) -> None:
        self.store = self.place.emptied()
        self.model = Model()

    # --- start --------------------------------------------------------------------------------------------------------

    @rule(
        type=st.sampled_from(TYPES),
        later=st.booleans(),
        key=st.sampled_from([None, None, "k"]),
        scope=st.sampled_from(["open", "any"]),
        limit_key=st.sampled_from([None, None, "x", "y"]),
        priority=st.integers(-1, 1),
        data=st.data(),
    )
    def start(
        self,
        type: str,
        later: bool,
        key: str | None,
        scope: str,
        limit_key: str | None,
        priority: int,
        data: st.DataObject,
    ) -> None:
        known = list(self.model.chains)
        blockers = data.draw(st.lists(st.sampled_from(known), unique=True, max_size=2)) if known else []
        expected = None if key is None else self.model.standing_in(type, key, scope)
        new = NewJob(
            id=new_id(),
            type=type,
            input="1",
            run_at=LATER if later else None,
            blockers=tuple(blockers),
            deduplication=None if key is None else Deduplicate(key, scope=scope),
            limit_key=limit_key,
            priority=priority,
        )
        [started] = self.store.start_jobs([new])
        assert started.existing is (expected is not None)
        assert started.id == (expected or new.id)
        if expected is None:
            self.model.add(ModelJob(new.id, type, new.id, 0, READY, list(blockers), later, key))

    # --- claim and end ------------------------------------------------------------------------------------------------

    @rule(target=leases, type=st.sampled_from(TYPES), limit=st.integers(1, 3))
    def claim(self, type: str, limit: int) -> Any:
        due = {job.id for job in self.model.jobs.values() if job.type == type and job.status is READY}
        claimed = self.store.claim(ClaimRequest({type: 600.0}, limit, "holder", new_token()))
        assert len(claimed) == min(limit, len(due))
        assert {one.id for one in claimed} <= due
        for one in claimed:
            job = self.model.jobs[one.id]
            job.status, job.attempt, job.token = RUNNING, job.attempt + 1, one.token
            assert one.attempt == job.attempt
        return multiple(*claimed)

    def _holds(self, lease: ClaimedJob) -> ModelJob | None:
        job = self.model.jobs.get(lease.id)
        return job if job is not None and job.status is RUNNING and job.token == lease.token else None

    @rule(
        target=stale,
        lease=consumes(leases),
        kind=st.sampled_from(list(FinishKind)),
        blockers_of_own=st.booleans(),
    )
    def finish(self, lease: ClaimedJob, kind: FinishKind, blockers_of_own: bool) -> ClaimedJob:
        job = self._holds(lease)
        finish = self._finish(lease, kind, blockers_of_own)
        [result] = self.store.finish([finish])
        assert result.written is (job is not None), (result, kind)
        if job is not None:
            self._ended(job, finish)
        return lease

    def _finish(self, lease: ClaimedJob, kind: FinishKind, blocked: bool) -> Finish:
        if kind is FinishKind.COMPLETE:
            return Finish(lease, kind, output='"done"')
        if kind is FinishKind.CONTINUE:
            others = [chain for chain in self.model.chains if chain != lease.chain_id]
            following = NewJob(id=new_id(), type="b", input="2", blockers=tuple(others[:1]) if blocked else ())
            return Finish(lease, kind, continuation=following)
        if kind is FinishKind.WAIT:
            child = NewJob(id=new_id(), type="a", input="3")
            return Finish(lease, kind, starts=(child,), blockers=(child.id,))
        if kind is FinishKind.SNOOZE:
            return Finish(lease, kind, run_at=LATER if blocked else None)
        return Finish(lease, kind)

    def _ended(self, job: ModelJob, finish: Finish) -> None:
        kind = finish.kind
        if kind in FINISHES:
            job.status, closed = FINISHES[kind]
            self.model.close(job.chain, closed)
        elif kind is FinishKind.CONTINUE:
            following = finish.continuation
            assert following is not None
            job.status = JobStatus.CONTINUED
            self.model.add(
                ModelJob(following.id, following.type, job.chain, job.index + 1, READY, list(following.blockers))
            )
        elif kind is FinishKind.WAIT:
            for child in finish.starts:
                self.model.add(ModelJob(child.id, child.type, child.id, 0, READY))
            job.blockers += finish.blockers
            job.waits_for = self.model.open_among(finish.blockers)
            job.uncounted += 1
            job.status, job.later = BLOCKED, False
        else:
            job.uncounted += kind in (FinishKind.INTERRUPT, FinishKind.SNOOZE)
            job.later = finish.run_at is not None
            job.status = SCHEDULED if job.later else READY

    @rule(lease=stale, kind=st.sampled_from([FinishKind.FAIL, FinishKind.INTERRUPT]))
    def finish_again(self, lease: ClaimedJob, kind: FinishKind) -> None:
        """A finish of an attempt that has ended changes nothing, whatever it says."""
        self.store.finish([Finish(lease, kind)])

    @rule(lease=consumes(leases), target=stale)
    def release(self, lease: ClaimedJob) -> ClaimedJob:
        job = self._holds(lease)
        assert self.store.release([lease.lease]) == (job is not None)
        if job is not None:
            job.status, job.attempt, job.later = READY, job.attempt - 1, False
        return lease

    @rule(lease=consumes(leases), target=stale)
    def expire(self, lease: ClaimedJob) -> ClaimedJob:
        job = self._holds(lease)
        assert self.store.renew([Renewal(lease.lease, 0.001)]) == [job is not None]
        if job is not None:
            reaped: list[str] = []
            while not reaped:
                reaped = [one.id for one in self.store.reap(ReapRequest({job.type: AT_ONCE})).reaped]
            assert reaped == [job.id]
            job.status, job.expirations, job.later = READY, job.expirations + 1, False
            assert self.store.lost_reasons([lease.lease]) == [AbortReason.TAKEN_BY_ANOTHER_WORKER]
        return lease

    # --- from outside -------------------------------------------------------------------------------------------------

    def _some_chain(self, data: st.DataObject) -> str | None:
        return data.draw(st.sampled_from(list(self.model.chains))) if self.model.chains else None

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        chain = self._some_chain(data)
        if chain is None:
            return
        tail = self.model.tail(chain)
        was_open = self.model.chains[chain] is ChainStatus.OPEN
        [done] = self.store.cancel_chains([chain], reason="not wanted")
        assert (done.written, done.previous_status, done.job_id) == (was_open, tail.status, tail.id)
        if was_open:
            tail.status = JobStatus.CANCELLED
            self.model.close(chain, ChainStatus.CANCELLED)

    @rule(data=st.data(), goes_on=st.booleans())
    def complete(self, data: st.DataObject, goes_on: bool) -> None:
        chain = self._some_chain(data)
        if chain is None:
            return
        tail = self.model.tail(chain)
        was_open = self.model.chains[chain] is ChainStatus.OPEN
        following = NewJob(id=new_id(), type="a", input="4") if goes_on else None
        completion = WorkerlessCompletion(chain, tail.id, None if goes_on else "1", following)
        [done] = self.store.complete_chains([completion])
        assert (done.written, done.previous_status) == (was_open, tail.status)
        if was_open and following is not None:
            tail.status = JobStatus.CONTINUED
            self.model.add(ModelJob(following.id, following.type, chain, tail.index + 1, READY))
        elif was_open:
            tail.status = JobStatus.COMPLETED
            self.model.close(chain, ChainStatus.COMPLETED)

    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        chain = self._some_chain(data)
        if chain is None:
            return
        if self.model.chains[chain] not in (ChainStatus.FAILED, ChainStatus.CANCELLED):
            with pytest.raises(ChainNotRetriableError):
                self.store.retry_chains([chain])
            return
        self.store.retry_chains([chain])
        self.model.reopen(chain)
        tail = self.model.tail(chain)
        tail.waits_for = self.model.open_among(tail.blockers)
        tail.uncounted, tail.expirations, tail.later = tail.attempt, 0, False
        tail.status = self.model.resting_status(tail)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        chain = self._some_chain(data)
        if chain is None:
            return
        if self.model.references(chain):
            with pytest.raises(BlockerReferenceError):
                self.store.delete_chains([chain])
            return
        assert list(self.store.delete_chains([chain]).chain_ids) == [chain]
        self.model.delete(chain)

    @rule(data=st.data())
    def trigger(self, data: st.DataObject) -> None:
        if not self.model.jobs:
            return
        job = self.model.jobs[data.draw(st.sampled_from(list(self.model.jobs)))]
        if job.status not in (READY, SCHEDULED):
            with pytest.raises(JobNotTriggerableError):
                self.store.trigger_jobs([job.id])
            return
        self.store.trigger_jobs([job.id])
        job.status, job.later = READY, False

    @rule()
    def release_stranded(self) -> None:
        """Nothing is ever stranded, so there is nothing to repair."""
        assert not self.store.release_stranded().released

    # --- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def store_shows_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        jobs, chains = self.place.stored(self.model)
        expected = {
            job.id: (
                job.chain, job.index, job.status.value, job.attempt, job.uncounted, job.expirations,
                len(job.waits_for) if job.status is BLOCKED else jobs.get(job.id, (None,) * 7)[6],
            )
            for job in self.model.jobs.values()
        }  # fmt: skip
        assert jobs == expected
        assert chains == {id: status.value for id, status in self.model.chains.items()}


# --- where -----------------------------------------------------------------------------------------------------------


class Place(Protocol):
    """A store that can be emptied and looked at."""

    def emptied(self) -> Store:
        """The store, with nothing in it."""
        ...

    def stored(self, model: Model) -> tuple[dict[str, tuple[Any, ...]], dict[str, str]]:
        """What is in it: jobs and the statuses of chains, by id."""
        ...


class PostgresPlace:
    """Looked at with SQL."""

    def __init__(self, sql: psycopg.Connection[Any], store: Store) -> None:
        self._sql = sql
        self._store = store

    def emptied(self) -> Store:
        tables = ("job", "job_blocker", "job_step", "sent_event", "bulk_operation", "deduplication")
        self._sql.execute(f"TRUNCATE {', '.join(f'queuert.{table}' for table in tables)}".encode())
        return self._store

    def stored(self, model: Model) -> tuple[dict[str, tuple[Any, ...]], dict[str, str]]:
        jobs = {row[0]: row[1:] for row in self._sql.execute(
            "SELECT id, chain_id, chain_index, status, attempt, uncounted, lease_expirations, open_blockers "
            "FROM queuert.job"
        )}  # fmt: skip
        return jobs, dict(self._sql.execute("SELECT id, status FROM queuert.chain").fetchall())


class FreshPlace:
    """A new place for each sequence, looked at with the store's own operations, and checked."""

    def __init__(self, new_state: Callable[[str], StateAdapter], faults: Callable[[str], list[str]]) -> None:
        self._new_state = new_state
        self._faults = faults
        self._name = ""
        self._store: Store | None = None

    def emptied(self) -> Store:
        self.close()
        self._name = new_id()
        self._store = self._new_state(self._name).sync_store(max_connections=1)
        self._store.open()
        return self._store

    def stored(self, model: Model) -> tuple[dict[str, tuple[Any, ...]], dict[str, str]]:
        assert self._store is not None
        assert self._faults(self._name) == []
        jobs = {
            job.id: (
                job.chain_id, job.chain_index, job.status.value, job.attempt, job.uncounted, job.lease_expirations,
                job.open_blockers,
            )
            for job in self._store.get_jobs(list(model.jobs)) if job is not None
        }  # fmt: skip
        assert sum(one.count for one in self._store.count_jobs()) == len(jobs)
        chains = self._store.get_chains(list(model.chains))
        return jobs, {chain.id: chain.status.value for chain in chains if chain is not None}

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


def test_any_sequence_of_operations(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as sql:
        store = PostgresState(dsn).sync_store(max_connections=1)
        store.open()
        try:
            try_sequences(StoreMachine, 100, place=PostgresPlace(sql, store))
        finally:
            store.close()


def test_any_sequence_on_redis(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:

        def fresh(name: str) -> RedisState:
            client.flushdb()
            return RedisState(redis_url, namespace=name)

        place = FreshPlace(fresh, lambda name: scan(client, name, alone=True))
        try:
            try_sequences(StoreMachine, 50, place=place)
        finally:
            place.close()


def test_any_sequence_on_sqlite(tmp_path: Path) -> None:
    place = FreshPlace(lambda name: SQLiteState(tmp_path / name), lambda name: [])
    try:
        try_sequences(StoreMachine, 50, place=place)
    finally:
        place.close()


def test_any_sequence_in_memory() -> None:
    place = FreshPlace(lambda name: SQLiteState(), lambda name: [])
    try:
        try_sequences(StoreMachine, 50, place=place)
    finally:
        place.close()


class PlainPlace:
    """The store that the simulation of workers runs on, looked at from within."""

    def emptied(self) -> Store:
        self._store = WholeStore(time.monotonic)
        return cast("Store", self._store)

    def stored(self, model: Model) -> tuple[dict[str, tuple[Any, ...]], dict[str, str]]:
        jobs = {
            job.id: (
                job.chain, job.index, job.status.value, job.attempt, job.uncounted, job.expirations, len(job.waits_for)
            )
            for job in self._store.jobs.values()
        }  # fmt: skip
        return jobs, {id: status.value for id, status in self._store.chains.items()}


@pytest.mark.quick
def test_any_sequence_on_the_simulated_store() -> None:
    try_sequences(StoreMachine, 50, place=PlainPlace())
