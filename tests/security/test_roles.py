"""Roles of the database: what each may do is enough for its work, and all else is refused by Postgres itself."""

from __future__ import annotations

import json
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.errors import InsufficientPrivilege

from queuert import (
    AsyncClient,
    Attempt,
    Client,
    InProcessWorker,
    JobType,
    JobTypes,
    Limits,
    Outcome,
    PostgresState,
    after,
)
from queuert.bulk_operations import BulkAction, BulkProgress, BulkRequest, encode_batch
from queuert.cli import main
from queuert.deduplication import Deduplicate
from queuert.errors import ConfigurationError, MigrationError, RightMissingError, SchemaMissingError, StateError
from queuert.job_types import BULK_OPERATION_TYPE
from queuert.jobs import ChainStatus, JobStatus
from queuert.migrations import downgrade, upgrade
from queuert.notify.in_process import InProcessNotify
from queuert.observability.events import ChainStarted, EventLogMaintenanceFailed
from queuert.policies import RetryPolicy
from queuert.schedules import RecurringSchedule
from queuert.state.paging import ChainFilter
from queuert.state.postgres import bulk, bulk_commit
from queuert.state.postgres.bulk import BulkSettings, bulk_session
from queuert.state.postgres.roles import Role, grant_roles, role_names, roles_sql
from queuert.state.types import NewJob
from queuert.testing.events import EventLog
from queuert.worker import Processors
from tests.security.conftest import LoginOf, Logins
from tests.support.addresses import as_user

WAIT = 20.0
number = JobType("number", input=int, output=int)
pair = JobType("pair", input=int, output=int, continues_with=number)
TYPES = JobTypes(number, pair)


def processors() -> Processors:
    """Handlers of all kinds: limited, continuing, completing in a transaction."""
    found = Processors(TYPES, retry=RetryPolicy(initial_delay=0.0, jitter=0.0, max_attempts=2))

    @found.handles(number, limits=Limits(concurrency=5))
    async def counting(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.input < 0 and attempt.number == 1:
            raise ValueError("once")
        async with attempt.complete() as tx:
            return tx.finish(abs(attempt.input))

    @found.handles(pair)
    async def pairing(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.continue_with(number, attempt.input + 1)

    return found


# --- what they may ----------------------------------------------------------------------------------------------------


async def test_workers_carry_out_only_the_bulk_operations_that_operators_start(granted: str, login: LoginOf) -> None:
    """A client cannot have done by workers what it may not do itself."""
    starter, operator = (AsyncClient(PostgresState(login(role)), TYPES) for role in (Role.CLIENT, Role.OPERATOR))
    worker = AsyncClient(PostgresState(login(Role.WORKER)), TYPES)
    async with starter, operator, worker:
        chain = await starter.start_chain(number, 1)
        with pytest.raises(StateError):
            await starter.start_bulk_operation("cancel", requested_by="the client")
        request = BulkRequest(BulkAction.CANCEL, ChainFilter(statuses=(ChainStatus.OPEN,)), "the client")
        forged = NewJob("forged", BULK_OPERATION_TYPE, encode_batch(request, BulkProgress()))
        store = PostgresState(login(Role.CLIENT)).async_store()
        await store.open()
        await store.start_jobs([forged])
        await store.aclose()
        await worker.run_bulk_operations()
        refused = await worker.get_bulk_operation("forged")
        assert (refused.status, (await starter.get_chain(chain.id)).status) == (ChainStatus.FAILED, ChainStatus.OPEN)
        assert "must be started by start_bulk_operation()" in str(refused.error)
        operation = await operator.start_bulk_operation("reprioritize", requested_by="ana", priority=5)
        cancel = await operator.start_bulk_operation("cancel", requested_by="ana")
        await worker.run_bulk_operations()
        assert (await operator.get_bulk_operation(operation.id)).changed == 1
        assert (await operator.get_bulk_operation(cancel.id)).changed == 1
        await operator.pause_job_types([number], by="ana")
        await operator.delete_chains([operation.id, cancel.id])


def drop_days(dsn: str) -> None:
    """Take away the days of the event log: somebody has to make them."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for (name,) in connection.execute("select relname from pg_class where relname ~ '^job_event_[0-9]{8}$'"):
            connection.execute(sql.SQL("drop table {}").format(sql.Identifier("queuert", name)))


async def test_clients_start_and_workers_work(granted: str, login: LoginOf) -> None:
    """A client that may not work, and a worker that owns nothing, do together what one login did before."""
    drop_days(granted)
    client = AsyncClient(PostgresState(login(Role.CLIENT)), TYPES)
    log = EventLog()
    runner = AsyncClient(PostgresState(login(Role.WORKER)), TYPES, observability=log)
    async with client, runner:
        # Before anybody works: the key is free again as soon as the first has closed.
        first = await client.start_chain(pair, 1, attributes={"user": "17"}, deduplication=Deduplicate("one"))
        again = await client.start_chain(pair, 1, deduplication=Deduplicate("one"))
        assert again.id == first.id
        # A debounced start changes an input, by a function.
        quiet = Deduplicate("quiet", debounce=0.001)
        assert [(await client.start_chain(pair, 1, deduplication=quiet)).debounced for _ in range(2)] == [False, True]
        async with InProcessWorker(runner, processors(), concurrency=4):
            second = await client.start_chain(number, -5, id="chosen", blockers=[first], priority=3, result_ttl=3600.0)
            assert (await first.result(WAIT), await second.result(WAIT)) == (2, 5)
            assert [one.id for one in await client.list_chains(attributes={"user": "17"})] == [first.id]
            assert {event.kind for event in await client.list_events(chain=first.id)} >= {"created", "completed"}
            assert [one.state for one in await client.list_workers()] == ["running"]
            # What it may not: the log's days are the owner's to make. It says so once, and works on.
            reported = await log.wait_for(EventLogMaintenanceFailed)
            assert "owner" in reported.error or "permission" in reported.error


async def test_operators_intervene(login: LoginOf, capsys: pytest.CaptureFixture[str]) -> None:
    client = Client(PostgresState(login(Role.CLIENT)), TYPES, notify=InProcessNotify())
    operator = login(Role.OPERATOR)

    def run(*words: str) -> str:
        capsys.readouterr()
        assert main([*words, "--url", operator]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    with client:
        first = client.start_chain(number, 1, deduplication=Deduplicate("key"), attributes={"user": "17"})
        waiting = client.start_chain(number, 2, blockers=[first])
        late = client.start_chain(number, 3, run_at=after(hours=1))
    run("jobs", "trigger", late.id)
    run("chains", "cancel", first.id, waiting.id, "--reason", "a test")
    run("chains", "retry", first.id, waiting.id)
    run("job-types", "pause", "number", "--reason", "a test")
    run("job-types", "resume", "number")
    run("events", "set-level", "terminal", "--type", "number")
    run("events", "set-level", "default", "--type", "number")
    run("events", "set-retention", "20")
    assert first.id in run("chains", "list")
    run("chains", "delete", waiting.id, "--cascade", "--yes")
    schedules = Client(PostgresState(operator), TYPES, notify=InProcessNotify())
    with schedules:
        schedules.put_schedules([RecurringSchedule("often", number, 1, every=3600)])
    run("schedules", "pause", "often")
    run("schedules", "resume", "often")
    run("schedules", "delete", "often", "--yes")


async def test_schedules_are_run_and_backfilled_by_the_role_of_workers(login: LoginOf) -> None:
    """Also what overlaps is cancelled. Operators store schedules, and start no chains."""
    day = datetime(2024, 1, 1, tzinfo=UTC)
    async with AsyncClient(PostgresState(login(Role.OPERATOR)), TYPES) as operator:
        schedule = RecurringSchedule("daily", number, 7, cron="@daily", overlap="cancel", attributes={"a": 1})
        await operator.put_schedules([schedule])
        with pytest.raises(StateError, match="permission denied"):
            await operator.run_schedule("daily")
    async with AsyncClient(PostgresState(login(Role.WORKER)), TYPES) as worker:
        first = await worker.run_schedule("daily")
        second = await worker.run_schedule("daily")
        assert first is not None
        assert second is not None
        assert (await first.refresh()).status is ChainStatus.CANCELLED
        [tick] = await worker.backfill_schedule("daily", since=day, before=day + timedelta(days=1))
        assert tick.id == "daily@2024-01-01T00:00:00Z"


async def test_a_worker_whose_code_has_schedules_has_both_roles(login: LoginOf) -> None:
    """What is stored, and what left the code and is removed; without schedules the role of workers is enough."""
    state = PostgresState(login(Role.WORKER, Role.OPERATOR))
    nightly = RecurringSchedule("nightly", number, 7, cron="@daily")
    for schedules in ([nightly], []):
        client = AsyncClient(state, TYPES)
        async with client, InProcessWorker(client, processors(), schedules=schedules):
            assert len(await client.list_schedules()) == len(schedules)
    client = AsyncClient(PostgresState(login(Role.WORKER)), TYPES)
    async with client, InProcessWorker(client, processors()):
        pass


async def test_ticks_are_fired_by_workers(login: LoginOf) -> None:
    async with AsyncClient(PostgresState(login(Role.OPERATOR)), TYPES) as operator:
        await operator.put_schedules([RecurringSchedule("often", number, 7, every=1)])
    log = EventLog()
    worker = AsyncClient(PostgresState(login(Role.WORKER)), TYPES, observability=log)
    async with worker, InProcessWorker(worker, processors()):
        ticked = await log.wait_for(ChainStarted)
        assert await (await worker.get_chain(ticked.chain_id, number)).result(WAIT) == 7


def test_observers_count_and_see_no_payload(granted: str, login: LoginOf, capsys: pytest.CaptureFixture[str]) -> None:
    with Client(PostgresState(granted), TYPES, notify=InProcessNotify()) as client:
        client.start_chain(number, 424_242)
    observer = login(Role.OBSERVER)
    for words in (["stats"], ["activity"], ["workers"], ["job-types", "list"], ["events", "status"]):
        assert main([*words, "--url", observer]) == 0
    assert "424242" not in capsys.readouterr().out
    with psycopg.connect(observer) as connection:
        assert connection.execute("select type, status from queuert.job").fetchall() == [("number", "ready")]
        assert connection.execute("select kind from queuert.event").fetchall() == [("created",)]
        assert connection.execute("select type, status from queuert.chain").fetchall() == [("number", "open")]


@pytest.mark.parametrize("role", [Role.PRODUCER, Role.CLIENT, Role.WRITER, Role.WORKER], ids=str)
def test_producers_start_chains(granted: str, login: LoginOf, role: Role) -> None:
    """By the function, with all that a start may have; what it wrote they need not be able to read."""
    with psycopg.connect(login(role), autocommit=True) as connection:
        [(id, existed)] = connection.execute(
            "select * from queuert.start_chain('number', '7', id => 'a', deduplication_key => 'k',"
            """ attributes => '{"user": 17}', delay => '1 hour')"""
        ).fetchall()
        assert (id, existed) == ("a", False)
        again = connection.execute("select * from queuert.start_chain('number', deduplication_key => 'k')")
        assert again.fetchall() == [("a", True)]
        connection.execute("select queuert.start_chain('number', '8', id => 'b', blockers => '{a}', max_attempts => 2)")
        debounced = (
            "select queuert.start_chain('number', '9', id => 'c', deduplication_key => 'd', debounce => '1 hour')"
        )
        if role is Role.PRODUCER:
            with pytest.raises(InsufficientPrivilege, match=r"GRANT EXECUTE ON FUNCTION queuert\.debounce"):
                connection.execute(debounced)
            with psycopg.connect(granted, autocommit=True) as owner:
                owner.execute(sql.SQL("set role {}").format(sql.Identifier(connection.info.user)))
                with pytest.raises(InsufficientPrivilege, match=r"which .* may not"):
                    owner.execute(debounced)
        else:
            connection.execute(debounced)
    with Client(PostgresState(granted), TYPES, notify=InProcessNotify()) as client:
        assert [one.id for one in client.list_chains(attributes={"user": "17"})] == ["a"]


def test_writers_stage_and_commit(login: LoginOf) -> None:
    settings = BulkSettings(login(Role.WRITER), "queuert")
    tag = "00000000-0000-4000-8000-000000000001"
    start = bulk_commit.BulkStart("number", "a write", [bulk_commit.Part(tag, 1)], has_keys=True, has_ids=True)
    with bulk_session(settings) as session:
        session.check_schema()
        stage = bulk.make_stage(session, "a write")
        columns = ("tag", "place", "id", "deduplication_key", "input")
        bulk.copy_rows(session, stage, columns, [f"{tag}\t0\tstaged\tkey\t1\n".encode()])
        assert bulk.touch_stage(session, stage)
        result = bulk_commit.commit_write(session, stage, start, rejected=0, reject_files=[])
        assert result.started == 1
        assert bulk.drop_stage(session, stage)
        left = bulk.make_stage(session, "another")
        assert bulk.sweep_staging(session, older_than=-1.0) == [left]
        more = ("tag", "place", "batch", "sink", "id", "input")
        bulk.copy_rows(session, bulk.STREAM_STAGE, more, [f"{tag}\t0\t1\ts\tstreamed\t1\n".encode()])
        batch = bulk_commit.BulkStart("number", "s/1", [bulk_commit.Part(tag, 1)])
        assert bulk_commit.commit_batch(session, batch, sink="s", query="q", batch=1) is None


def test_the_owner_tends_the_log(granted: str, login: LoginOf, capsys: pytest.CaptureFixture[str]) -> None:
    """Days that are made later need no grants: rows go in, and are read, by the parent."""
    drop_days(granted)
    assert main(["events", "maintain", "--url", granted]) == 0
    assert "made" in capsys.readouterr().out
    with psycopg.connect(granted) as connection:
        made = connection.execute("select count(*) from pg_class where relname ~ '^job_event_[0-9]{8}$'").fetchone()
        assert made is not None
        assert made[0] >= 3
    with Client(PostgresState(login(Role.CLIENT)), TYPES, notify=InProcessNotify()) as client:
        chain = client.start_chain(number, 1)
        assert [event.kind for event in client.list_events(chain=chain.id)] == ["created"]


# --- completers -------------------------------------------------------------------------------------------------------


def test_completers_complete_and_release(granted: str, login: LoginOf) -> None:
    """Also the chain of a job that waits for others, or that runs, and one with several jobs."""
    with Client(PostgresState(granted), TYPES, notify=InProcessNotify()) as owner:
        approved, running = owner.start_chain(number, 1), owner.start_chain(number, 2)
        waiting = owner.start_chain(number, 3, blockers=[approved, running])
        blocked = owner.start_chain(number, 4, blockers=[waiting])
        long = owner.start_chain(pair, 5)
        owner.continue_chain(long, number, 6)
        _run(granted, running.id)
        chains = [approved, running, blocked, long]
        with Client(PostgresState(login(Role.COMPLETER)), TYPES, notify=InProcessNotify()) as completer:
            for chain in chains:
                completer.complete_chain(chain, 7, expecting=number)
            assert {completer.get_chain(chain.id).status for chain in chains} == {ChainStatus.COMPLETED}
        assert [owner.get_chain(chain.id).output for chain in chains] == [7, 7, 7, 7]
        assert [owner.get_job(one.id).status for one in (waiting, blocked)] == [JobStatus.READY, JobStatus.COMPLETED]
        job = owner.get_job(running.id)
        assert (job.status, job.lease_expires_at) == (JobStatus.COMPLETED, None)
        kinds = [event.kind for event in owner.list_events(chain=waiting.id)]
        assert sorted(kinds) == ["blocked", "created", "unblocked"]


def _run(dsn: str, id: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "update queuert.job set status = 'running', attempt = 1, started_at = now(), holder = 'w',"
            " lease_token = gen_random_uuid(), lease_expires_at = now() + interval '1 hour' where id = %s",
            [id],
        )


def test_workers_complete_before_roles_are_granted_again(granted: str, login: LoginOf) -> None:
    """The migration hands the right to those who could write outputs; nobody else gets it."""
    downgrade(granted, revision="0026")
    upgrade(granted)
    with Client(PostgresState(granted), TYPES, notify=InProcessNotify()) as owner:
        chain = owner.start_chain(number, 1).id
    for role in (Role.CLIENT, Role.OPERATOR, Role.COMPLETER):
        other = Client(PostgresState(login(role)), TYPES, notify=InProcessNotify())
        with other, pytest.raises(RightMissingError):
            other.complete_chain(chain, 2)
    with Client(PostgresState(login(Role.WORKER)), TYPES, notify=InProcessNotify()) as worker:
        worker.complete_chain(chain, 2)


def completions(*rows: tuple[str, str | None]) -> str:
    """The argument of the function, with an output of 9 each."""
    return json.dumps([{"chain_id": chain, "tail_id": tail, "output": 9} for chain, tail in rows])


def test_the_function_completes_what_is_open_and_last(granted: str, login: LoginOf) -> None:
    """All that it is given, or nothing: whoever may call it in SQL cannot write more than a client does."""
    with Client(PostgresState(granted), TYPES, notify=InProcessNotify()) as owner:
        [one, other] = [owner.start_chain(number, 1).id for _ in range(2)]
        closed = owner.start_chain(number, 1).id
        owner.complete_chain(closed, 2)
        long = owner.start_chain(pair, 1).id
        last = owner.continue_chain(long, number, 1)
        wrong = [
            completions((one, one), (closed, closed)),
            completions((one, one), ("nobody's", "nobody's")),
            completions((one, one), (long, long)),
            completions((one, one), (last, last)),
            completions((one, one), (other, None)),
            completions((one, other), (other, one)),
        ]
        with psycopg.connect(login(Role.COMPLETER), autocommit=True) as connection:
            for text in [*wrong, "[]"]:
                rows = connection.execute("select completed from queuert.complete_chains(%s::json)", [text]).fetchall()
                assert {written for (written,) in rows} <= {False}
            for text in ["null", "{}", "[1]", '[{"chain_id": null}]', "[null]"]:
                with suppress(psycopg.DataError):
                    connection.execute("select * from queuert.complete_chains(%s::json)", [text])
            assert {owner.get_chain(id).status for id in (one, other, long)} == {ChainStatus.OPEN}
            text = completions((one, one), (long, last))
            rows = connection.execute(
                "select chain_id, chain_status, tail_id, tail_status, completed from queuert.complete_chains(%s::json)"
                " order by chain_type",
                [text],
            ).fetchall()
            assert rows == [(one, "open", one, "ready", True), (long, "open", last, "ready", True)]
        assert [owner.get_chain(id).output for id in (one, long, closed)] == [9, 9, 2]


def test_the_librarys_own_chains_are_not_completed(granted: str, login: LoginOf) -> None:
    """Such as bulk operations, whose jobs workers alone carry out."""
    with Client(PostgresState(granted), TYPES, notify=InProcessNotify()) as owner:
        operation = owner.start_bulk_operation("retry", requested_by="ana").id
        own = completions((operation, operation))
        with (
            psycopg.connect(login(Role.COMPLETER), autocommit=True) as connection,
            pytest.raises(InsufficientPrivilege, match=r"that begin with queuert\. are for workers"),
        ):
            connection.execute("select * from queuert.complete_chains(%s::json)", [own])
        assert owner.get_bulk_operation(operation).status is ChainStatus.OPEN


def test_what_closes_with_a_chain_needs_a_workers_rights(granted: str, login: LoginOf) -> None:
    """The error says so, and nothing is written."""
    child = JobType("child", input=int, output=int, closes_with_parent=True)
    types = JobTypes(number, child)
    with Client(PostgresState(granted), types, notify=InProcessNotify()) as owner:
        mine = owner.start_chain(child, 1)
        parent = owner.start_chain(number, 1, blockers=[mine])
        with Client(PostgresState(login(Role.COMPLETER)), types, notify=InProcessNotify()) as completer:
            with pytest.raises(RightMissingError, match="that others close with needs a right") as caught:
                completer.complete_chain(parent, 2)
            assert caught.value.roles == ("queuert_worker",)
        assert {one.refresh().status for one in (mine, parent)} == {ChainStatus.OPEN}
        with Client(PostgresState(login(Role.WORKER)), types, notify=InProcessNotify()) as worker:
            worker.complete_chain(parent, 2)
        assert mine.refresh().status is ChainStatus.CANCELLED


# --- what they may not ------------------------------------------------------------------------------------------------

EVERYBODY: dict[str, str] = {
    "make a table": "create table queuert.mine (x int)",
    "drop the tables": "drop table queuert.job cascade",
    "empty the tables": "truncate queuert.job cascade",
    "change the tables": "alter table queuert.job add column mine int",
    "put a trigger on them": "create trigger mine before update on queuert.job"
    " execute function suppress_redundant_updates_trigger()",
    "say what the schema is": "update queuert.alembic_version set version_num = '9999'",
    "rewrite the log": "update queuert.job_event set kind = 'created'",
    "delete from the log": "delete from queuert.job_event",
    "delete from its partitions": "delete from queuert.job_event_default",
    "read its partitions": "select error from queuert.job_event_default",
    "say what the log has lost": "update queuert.event_log set dropped_tx = '1'",
}  # fmt: skip

FORBIDDEN: dict[Role, dict[str, str]] = {
    Role.WORKER: {
        "start a bulk operation": "select * from queuert.start_bulk_operation('x', '{}')",
        "allow a bulk operation": "insert into queuert.bulk_operation (chain_id) values ('x')",
        "define schedules": "insert into queuert.schedule (name, type, input, every, time_zone, missed)"
        " values ('x', 'x', '1', 1, 'UTC', 'skip')",
        "change what schedules start": "update queuert.schedule set input = '1'",
        "pause types": "insert into queuert.paused_type (type) values ('number')",
        "silence the log": "update queuert.event_log set level = 'off'",
        "stage rows": "insert into queuert.stream_stage (tag, place, id, input) "
        " values (gen_random_uuid(), 1, 'x', '1')",
    },
    Role.CLIENT: {
        "start a bulk operation": "select * from queuert.start_bulk_operation('x', '{}')",
        "complete a chain": "select * from queuert.complete_chains('[]')",
        "allow a bulk operation": "insert into queuert.bulk_operation (chain_id) values ('x')",
        "forge a result": "update queuert.job set output = '1'",
        "change an input": "update queuert.job set input = '1'",
        "take a lease": "update queuert.job set lease_token = gen_random_uuid()",
        "close a chain": "update queuert.job set chain_status = 'completed'",
        "start a job that has run": "insert into queuert.job (id, chain_id, type, chain_type, input, output)"
        " values ('x', 'x', 'x', 'x', '1', '1')",
        "delete jobs": "delete from queuert.job",
        "delete keys": "delete from queuert.deduplication",
        "say who works": "update queuert.worker set name = 'x'",
        "define schedules": "update queuert.schedule set input = '1'",
        "resume types": "delete from queuert.paused_type",
    },
    Role.WRITER: {
        "start a bulk operation": "select * from queuert.start_bulk_operation('x', '{}')",
        "complete a chain": "select * from queuert.complete_chains('[]')",
        "allow a bulk operation": "insert into queuert.bulk_operation (chain_id) values ('x')",
        "forge a result": "update queuert.job set output = '1'",
        "take a lease": "update queuert.job set lease_token = gen_random_uuid()",
        "delete jobs": "delete from queuert.job",
        "pause types": "insert into queuert.paused_type (type) values ('number')",
    },
    Role.PRODUCER: {
        "start a bulk operation": "select * from queuert.start_bulk_operation('x', '{}')",
        "complete a chain": "select * from queuert.complete_chains('[]')",
        "allow a bulk operation": "insert into queuert.bulk_operation (chain_id) values ('x')",
        "read jobs": "select id from queuert.job",
        "read chains": "select id from queuert.chain",
        "read the log": "select kind from queuert.event",
        "read levels": "select level from queuert.event_level",
        "read who works": "select name from queuert.worker",
        "count": "select * from queuert.demand()",
        "write a job": "insert into queuert.job (id, chain_id, type, chain_type, input)"
        " values ('x', 'x', 'x', 'x', '1')",
        "write an event": "insert into queuert.job_event (kind) values ('created')",
        "take a key": "insert into queuert.deduplication (type, key) values ('x', 'x')",
    },
    Role.COMPLETER: {
        "start a bulk operation": "select * from queuert.start_bulk_operation('x', '{}')",
        "allow a bulk operation": "insert into queuert.bulk_operation (chain_id) values ('x')",
        "start a chain by the function": "select queuert.start_chain('x')",
        "start a chain": "insert into queuert.job (id, chain_id, type, chain_type, input)"
        " values ('x', 'x', 'x', 'x', '1')",
        "change an input by the function": "select * from queuert.debounce('[]')",
        "change a job": "update queuert.job set status = 'ready'",
        "forge a result": "update queuert.job set output = '1'",
        "lock jobs": "select id from queuert.job for update",
        "release a job": "update queuert.job_blocker set closed = true",
        "delete jobs": "delete from queuert.job",
        "write to the log": "insert into queuert.job_event (kind) values ('completed')",
        "send an event": "insert into queuert.sent_event (chain_id, id, name, size) values ('x', 'x', 'x', 1)",
        "take a key": "insert into queuert.deduplication (type, key) values ('x', 'x')",
        "define schedules": "update queuert.schedule set input = '1'",
        "pause types": "insert into queuert.paused_type (type) values ('number')",
        "read secrets": "select * from queuert.webhook_record",
    },
    Role.OPERATOR: {
        "complete a chain": "select * from queuert.complete_chains('[]')",
        "allow a bulk operation": "insert into queuert.bulk_operation (chain_id) values ('x')",
        "start a chain by the function": "select queuert.start_chain('x')",
        "start a chain": "insert into queuert.job (id, chain_id, type, chain_type, input)"
        " values ('x', 'x', 'x', 'x', '1')",
        "forge a result": "update queuert.job set output = '1'",
        "change an input": "update queuert.job set input = '1'",
        "say who works": "delete from queuert.worker",
    },
    Role.OBSERVER: {
        "start a bulk operation": "select * from queuert.start_bulk_operation('x', '{}')",
        "complete a chain": "select * from queuert.complete_chains('[]')",
        "allow a bulk operation": "insert into queuert.bulk_operation (chain_id) values ('x')",
        "start a chain": "select queuert.start_chain('x')",
        "read inputs": "select input from queuert.job",
        "read outputs": "select output from queuert.job",
        "read errors": "select error from queuert.job",
        "read whole rows": "select to_jsonb(job) from queuert.job",
        "read all columns": "select * from queuert.job",
        "read inputs by the view": "select input from queuert.chain",
        "read attributes": "select attributes from queuert.job",
        "read attributes by their index": "select value from queuert.chain_attribute",
        "read keys": "select deduplication_key from queuert.job",
        "read keys in their slots": "select key from queuert.deduplication",
        "read errors in the log": "select error from queuert.event",
        "read errors in the rows of the log": "select error from queuert.job_event",
        "read what schedules start": "select input from queuert.schedule",
        "read staged rows": "select input from queuert.stream_stage",
        "lock jobs": "select id from queuert.job for update",
        "cancel": "update queuert.job set status = 'cancelled'",
        "write to the log": "insert into queuert.job_event (kind) values ('created')",
    },
}  # fmt: skip


@pytest.mark.parametrize("role", list(Role), ids=str)
def test_what_a_role_may_not(login: LoginOf, role: Role) -> None:
    """Each of these is refused with 42501, whatever is in the tables."""
    may = {"make a table"} if role is Role.WRITER else set()
    requested: dict[str, str] = {name: text for name, text in (EVERYBODY | FORBIDDEN[role]).items() if name not in may}
    with psycopg.connect(login(role), autocommit=True) as connection:
        allowed = [name for name, statement in requested.items() if not _refused(connection, statement)]
    assert allowed == []


def _refused(connection: psycopg.Connection[Any], statement: str) -> bool:
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(statement.encode())
    except InsufficientPrivilege as error:
        return error.sqlstate == "42501"
    return False


@pytest.mark.parametrize("role", list(Role), ids=str)
def test_no_role_hands_on_what_it_may(granted: str, login: LoginOf, role: Role) -> None:
    """Postgres only warns of what somebody may and cannot hand on, and does nothing."""
    user = login(role)
    with psycopg.connect(granted, autocommit=True) as connection:
        before = _rights(connection)
        reads = suppress(InsufficientPrivilege) if role is Role.PRODUCER else nullcontext()
        with psycopg.connect(user, autocommit=True) as own, reads:
            own.execute("grant select on queuert.alembic_version to public")
        assert _rights(connection) == before


def test_a_login_without_a_role_may_nothing(login: LoginOf) -> None:
    """What Postgres grants to everybody is taken back."""
    with psycopg.connect(login(), autocommit=True) as connection:
        assert _refused(connection, "select from queuert.job")
    with pytest.raises(StateError, match="permission denied"), Client(PostgresState(login()), TYPES) as client:
        client.list_chains()


def test_what_is_refused_is_reported_without_the_statement(login: LoginOf) -> None:
    operator = Client(PostgresState(login(Role.OPERATOR)), TYPES, notify=InProcessNotify())
    with operator, pytest.raises(StateError) as caught:
        operator.start_chain(number, 424_242)
    assert str(caught.value) == (
        "start_chain needs a right that this login does not have (permission denied for table job): as the owner, "
        "GRANT queuert_client TO LOGIN (or queuert_writer, queuert_worker); if it has that, "
        "run queuert migrate roles --apply"
    )


async def test_an_expired_chain_is_no_clients_to_delete(granted: str, login: LoginOf) -> None:
    """Its id is taken until a worker has removed it; who is an operator as well need not wait."""
    owner = Client(PostgresState(granted), TYPES, notify=InProcessNotify())
    with owner:
        owner.start_chain(number, 1, id="request", result_ttl=3600.0)
        owner.cancel_chain("request")
    with psycopg.connect(granted) as connection:
        connection.execute("update queuert.job set expires_at = now() - interval '1 second'")
    with (
        Client(PostgresState(login(Role.CLIENT)), TYPES, notify=InProcessNotify()) as client,
        pytest.raises(StateError, match="permission denied"),
    ):
        client.start_chain(number, 2, id="request")
    with Client(PostgresState(login(Role.CLIENT, Role.OPERATOR)), TYPES, notify=InProcessNotify()) as client:
        assert client.start_chain(number, 2, id="request").id == "request"


# --- the script -------------------------------------------------------------------------------------------------------

HIDDEN = {
    "job": {"input", "output", "error", "attributes", "deduplication_key", "limit_key", "lease_token"}
    | {"progress", "failures"},
    "chain": {"input", "output", "error", "attributes"},
    "job_step": {"name", "result", "event"},
    "sent_event": {"id", "name", "payload"},
    "webhook_attempt": {"response"},
    "job_event": {"error", "progress"},
    "event": {"error", "progress"},
    "schedule": {"input", "limit_key", "attributes"},
    "bulk_write": {"reject_files"},
    "stream_write": {"reject_files"},
    **{
        name: {"*"}
        for name in (
            "deduplication",
            "limit_start",
            "lease_extension",
            "chain_attribute",
            "bulk_stage",
            "stream_stage",
            "webhook_record",
        )
    },
}


def test_every_column_is_shown_to_observers_or_hidden_on_purpose(granted: str, logins: Logins) -> None:
    """A migration that adds a column says which it is: in `roles.sql`, or here."""
    with psycopg.connect(granted) as connection:
        columns = connection.execute(
            """select c.relname, a.attname, has_column_privilege(%s, c.oid, a.attnum, 'select')
               from pg_class c join pg_attribute a on a.attrelid = c.oid
               where c.relnamespace = 'queuert'::regnamespace and c.relkind in ('r', 'v', 'p') and not c.relispartition
                 and a.attnum > 0 and not a.attisdropped""",
            [logins.names[Role.OBSERVER]],
        ).fetchall()
    hidden = {(table, column) for table, column, shown in columns if not shown}
    meant = {(table, column) for table, column, _ in columns if HIDDEN.get(table, set()) & {column, "*"}}
    assert hidden == meant


def test_granting_again_changes_nothing_and_takes_back_what_is_no_longer_granted(granted: str, logins: Logins) -> None:
    worker = sql.Identifier(logins.names[Role.WORKER])
    with psycopg.connect(granted, autocommit=True) as connection:
        before = _rights(connection)
        logins.grant(granted)
        assert _rights(connection) == before
        connection.execute(sql.SQL("grant update (input) on queuert.schedule to {}").format(worker))
        for kind in "tables", "sequences":
            everything = sql.SQL(f"grant all on all {kind} in schema queuert to public, {{}}")
            connection.execute(everything.format(worker))
        assert _rights(connection) != before
        logins.grant(granted)
        assert _rights(connection) == before


def _rights(connection: psycopg.Connection[Any]) -> list[Any]:
    """All grants of the schema, of tables, sequences and columns."""
    return connection.execute(
        """select c.relname, null, array(select r::text from unnest(c.relacl) r order by r::text)
           from pg_class c where c.relnamespace = 'queuert'::regnamespace
           union all
           select c.relname, a.attname, array(select r::text from unnest(a.attacl) r order by r::text)
           from pg_class c join pg_attribute a on a.attrelid = c.oid
           where c.relnamespace = 'queuert'::regnamespace and a.attacl is not null and a.attacl <> '{}'
           order by 1, 2"""
    ).fetchall()


def test_another_schema_has_roles_of_its_own() -> None:
    assert role_names("billing")[Role.WORKER] == "billing_worker"
    text = roles_sql("billing", {Role.CLIENT: "shop"})
    assert '"billing".job TO "shop"' in text.replace("\n", " ")
    assert "queuert" not in text.replace("queuert events maintain", "")
    assert "{" not in text.replace("'{}'", "")


@pytest.mark.parametrize("name", ["", "Upper", "1st", 'a"b', "a'b", "a;b", "a b", "pg_mine", "public", "x" * 64, "é"])
def test_names_that_roles_cannot_have(name: str) -> None:
    with pytest.raises(ConfigurationError, match="the name of the role worker"):
        roles_sql(names={Role.WORKER: name})


def test_two_roles_of_one_name() -> None:
    with pytest.raises(ConfigurationError, match="roles must have different names"):
        roles_sql(names={Role.WORKER: "app", Role.CLIENT: "app"})


def test_only_the_owner_grants(granted: str, login: LoginOf, logins: Logins) -> None:
    with pytest.raises(MigrationError, match=r"permission denied.*owner"):
        grant_roles(login(Role.WORKER), names=logins.names)


def test_there_must_be_something_to_grant(bare_dsn: str, logins: Logins) -> None:
    with pytest.raises(SchemaMissingError, match="queuert migrate up"):
        grant_roles(bare_dsn, names=logins.names)


def test_the_command_prints_and_applies(dsn: str, logins: Logins, capsys: pytest.CaptureFixture[str]) -> None:
    names = [word for role, name in logins.names.items() for word in (f"--{role}", name)]
    assert main(["migrate", "roles", *names]) == 0
    printed = capsys.readouterr().out
    assert printed == roles_sql(names=logins.names)
    assert main(["migrate", "roles", "--apply", "--url", dsn, *names]) == 0
    assert logins.names[Role.WORKER] in capsys.readouterr().out
    with psycopg.connect(dsn, autocommit=True) as connection:
        before = _rights(connection)
        connection.execute(printed.encode())
        assert _rights(connection) == before
    user = logins.login(dsn, Role.CLIENT)
    with Client(PostgresState(user), TYPES, notify=InProcessNotify()) as client:
        assert client.start_chain(number, 1).id
    assert as_user(dsn, "x") != user
