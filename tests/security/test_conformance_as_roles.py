"""The contract of a state adapter, for a login that has roles and owns nothing: with what two roles have between them,
workers' and operators', every operation of a store goes through."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from queuert import Client, JobTypes
from queuert.deduplication import Deduplicate
from queuert.errors import ChainAlreadyClosedError
from queuert.event_log import EventFilter, EventLevel
from queuert.job_types import BULK_OPERATION_TYPE
from queuert.jobs import JobStatus
from queuert.limits import Limits
from queuert.policies import Keep, Retention
from queuert.schedules import Overlap
from queuert.state.paging import ChainFilter, PageRequest
from queuert.state.postgres import PostgresState
from queuert.state.postgres.protocol import NamedStatement
from queuert.state.postgres.roles import Role
from queuert.state.postgres.statements import Statements, texts, variants
from queuert.state.postgres.sync_store import PostgresStore
from queuert.state.steps import NewEvent
from queuert.state.types import InputEdit, PruneRequest, WorkerlessCompletion
from queuert.testing.conformance import Mode
from queuert.testing.conformance.builders import ask, fail, job, wait
from queuert.testing.conformance.registry import Case, all_cases, run_case
from tests.conformance.test_postgres import Rows
from tests.redis.test_identifiers import Tour
from tests.security.conftest import LoginOf
from tests.state.scenes import SCHEDULE


def one_of_each_group() -> list[Case]:
    """A case of each group; that all of them pass takes minutes to see, and `every_case` is how."""
    groups: dict[str, list[Case]] = {}
    for case in all_cases():
        groups.setdefault(case.group, []).append(case)
    return [cases[len(cases) // 2] for cases in groups.values()]


def run_as_roles(case: Case, owner: str, user: str) -> None:
    """Run a case on a database whose owner's connection string is the first."""
    rows = Rows(owner)
    with psycopg.connect(owner) as connection:
        connection.execute("GRANT SELECT, INSERT ON users_own TO PUBLIC")
    asyncio.run(run_case(case, PostgresState(user), Mode.ASYNC, rows))


@pytest.mark.parametrize("case", one_of_each_group(), ids=str)
def test_a_login_that_works_and_operates(case: Case, granted: str, login: LoginOf) -> None:
    run_as_roles(case, granted, login(Role.WORKER, Role.OPERATOR))


# --- statements -------------------------------------------------------------------------------------------------------


class SeenPrepared(dict[str, NamedStatement]):
    """Prepared statements that remember which were asked for."""

    def __init__(self, prepared: Mapping[str, NamedStatement], requested: set[str]) -> None:
        super().__init__(prepared)
        self._requested = requested

    def __getitem__(self, name: str) -> NamedStatement:
        self._requested.add(name)
        return super().__getitem__(name)


class Seen(Statements):
    """Statements that remember which were asked for."""

    def __init__(self, schema: str) -> None:
        self.requested: set[str] = set()
        super().__init__(schema)
        vars(self)["prepared"] = SeenPrepared(super().prepared, self.requested)

    def __getattribute__(self, name: str) -> Any:
        if name in texts():
            self.requested.add(name)
        return super().__getattribute__(name)


class Touring(PostgresStore):
    """The tour asks this of Redis alone."""

    def why_lost(self, lease: object) -> None:
        """Nothing."""


ELSEWHERE = {
    *("list_partitions", "try_maintenance_lock", "delete_events"),  # The owner's: tests/security/test_roles.py.
    *("complete", "complete_and_commit", "lock_for_attempt"),  # Of a transaction in a handler: test_roles.py.
    "restart_timeout",  # Of a start that takes a minute: tests/state/test_bounds.py.
    *("lock_stranded", "release_stranded"),  # No path leads there: tests/state/test_sweep.py.
    *(
        "find_expired_ids",
        "delete_stale_workers",
        "delete_keys",
        "estimate",
        "notify",
        "notify_after_commit",
        "database",
        "schedule_delays",
    ),  # The cases above.
    *(
        "get_webhook_records",
        "insert_webhook_record",
        "update_webhook_record",
        "delete_webhook_record",
        "record_webhook_attempts",
        "list_webhook_attempts",
        "prune_webhook_attempts",
        "get_chain_attributes",
    ),  # The cases of webhooks, above.
}
"""Statements that the tour does not come by. Bulk writes, Spark's reads, history and adoption are other logins'.
What doctor reads is in tests/doctor."""


@pytest.mark.quick
def test_the_tour_of_all_operations(granted: str, login: LoginOf) -> None:
    with Client(PostgresState(granted), JobTypes()) as owner:
        owner.maintain_event_log()  # The next day may have come since the schema was made: only its owner may add it.
    state: Any = PostgresState(login(Role.WORKER, Role.OPERATOR))
    state._statements = seen = Seen("queuert")
    store: Any = Touring(state._settings, seen, 2)
    store.open()
    try:
        Tour(store, "plain").go()
        store.start_jobs([job(id="a", attributes={"user": ["17"]}), job(id="b", attach=True)])
        store.start_jobs([job(id="b", attach=True)])
        store.start_jobs([job(), job()])
        store.start_jobs([job()])
        store.start_jobs([job(deduplication=Deduplicate("key"))])
        store.start_jobs([job(deduplication=Deduplicate("key", debounce=60.0))])
        assert len(store.chains_of_key("work", "key")) == 1
        [held] = store.claim(ask(limit=1))
        store.finish([wait(held, job("child", inherit_attributes=True))])
        assert store.list_chains(ChainFilter(attributes=(("user", "17"),)), PageRequest()).items
        children = [link.blocker_id for link in store.get_blocker_links(["a"], limit=1)]
        assert len(store.get_dependent_links(children, statuses=(JobStatus.BLOCKED,), limit=1)) == 1
        store.delete_chains(["a"], cascade=True)
        operation = store.start_bulk_operation(job(BULK_OPERATION_TYPE))
        assert store.is_bulk_operation(operation.id)
        store.bound_lock_waits(2.0, connection=None)
        for members in (False, True):
            held = store.held_chains([operation.id, "nowhere"], lock_timeout=2.0, members=members, connection=None)
            assert held == ["nowhere"]
        for limit, after in ((1, None), (9, None), (1, 0)):
            store.claim(replace(ask("fair", limit=limit), limits={"fair": Limits(fair=True)}, after_rank=after))
        store.start_jobs([job(id="asked")])
        assert store.complete_chains([WorkerlessCompletion("asked", "asked", output="1")])[0].written
        with pytest.raises(ChainAlreadyClosedError):
            store.send_event("asked", NewEvent("late", "late", "1"))
        store.start_jobs([job("failing")])
        [failing] = store.claim(replace(ask("failing", limit=1), ready_only=True))
        store.finish([fail(failing)])
        stale = store.prune(PruneRequest({"failing": Retention(failed=Keep(count=0, stale_for=60.0))})).stale_ids
        assert list(stale) == [failing.id]
        going = PruneRequest({"failing": Retention(failed=Keep(count=0))}, preview=True)
        assert list(store.prune(going).chain_ids) == [failing.id]
        store.retry_chains([failing.id], edit=InputEdit(failing.id, "1"))
        store.set_event_level(EventLevel.TERMINAL)
        store.set_event_level(EventLevel.OFF, ["plain"])
        store.set_event_level(None, ["plain"])
        store.list_events(EventFilter(), PageRequest())
        store.event_log_end()
        store.closed_chains(["b"])
        store.get_chain_states(["b"])
        store.get_event_log()
        store.get_demand()
        store.put_schedules([replace(SCHEDULE, overlap=Overlap.SKIP)])
        for number in range(2):
            store.run_schedule(SCHEDULE.name, [job(SCHEDULE.type, id=f"now{number}")], overlap=False)
        store.run_schedule(SCHEDULE.name, [job(SCHEDULE.type, id="now0")], overlap=True)
    finally:
        store.close()
    apart = {
        name for name in texts() if name.startswith(("bulk_", "stream_", "read_", "history_", "adopt_", "doctor_"))
    }
    # What is made from one section needs the same rights.
    requested = {name for section in texts() for name in variants(section) if seen.requested & {*variants(section)}}
    left = sorted(set(texts()) - apart - requested - ELSEWHERE)
    assert not left, (
        f"no role has run these statements: {left}. Call their operations in this test, so that a right that is "
        "missing in queuert/state/postgres/roles.sql is found; or name them in ELSEWHERE, with the test that runs them "
        "as a role."
    )
