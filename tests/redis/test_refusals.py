"""What scripts and servers refuse: no name of a user is taken for it, and a refused login is no failure of a job."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from redis._parsers import base

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Outcome, Processors
from queuert.cli import main
from queuert.cli.exit_codes import Exit
from queuert.errors import (
    ChainNotFoundError,
    ConfigurationError,
    JobFailedError,
    JobIdConflictError,
    QueuertError,
    RightMissingError,
    StateError,
    StateUnavailableError,
)
from queuert.observability.events import AttemptFailed, StoreCallFailed
from queuert.state.redis import RedisState
from queuert.state.redis.async_store import AsyncRedisStore
from queuert.state.redis.errors import mapped
from queuert.testing.conformance.builders import ask, complete, job
from queuert.testing.events import EventLog
from queuert.worker import GuardedTransaction
from tests.conftest import StartRedis
from tests.support.waiting import WAIT

NAME = "refused"
work = JobType("work", input=int, output=int)


# --- by a script ------------------------------------------------------------------------------------------------------


async def test_a_job_type_and_a_chain_may_have_any_name(store: AsyncRedisStore) -> None:
    await store.start_jobs([job(NAME, id=NAME, attributes={NAME: NAME})])
    assert [one.type for one in await store.count_jobs()] == [NAME]
    assert [one.type for one in await store.get_demand()] == [NAME]
    await store.pause_job_types([NAME], reason=NAME, by=NAME)
    assert [one.type for one in await store.list_paused_job_types()] == [NAME]
    await store.resume_job_types([NAME])
    assert await store.resume_job_types([NAME]) == []
    await store.pause_job_types([NAME])
    assert await store.resume_job_types([NAME]) == [NAME]
    await store.trigger_jobs([NAME])
    [claimed] = await store.claim(ask(NAME, holder=NAME))
    await store.release_stranded()
    await store.finish([complete(claimed)])
    assert (await store.delete_chains([NAME])).chain_ids == (NAME,)


async def test_a_refusal_is_one_still(store: AsyncRedisStore) -> None:
    await store.start_jobs([job(id=NAME)])
    with pytest.raises(JobIdConflictError, match=NAME):
        await store.start_jobs([job(id=NAME)])
    with pytest.raises(ChainNotFoundError, match="nobody"):
        await store.cancel_chains(["nobody"], reason=NAME)


# --- by the block of an attempt ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("asks", ["connection", "step_transaction", "start"])
async def test_a_transaction_that_redis_does_not_have_fails_the_job_at_once(state: RedisState, asks: str) -> None:
    """Each attempt would ask for it again."""
    processors = Processors(JobTypes(work))

    @processors.handles(work)
    async def write(attempt: Attempt[int, int]) -> Outcome[int]:
        if asks == "step_transaction":
            await attempt.step_transaction("write", closed)
        async with attempt.complete() as tx:
            if asks == "connection":
                await tx.connection.execute("insert into invoices ...")
            given: Any = object()
            await client.start_chain(work, 2, connection=given)
            return tx.finish(attempt.input)

    async with AsyncClient(state, JobTypes(work)) as client, InProcessWorker(client, processors):
        chain = await client.start_chain(work, 1)
        with pytest.raises(JobFailedError):
            await chain.result(WAIT)
        job = await client.get_job(chain.id)
    assert job.last_error is not None
    assert (job.attempt, job.last_error.kind) == (1, "programming")
    assert {
        "connection": "keep jobs in Postgres or SQLite, or write on a connection of your own",
        "step_transaction": "attempt.step() works on each store",
        "start": "connection= was given, but jobs are kept in Redis",
    }[asks] in str(job.last_error)
    assert ("connection=" in str(job.last_error)) is (asks == "start")


async def closed(tx: GuardedTransaction) -> None:
    raise AssertionError(tx)


# --- by a server ------------------------------------------------------------------------------------------------------

RULES = ("reset", "on", ">word", "~*", "&*", "+@all")


def as_the_driver_reads(answer: str) -> Exception:
    """The error that the driver makes of an answer."""
    parser: Any = base.BaseParser  # It has no types.
    error: Exception = parser.parse_error(answer)
    return error


@pytest.mark.parametrize(
    "answer",
    [
        "NOAUTH Authentication required.",
        "WRONGPASS invalid username-password pair or user is disabled.",
        "NOPERM User limited has no permissions to run the 'evalsha' command",
        "ERR Error running script (call to f_1): @user_script:1: @user_script: 1: -NOPERM The user cannot run this",
        "MOVED 3999 127.0.0.1:6381",
        "ASK 3999 127.0.0.1:6381",
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "CLUSTERDOWN The cluster is down",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "ERR invalid password",
        "ERR ACL failure in script: User limited has no permissions to run the 'xtrim' command",
    ],
)
def test_what_a_server_refuses_for_now_is_an_outage(answer: str) -> None:
    error = mapped(as_the_driver_reads(answer))
    assert type(error) is StateUnavailableError
    assert answer.partition(" ")[2] in str(error)


@pytest.mark.parametrize("answer", ["ERR unknown command 'EVALSHA'", "WRONGTYPE Operation against a key", "ERR MOVED"])
def test_what_is_wrong_with_an_operation_is_none(answer: str) -> None:
    assert type(mapped(as_the_driver_reads(answer))) is StateError


@pytest.mark.parametrize(
    "rules", [("resetpass", ">another"), ("-eval", "-evalsha"), ("off",)], ids=["login", "right", "disabled"]
)
async def test_a_refusal_while_a_handler_runs_does_not_make_it_run_again(
    private_redis: StartRedis, rules: tuple[str, ...]
) -> None:
    """As on Postgres: its finish is written once the server takes it."""
    server = private_redis()
    log, runs = EventLog(), list[int]()
    with redis.Redis.from_url(server.url()) as untyped:
        admin: Any = untyped
        admin.execute_command("ACL", "SETUSER", "limited", *RULES)
        state = RedisState(server.url(user="limited", password="word"))
        processors = Processors(JobTypes(work))

        @processors.handles(work)
        async def refuse(attempt: Attempt[int, int]) -> int:
            runs.append(attempt.number)
            admin.execute_command("ACL", "SETUSER", "limited", *rules)
            admin.execute_command("CLIENT", "KILL", "USER", "limited")
            return attempt.input

        client = AsyncClient(state, JobTypes(work), observability=log)
        async with client, InProcessWorker(client, processors):
            chain = await client.start_chain(work, 7)
            await log.wait_for(StoreCallFailed, operation="finish")
            with pytest.raises(StateUnavailableError):
                await client.get_chain(chain.id)
            admin.execute_command("ACL", "SETUSER", "limited", *RULES)
            assert await chain.result(WAIT) == 7
    assert runs == [1]
    assert log.of(AttemptFailed) == []


@pytest.mark.parametrize("rules", [("resetpass", ">another"), ("off",)], ids=["login", "disabled"])
async def test_a_login_that_is_refused_when_a_store_is_opened_says_what_to_check(
    private_redis: StartRedis, rules: tuple[str, ...]
) -> None:
    """As on Postgres: somebody may correct it on the server. A worker ends, and says so."""
    server = private_redis()
    with redis.Redis.from_url(server.url()) as admin:
        admin.execute_command("ACL", "SETUSER", "limited", *RULES, *rules)
    reason = "invalid username-password.*: check the user and the password"
    await opens_with(RedisState(server.url(user="limited", password="word")), StateUnavailableError, reason)


async def test_a_login_that_is_missing_says_what_to_check(private_redis: StartRedis) -> None:
    server = private_redis()
    state = RedisState(f"redis://127.0.0.1:{server.port}/0")
    await opens_with(state, StateUnavailableError, "Authentication required.*: check the user and the password")


@pytest.mark.parametrize(
    "rules",
    [("-evalsha",), ("-xtrim",), ("resetkeys", "~other*"), ("nocommands", "+@connection")],
    ids=["command", "in a script", "keys", "most"],
)
async def test_a_right_that_is_missing_when_a_store_is_opened_is_named(
    private_redis: StartRedis, rules: tuple[str, ...]
) -> None:
    server = private_redis()
    with redis.Redis.from_url(server.url()) as admin:
        admin.execute_command("ACL", "SETUSER", "limited", *RULES, *rules)
    state = RedisState(server.url(user="limited", password="word"))
    await opens_with(state, RightMissingError, r"(?i)no permissions.*: .*ACL SETUSER NAME")
    assert main(["chains", "list", "--url", server.url(user="limited", password="word")]) == Exit.FAILED


async def test_a_database_that_the_server_does_not_have_is_a_wrong_address(private_redis: StartRedis) -> None:
    state = RedisState(private_redis().url(database=99))
    await opens_with(state, ConfigurationError, "DB index is out of range.*: write /0")


async def opens_with(state: RedisState, error: type[QueuertError], reason: str) -> None:
    """Both modes of a store fail when they are opened, with this class and not another one."""
    with pytest.raises(error, match=reason) as raised:
        await state.async_store().open()
    assert type(raised.value) is error
    with pytest.raises(error, match=reason) as raised:
        state.sync_store().open()
    assert type(raised.value) is error
