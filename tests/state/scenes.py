"""Scenes and operations for pairs in every order: what can be done to one job, and what it may come to.

Whatever the order of their statements, two operations must leave the tables as one after the other would, in one of the
two orders, and say the same. One that passes over locked rows may also have done nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import combinations, permutations
from typing import Any

import psycopg

from queuert.deduplication import Deduplicate
from queuert.errors import JobIdConflictError, NotFoundError, NotInStatusError
from queuert.ids import new_token
from queuert.jobs import JobError
from queuert.policies import Keep, Retention, RetryPolicy
from queuert.run_at import after
from queuert.schedules import MissedRuns
from queuert.state.postgres.sync_store import PostgresStore
from queuert.state.types import (
    ClaimedJob,
    ClaimRequest,
    Finish,
    FinishKind,
    NewJob,
    PruneRequest,
    ReapRequest,
    Renewal,
    ScheduleRecord,
    WorkerlessCompletion,
)
from tests.state.interleaving import Operation

Tables = tuple[tuple[Any, ...], ...]
Outcome = tuple[str, Tables]

FINGERPRINT = """
    SELECT id, status, chain_status, attempt, uncounted, lease_expirations, open_blockers, blocker_count,
        lease_token IS NULL, lease_expires_at IS NULL, chain_closed_at IS NULL, finished_at IS NULL, output::text,
        error ->> 'kind', continued_by
    FROM queuert.job
    UNION ALL
    SELECT job_id || ' waits for ' || blocker_chain_id, closed::text,
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM queuert.job_blocker
    UNION ALL
    SELECT 'schedule ' || name, CASE WHEN next_at > now() THEN 'moved on' END,
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM queuert.schedule
    ORDER BY 1
"""


IMPOSSIBLE = """
    SELECT job.id, 'open_blockers is not the count of open ones' FROM queuert.job
    WHERE open_blockers <> (SELECT count(*) FROM queuert.job_blocker WHERE job_id = job.id AND NOT closed)
    UNION ALL
    SELECT job.id, 'a closed chain counts as open' FROM queuert.job
    JOIN queuert.job_blocker ON job_id = job.id JOIN queuert.job AS chain ON chain.id = blocker_chain_id
    WHERE NOT closed AND chain.chain_status <> 'open'
    UNION ALL
    SELECT id, 'blocked by nothing, or running blocked' FROM queuert.job
    WHERE (status = 'blocked') <> (open_blockers > 0) AND status IN ('blocked', 'scheduled', 'ready', 'running')
    UNION ALL
    SELECT id, 'chain and its only job disagree' FROM queuert.job
    WHERE chain_index = 0 AND status <> 'continued'
        AND chain_status <> CASE WHEN status IN ('completed', 'failed', 'cancelled') THEN status ELSE 'open' END
    UNION ALL
    SELECT id, 'more attempts ended than began' FROM queuert.job WHERE lease_expirations + uncounted > attempt
"""
"""Rows that no order of operations may leave behind, and what is wrong with them."""


def tables(connection: psycopg.Connection[Any]) -> Tables:
    """All that is stored, without times and tokens."""
    return tuple(connection.execute(FINGERPRINT).fetchall())


def outcome(connection: psycopg.Connection[Any], results: Sequence[object]) -> Outcome:
    """What came of operations: what they said, and what is stored now."""
    return repr(list(results)), tables(connection)


LEASE = 3_600.0
SCHEDULE = ScheduleRecord(
    name="s", type="work", input="1", cron=None, every=3_600.0, time_zone="UTC", missed=MissedRuns.ONCE
)
_TABLES = ("job_blocker", "deduplication", "chain_attribute", "schedule", "job_event", "job")
"""What a scene writes to, and what is done in it; who refers to others first."""


class Scene:
    """A chain ``a``, for which ``d`` waits, as a name says; ``k``, which it may wait for, runs.

    The names: ``ready``, ``running``, ``expired`` (a lease that is over), ``second`` (the chain's second job runs),
    ``blocked``, ``scheduled``, ``failed``, ``cancelled`` (while it was blocked), ``closed`` (and what waited for it),
    ``reopened`` (it failed with what it had waited for, and that runs again). A schedule is due, whose tick starts a
    chain.

    ``again`` brings it back to its beginning, from a copy of the tables: that is ten times as fast as to make it anew.
    """

    def __init__(self, name: str, store: PostgresStore, connection: psycopg.Connection[Any]) -> None:
        for table in _TABLES:
            connection.execute(f"DELETE FROM queuert.{table}".encode())
        store.put_schedules([SCHEDULE])
        connection.execute("UPDATE queuert.schedule SET next_at = now() - interval '1 s'")
        self.held: ClaimedJob | None = None
        self.tail = "b" if name == "second" else "a"
        self.gate = _claimed(store, NewJob("k", "gate", "1", id_chosen=True))
        waits = name in ("blocked", "cancelled", "reopened")
        key = Deduplicate("key")
        job = NewJob("a", "work", "1", id_chosen=True, blockers=("k",) if waits else (), deduplication=key)
        if name in ("running", "expired", "failed", "second"):
            self.held = _claimed(store, job)
        else:
            store.start_jobs([replace(job, run_at=after(hours=1) if name == "scheduled" else None)])
        store.start_jobs([NewJob("d", "waits", "1", id_chosen=True, blockers=("a",))])
        if name == "second" and self.held is not None:
            following = NewJob("b", "work", "1", id_chosen=True)
            store.finish([Finish(self.held, FinishKind.CONTINUE, continuation=following)])
            [self.held] = store.claim(ClaimRequest({"work": LEASE}, 1, "me", new_token()))
        if name == "expired":
            connection.execute("UPDATE queuert.job SET lease_expires_at = now() - interval '1 h' WHERE id = 'a'")
        elif name == "failed" and self.held is not None:
            store.finish([Finish(self.held, FinishKind.FAIL)])
        elif name == "cancelled":
            store.cancel_chains(["a"], reason="before")
        elif name == "closed":
            store.cancel_chains(["d", "a"], reason="before")
        elif name == "reopened":
            store.cancel_chains(["k", "a"], reason="before")
            store.retry_chains(["k"])
            [self.gate] = store.claim(ClaimRequest({"gate": LEASE}, 1, "me", new_token()))

        connection.execute("UPDATE queuert.job SET chain_closed_at = chain_closed_at - interval '1 h'")
        self._connection = connection
        for table in _TABLES:
            connection.execute(f"DROP TABLE IF EXISTS before_{table}".encode())
            connection.execute(f"CREATE TABLE before_{table} AS TABLE queuert.{table}".encode())
        self._back = "; ".join(
            [f"DELETE FROM queuert.{table}" for table in _TABLES]
            + [f"INSERT INTO queuert.{table} TABLE before_{table}" for table in _TABLES[::-1]]
        ).encode()

    def again(self) -> Scene:
        """The scene as it was at first."""
        self._connection.execute(self._back)
        return self


def _claimed(store: PostgresStore, job: NewJob) -> ClaimedJob:
    store.start_jobs([job])
    [found] = store.claim(ClaimRequest({job.type: LEASE}, 1, "me", new_token()))
    return found


def _held(scene: Scene) -> ClaimedJob:
    # Where nobody holds the job, a stranger tries.
    if scene.held is not None:
        return scene.held
    gate = scene.gate
    return ClaimedJob(
        "a", "work", "a", "work", 0, 0, 1, 0, 0, 0, False, "1", gate.created_at, gate.created_at, gate.created_at,
        LEASE, new_token(),
    )  # fmt: skip


def claim(scene: Scene) -> Operation:
    """A claim of the job."""
    return lambda store: len(store.claim(ClaimRequest({"work": LEASE}, 1, "me", new_token())))


def renew(scene: Scene) -> Operation:
    """A renewal by its holder."""
    return lambda store: store.renew([Renewal(_held(scene).lease, LEASE)])


def reap(scene: Scene) -> Operation:
    """A reaper that tries again."""
    return lambda store: len(store.reap(ReapRequest({"work": RetryPolicy(initial_delay=0.0)})).reaped)


def reap_at_the_cap(scene: Scene) -> Operation:
    """A reaper that fails the job."""
    return lambda store: len(store.reap(ReapRequest({"work": RetryPolicy(max_attempts=1)})).reaped)


def finish(scene: Scene) -> Operation:
    """Its holder's good end."""
    return lambda store: store.finish([Finish(_held(scene), FinishKind.COMPLETE, output='"held"')])[0].written


def go_on(scene: Scene) -> Operation:
    """Its holder's continuation."""
    following = NewJob("next", "next", "1", id_chosen=True)
    finish = Finish(_held(scene), FinishKind.CONTINUE, continuation=following)
    return lambda store: store.finish([finish])[0].written


def fail(scene: Scene) -> Operation:
    """Its holder gives up."""
    return lambda store: store.finish([Finish(_held(scene), FinishKind.FAIL, error=JobError("fail", "no"))])[0].written


def reschedule(scene: Scene) -> Operation:
    """Its holder has failed, and is to try again later."""
    return lambda store: store.finish([Finish(_held(scene), FinishKind.RETRY, delay=3_600.0)])[0].written


def fail_beside(scene: Scene) -> Operation:
    """Its holder has failed, and is to try again at once; what it may wait for ends in the same batch."""

    def run(store: PostgresStore) -> object:
        failed = Finish(_held(scene), FinishKind.RETRY, error=JobError("handler", "no"))
        ended = store.finish([failed, Finish(scene.gate, FinishKind.COMPLETE, output="1")])
        return [one.written for one in ended]

    return run


def add_blockers(scene: Scene) -> Operation:
    """Its holder waits for another chain, and for one that it starts."""
    child = NewJob("child", "child", "1", id_chosen=True)
    finish = Finish(_held(scene), FinishKind.WAIT, starts=(child,), blockers=("child", "k"))
    return lambda store: store.finish([finish])[0].written


def release(scene: Scene) -> Operation:
    """Its holder gives it back, unstarted."""
    return lambda store: store.release([_held(scene).lease])


def cancel(scene: Scene) -> Operation:
    """A cancel from outside."""
    return _tolerant(lambda store: store.cancel_chains(["a"], reason="no")[0].written)


def complete(scene: Scene) -> Operation:
    """A completion from outside."""
    completion = WorkerlessCompletion("a", scene.tail, output='"outside"')
    return _tolerant(lambda store: store.complete_chains([completion])[0].written)


def unblock(scene: Scene) -> Operation:
    """The end of what it waits for."""
    return lambda store: store.finish([Finish(scene.gate, FinishKind.COMPLETE, output="1")])[0].written


def wait_for(scene: Scene) -> Operation:
    """A start of a job that waits for it."""
    job = NewJob("z", "waits", "1", blockers=("a",), id_chosen=True)
    return _tolerant(lambda store: store.start_jobs([job])[0].status)


def delete(scene: Scene) -> Operation:
    """A deletion, together with what waits for it."""
    return _tolerant(lambda store: store.delete_chains(["d", "a"]).chain_ids)


def retry(scene: Scene) -> Operation:
    """A retry from outside."""
    return _tolerant(lambda store: store.retry_chains(["a"])[0].written)


def trigger(scene: Scene) -> Operation:
    """A trigger."""
    return _tolerant(lambda store: len(store.trigger_jobs(["a"])))


def release_stranded(scene: Scene) -> Operation:
    """A sweep."""
    return lambda store: store.release_stranded().released


def start_of_its_key(scene: Scene) -> Operation:
    """A start of the same deduplication key."""
    job = NewJob("y", "work", "1", deduplication=Deduplicate("key"), id_chosen=True)
    return _tolerant(lambda store: store.start_jobs([job])[0].id)


def prune(scene: Scene) -> Operation:
    """A retirement of what has closed long ago."""
    soon = Keep(age=60.0)
    kept = Retention(completed=soon, failed=soon, cancelled=soon)
    return lambda store: sorted(store.prune(PruneRequest({"work": kept, "waits": kept})).chain_ids)


def tick(scene: Scene) -> Operation:
    """A worker that finds a schedule due, and starts its chain."""

    def run(store: PostgresStore) -> object:
        for one in store.due_schedules(["work"]).due:
            assert one.next_at is not None
            job = NewJob("s@2026-01-01T00:00:00+00:00", "work", "1", id_chosen=True)
            started = store.fire_schedule("s", one.next_at, one.next_at + timedelta(hours=1), [job])
            return None if started is None else [each.id for each in started]
        return None

    return run


def _tolerant(operation: Operation) -> Operation:
    """A refusal by the contract is a result as any other."""

    def run(store: PostgresStore) -> object:
        try:
            return operation(store)
        except (NotInStatusError, NotFoundError, JobIdConflictError) as refusal:
            return type(refusal).__name__

    return run


Action = Callable[[Scene], Operation]

HOMES: dict[Action, tuple[str, ...]] = {
    claim: ("ready",),
    renew: ("running",),
    reap: ("expired",),
    reap_at_the_cap: ("expired",),
    finish: ("expired", "second"),
    fail: ("running", "second"),
    go_on: ("running", "second"),
    reschedule: ("running",),
    fail_beside: ("running", "second"),
    add_blockers: ("running",),
    release: ("running",),
    cancel: (),
    complete: (),
    unblock: ("blocked",),
    wait_for: (),
    delete: (),
    retry: ("failed", "cancelled", "closed", "reopened"),
    trigger: ("scheduled",),
    release_stranded: ("blocked",),
    start_of_its_key: ("ready",),
    prune: ("closed", "failed"),
    tick: (),
}
"""The scenes in which each operation has something to do; none: in any."""

PASSING_OVER: dict[Action, object] = {
    claim: 0,
    renew: [False],
    release: 0,
    reap: 0,
    reap_at_the_cap: 0,
    release_stranded: [],
    prune: [],
    tick: None,
}
"""Operations that pass over what another transaction has locked, and what they say then."""


def meetings(*, everywhere: bool) -> Iterator[tuple[str, Action, Action]]:
    """Every pair of operations, in the scenes where one of them has something to do, or in one of these.

    That is one in which both have, if there is any.
    """
    actions = list(HOMES)
    for place, one in enumerate(actions):
        for other in actions[place:]:
            both = [name for name in HOMES[one] if name in HOMES[other]]
            names = tuple(dict.fromkeys((*both, *HOMES[one], *HOMES[other]))) or ("running", "second")
            for name in names if everywhere else names[:1]:
                yield name, one, other


def outcomes(
    scene: Scene, actions: Sequence[Action], store: PostgresStore, connection: psycopg.Connection[Any]
) -> set[Outcome]:
    """What may come of it: the operations one by one, in any order, those left out that may pass over locked rows."""
    found: set[Outcome] = set()
    may_pass = [place for place, action in enumerate(actions) if action in PASSING_OVER]
    for count in range(len(may_pass) + 1):
        for left_out in combinations(may_pass, count):
            for order in permutations(place for place in range(len(actions)) if place not in left_out):
                scene.again()
                results = [PASSING_OVER.get(action) for action in actions]
                for place in order:
                    results[place] = actions[place](scene)(store)
                found.add(outcome(connection, results))
    return found
