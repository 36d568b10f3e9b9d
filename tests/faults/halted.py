"""A process that stops inside a transaction and later repeats the operation: ``python -m tests.faults.halted NAME``."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, LiteralString

import psycopg
from psycopg.pq import TransactionStatus

from queuert.deduplication import Deduplicate
from queuert.errors import JobIdConflictError, StateUnavailableError
from queuert.ids import new_token
from queuert.limits import Limits
from queuert.policies import RetryPolicy
from queuert.run_at import after
from queuert.schedules import MissedRuns
from queuert.state.postgres import PostgresState
from queuert.state.postgres.bulk import BulkSettings, bulk_session, copy_rows, make_stage
from queuert.state.postgres.bulk_commit import BulkStart, Part, commit_write
from queuert.state.sync_store import Store
from queuert.state.types import (
    ClaimRequest,
    Finish,
    FinishKind,
    NewJob,
    PruneRequest,
    ReapRequest,
    ScheduleRecord,
    WorkerlessCompletion,
)

TIMEOUT = 3.0
"""The process's `answer_timeout` in seconds; the server ends its transaction after a third of it."""


def request(*types: str, limit: int = 5) -> ClaimRequest:
    """Claim jobs of these types, of which ``limited`` has a limit."""
    return ClaimRequest(dict.fromkeys(types, 60.0), limit, "me", new_token(), {"limited": Limits(concurrency=50)})


def job(id: str, *, type: str = "work", **given: Any) -> NewJob:
    """Start a chain with an id of its own."""
    return NewJob(id, type, "{}", id_chosen=True, **given)


def _execute(statement: LiteralString) -> None:
    with psycopg.connect(os.environ["QUEUERT_URL"], autocommit=True) as connection:
        connection.execute(statement)


@dataclass(frozen=True)
class Case:
    """The operation of the process, and the operation of another client that must not be blocked by it."""

    run: Callable[[Store, Any], object]
    other: Callable[[Store], object]
    prepare: Callable[[Store], Any] = lambda store: None
    statement: int = 2
    """The statement of the transaction before which the process stops."""


def _chains(*ids: str) -> Callable[[Store], Any]:
    return lambda store: store.start_jobs([job(id) for id in ids])


def _claimed(store: Store) -> Any:
    store.start_jobs([job("a"), job("b", type="rare")])
    [claimed] = store.claim(request("work"))
    return claimed


def _acquire_live(store: Store) -> Any:
    """Make a job whose lease has expired, and that has a dependent."""
    store.start_jobs([job("a")])
    store.start_jobs([job("c", type="rare", blockers=("a",))])
    store.claim(request("work"))
    _execute("update queuert.job set lease_expires_at = now() - interval '1 h' where lease_token is not null")


def _failed(store: Store) -> Any:
    claimed = _claimed(store)
    store.cancel_chains(["a"], reason="for a test")
    return claimed


def _expired(store: Store) -> Any:
    _failed(store)
    _execute("update queuert.job set expires_at = now() - interval '1 h' where id = 'a'")


def _scheduled(store: Store) -> Any:
    store.put_schedules([ScheduleRecord("s", "work", "{}", None, 60.0, "UTC", MissedRuns.SKIP)])
    return store.list_schedules()[0].next_at


def _old_day(store: Store) -> Any:
    store.maintain_event_log()
    _execute(
        "create table queuert.job_event_20200101 partition of queuert.job_event "
        "for values from ('2020-01-01 00:00:00+00') to ('2020-01-02 00:00:00+00')"
    )


def _staged(store: Store) -> Any:
    tag = new_token()
    with bulk_session(BulkSettings(os.environ["QUEUERT_URL"], "queuert")) as session:
        stage = make_stage(session, "w")
        copy_rows(
            session, stage, ("tag", "place", "input", "id", "deduplication_key"), [f"{tag}\t0\t1\tx\tk\n".encode()]
        )
    return stage, BulkStart("work", new_token(), [Part(tag, 1)], has_ids=True, has_keys=True)


def _write(store: Store, given: Any) -> object:
    settings = BulkSettings(os.environ["QUEUERT_URL"], "queuert", idle_timeout=1.0)
    with bulk_session(settings) as session:
        return commit_write(session, *given)


def _continued(claimed: Any) -> list[Finish]:
    after_b = NewJob("next", "work", "{}", blockers=("b",))
    return [Finish(claimed, FinishKind.CONTINUE, output="1", continuation=after_b)]


CASES = {
    "claim under limits": Case(
        lambda store, _: store.claim(request("limited")),
        lambda store: store.claim(request("limited")) or store.get_jobs(["l"])[0].status == "running",  # type: ignore[union-attr]
        prepare=lambda store: store.start_jobs([job("l", type="limited")]),
    ),
    "start with a key": Case(
        lambda store, _: store.start_jobs([job("a", deduplication=Deduplicate("k"))]),
        lambda store: store.start_jobs([job("b", deduplication=Deduplicate("k"))]),
    ),
    "start behind a chain": Case(
        lambda store, _: store.start_jobs([job("c", blockers=("a",))]),
        lambda store: store.cancel_chains(["a"], reason="for a test"),
        prepare=_chains("a"),
    ),
    "finish with a continuation that waits": Case(
        lambda store, claimed: store.finish(_continued(claimed)),
        lambda store: store.cancel_chains(["b"], reason="for a test"),
        prepare=_claimed,
    ),
    "fail the last attempt": Case(
        lambda store, _: store.reap(ReapRequest({"work": RetryPolicy(max_attempts=1)})),
        lambda store: store.cancel_chains(["a"], reason="for a test"),
        prepare=_acquire_live,
    ),
    "complete from outside": Case(
        lambda store, _: store.complete_chains([WorkerlessCompletion("a", "a", output="1")]),
        lambda store: store.claim(request("work")) or store.cancel_chains(["a"], reason="for a test"),
        prepare=_chains("a"),
    ),
    "cancel": Case(
        lambda store, _: store.cancel_chains(["a"], reason="for a test"),
        lambda store: store.cancel_chains(["a"], reason="for a test"),
        prepare=_chains("a"),
    ),
    "retry": Case(
        lambda store, _: store.get_chains(["a"])[0].status == "open" or store.retry_chains(["a"]),  # type: ignore[union-attr]
        lambda store: store.retry_chains(["a"]),
        prepare=_failed,
    ),
    "trigger": Case(
        lambda store, _: store.trigger_jobs(["a"]),
        lambda store: store.trigger_jobs(["a"]),
        prepare=lambda store: store.start_jobs([job("a", run_at=after(hours=1))]),
    ),
    "delete": Case(
        lambda store, _: store.delete_chains(["a"]),
        lambda store: store.delete_chains(["a"]),
        prepare=_chains("a"),
    ),
    "prune": Case(
        lambda store, _: store.prune(PruneRequest()),
        lambda store: store.delete_chains(["a"]),
        prepare=_expired,
    ),
    "fire a schedule": Case(
        lambda store, tick: store.fire_schedule("s", tick, tick + timedelta(minutes=1), [job(f"s@{tick.isoformat()}")]),
        lambda store: store.delete_schedules(["s"]),
        prepare=_scheduled,
    ),
    "maintenance of the event log": Case(
        lambda store, _: store.maintain_event_log(),
        lambda store: store.start_jobs([job("a")]),
        prepare=_old_day,
        statement=4,
    ),
    "bulk write": Case(
        _write,
        lambda store: store.start_jobs([job("b", deduplication=Deduplicate("k"))]),
        prepare=_staged,
        statement=6,
    ),
    "start in parts": Case(
        lambda store, _: store.start_pipelined(_parts()),
        lambda store: store.start_jobs([job("p0")]),
    ),
}


def _parts() -> Generator[list[NewJob]]:
    yield [job("p0")]
    if not _stopped:
        _wait_for_idle_transaction()
    _stop()
    yield [job("p1")]


def _wait_for_idle_transaction() -> None:
    """Wait until the server has written what it was sent: else the other client could be first."""
    idle = "select 1 from pg_stat_activity where state = 'idle in transaction' and datname = current_database()"
    with psycopg.connect(os.environ["QUEUERT_URL"], autocommit=True) as connection:
        while not connection.execute(idle).fetchone():
            pass


_stopped = False


def _stop() -> None:
    global _stopped
    if not _stopped:
        _stopped = True
        os.kill(os.getpid(), signal.SIGSTOP)


def _stops_before(statement: int) -> None:
    """Stop this process once, before it sends a statement of a transaction."""
    wait, count = psycopg.Connection.wait, 0

    def counted(self: psycopg.Connection[Any], *arguments: Any, **more: Any) -> Any:
        nonlocal count
        if self.pgconn.transaction_status == TransactionStatus.INTRANS and not _stopped:
            count += 1
            if count == statement:
                _stop()
        return wait(self, *arguments, **more)

    vars(psycopg)["Connection"].wait = counted


def main() -> int:
    """Run the operation, and repeat it for as long as the store is unavailable."""
    case = CASES[sys.argv[1]]
    store = PostgresState(os.environ["QUEUERT_URL"], answer_timeout=TIMEOUT).sync_store()
    store.open()
    given = case.prepare(store)
    if sys.argv[1] != "start in parts":
        _stops_before(case.statement)
    failures = 0
    while True:
        try:
            case.run(store, given)
        except StateUnavailableError as error:
            failures += 1
            print(error, file=sys.stderr)
            continue
        except JobIdConflictError:
            # Another client has started the chain meanwhile.
            pass
        break
    store.close()
    return 0 if failures else 3


if __name__ == "__main__":
    raise SystemExit(main())
