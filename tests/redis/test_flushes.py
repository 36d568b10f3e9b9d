"""What a client is told of is flushed by then, if that is wanted; otherwise it is told that this is not known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

from queuert import AsyncClient, InProcessWorker
from queuert.embedded import EmbeddedRedis
from queuert.errors import JobIdConflictError, StateError, StateUnavailableError, UnsuitableServerError
from queuert.ids import new_id
from queuert.state.redis import RedisState
from queuert.state.redis.connections import queued
from queuert.state.redis.scripts import script
from queuert.state.types import NewJob, StartedJob
from queuert.testing.conformance import Mode
from queuert.testing.conformance.registry import Case, run_case
from queuert.testing.fault_proxy import FaultProxy
from queuert.testing.redis_scan import scan
from tests.redis.application import JOB_TYPES, LASTING, processors_for, quick
from tests.redis.harness import needs_waitaof
from tests.redis.test_identifiers import Recorded, Tour
from tests.security.test_conformance_as_roles import one_of_each_group
from tests.security.test_redis_acl import documented_rules
from tests.support.addresses import as_user
from tests.support.waiting import WAIT, until

MODES = pytest.mark.parametrize("mode", list(Mode), ids=str)
Start = Callable[[Sequence[NewJob]], Any]


class Server:
    """A server whose flushes can be held up."""

    def __init__(self, server: EmbeddedRedis) -> None:
        self.url = server.url()
        self.admin: Any = redis.Redis.from_url(self.url)
        self.flush()

    def hold(self) -> None:
        """Flush nothing from now on."""
        self.admin.config_set("appendfsync", "no")

    def flush(self) -> None:
        """Flush what is held, and everything from now on."""
        self.admin.config_set("appendfsync", "always")

    def waiting(self) -> list[str]:
        """The ids of the connections that wait for a flush."""
        return [str(one["id"]) for one in self.admin.client_list() if "b" in one["flags"]]

    async def is_waited_for(self) -> str:
        """Wait until a connection waits; its id."""
        await until(self.waiting, "somebody waits for a flush")
        return self.waiting()[0]

    def state(self, url: str | None = None, **settings: Any) -> RedisState:
        """The state that waits for flushes."""
        return RedisState(url or self.url, wait_for_flush=True, **settings)


@pytest.fixture(scope="module")
def embedded() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(options={"appendonly": "yes", "appendfsync": "always"}) as server:
        needs_waitaof(server.url())
        yield server


@pytest.fixture
def server(embedded: EmbeddedRedis) -> Iterator[Server]:
    server = Server(embedded)
    server.admin.flushall()
    server.admin.script_load(script("start").text.decode())
    yield server
    server.flush()
    assert scan(server.admin, "default") == []
    server.admin.close()


@asynccontextmanager
async def starting(state: RedisState, mode: Mode) -> AsyncIterator[Start]:
    """The starts of a store of this mode, to be awaited."""
    if mode is Mode.ASYNC:
        store = state.async_store()
        await store.open()
        try:
            yield store.start_jobs
        finally:
            await store.aclose()
    else:
        plain = state.sync_store()
        await asyncio.to_thread(plain.open)
        try:
            yield lambda jobs: asyncio.to_thread(plain.start_jobs, jobs)
        finally:
            await asyncio.to_thread(plain.close)


def named(id: str, **what: Any) -> list[NewJob]:
    return [NewJob(id, "type", "1", id_chosen=True, **what)]


# --- waiting ----------------------------------------------------------------------------------------------------------


@MODES
async def test_a_start_returns_when_it_is_flushed(server: Server, mode: Mode) -> None:
    async with starting(server.state(), mode) as start:
        server.hold()
        task = asyncio.create_task(start(named("a")))
        await server.is_waited_for()
        assert server.admin.exists("{queuert:default}:j:a")
        assert not task.done()
        server.flush()
        [started] = await task
        assert not started.existing


@MODES
@pytest.mark.parametrize("attach", [True, False], ids=["attached to", "refused"])
async def test_what_others_have_written_is_flushed_before_it_is_reported(
    server: Server, mode: Mode, attach: bool
) -> None:
    """Whoever finds a chain that is there already may rely on it as much as the one who started it."""
    async with starting(RedisState(server.url), mode) as at_once, starting(server.state(), mode) as start:
        server.hold()
        await at_once(named("a"))
        task = asyncio.create_task(start(named("a", attach=attach)))
        await server.is_waited_for()
        assert not task.done()
        server.flush()
        if attach:
            assert [one.existing for one in await task] == [True]
        else:
            with pytest.raises(JobIdConflictError):
                await task


@MODES
async def test_a_server_that_has_forgotten_the_script(server: Server, mode: Mode) -> None:
    async with starting(server.state(), mode) as start:
        server.admin.script_flush()
        [started] = await start(named("a"))
        assert not started.existing


def test_who_is_reported_waits_and_no_others(server: Server) -> None:
    """All that changes something for a caller, a step as well; nothing that only reads, or that another attempt does
    again."""
    server.admin.config_resetstat()
    store = Recorded(server.state()._settings, 2)
    store.open()
    try:
        Tour(store, "a").go()
    finally:
        store.close()
    assert store.committed == {
        "start", "complete_chains", "cancel_chains", "retry_chains", "trigger_jobs", "delete_chains", "put_schedules",
        "delete_schedules", "pause_schedules", "pause_job_types", "resume_job_types", "update_result_ttl",
        "record_step", "change_waiting_jobs", "send_event", "wait_for_event", "put_webhook_record",
            "record_webhook_attempts",
    }  # fmt: skip
    assert server.admin.info("commandstats")["cmdstat_waitaof"]["calls"] >= len(store.committed)


async def test_workers_wait_for_no_flush(server: Server) -> None:
    """They repeat what a crash of the server undoes."""
    async with (
        AsyncClient(server.state(), JOB_TYPES) as client,
        AsyncClient(RedisState(server.url), JOB_TYPES) as other,
        InProcessWorker(client, processors_for(server.url, lease=LASTING)),
    ):
        server.hold()
        chain = await other.start_chain(quick, 7)
        assert await chain.result(WAIT) == 7
        assert server.waiting() == []


# --- not knowing ------------------------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("how", ["TIMEOUT", "ERROR"])
async def test_a_flush_that_is_not_confirmed(server: Server, mode: Mode, how: str) -> None:
    """The server's timeout ends, or it becomes a replica: the start stands, and can be asked for again."""
    async with starting(server.state(), mode) as start:
        server.hold()
        task = asyncio.create_task(start(named("a")))
        server.admin.execute_command("CLIENT", "UNBLOCK", await server.is_waited_for(), how)
        with pytest.raises(StateUnavailableError, match="did not confirm the flush"):
            await task
        server.flush()
        assert [one.existing for one in await start(named("a", attach=True))] == [True]


class Sent(list[tuple[Any, ...]]):
    """A pipeline that only remembers."""

    def execute_command(self, *words: Any) -> None:
        self.append(words)


@pytest.mark.parametrize(("timeout", "milliseconds"), [(8.0, 6000), (0.001, 1)])
def test_the_server_gives_up_before_its_caller(timeout: float, milliseconds: int) -> None:
    """And waits for ever for nobody, which is what a timeout of 0 would be."""
    settings = RedisState("redis://localhost", answer_timeout=timeout)._settings
    *_, wait = queued(Sent(), ("EVALSHA",), settings)
    assert wait == ("WAITAOF", 1, 0, milliseconds)


@MODES
async def test_a_connection_that_breaks_while_it_waits(server: Server, mode: Mode) -> None:
    """Another connection would wait for its own writes alone: the outcome is unknown, as without waiting."""
    with FaultProxy.before(server.url) as proxy:
        async with starting(server.state(proxy.address_in(server.url)), mode) as start:
            server.hold()
            task = asyncio.create_task(start(named("a")))
            await server.is_waited_for()
            proxy.reset()
            with pytest.raises(StateUnavailableError):
                await task
            server.flush()
            assert [one.existing for one in await start(named("a", attach=True))] == [True]


async def test_a_caller_who_gives_up(server: Server) -> None:
    """The connection, on which an answer is still to come, is not given to the next one."""
    store = server.state().async_store(max_connections=1)
    await store.open()
    try:
        server.hold()
        task = asyncio.create_task(store.start_jobs(named("a")))
        await server.is_waited_for()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        server.flush()
        found: list[StartedJob] = await store.start_jobs(named("b"))
        assert [one.id for one in found] == ["b"]
    finally:
        await store.aclose()


@MODES
async def test_a_server_that_keeps_no_file_any_more(server: Server, mode: Mode) -> None:
    async with starting(server.state(), mode) as start:
        server.admin.config_set("appendonly", "no")
        try:
            with pytest.raises(StateUnavailableError, match="did not confirm the flush"):
                await start(named("a"))
        finally:
            server.admin.config_set("appendonly", "yes")


# --- servers that cannot ----------------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("setting", ["appendonly", "appendfsync"])
async def test_a_server_that_flushes_nothing_is_refused(server: Server, mode: Mode, setting: str) -> None:
    server.admin.config_set(setting, "no")
    try:
        with pytest.raises(UnsuitableServerError, match=f"wait_for_flush=True.*{setting} no.*set appendonly yes"):
            async with starting(server.state(), mode):
                pass
        async with starting(RedisState(server.url), mode) as start:
            await start(named("a"))
    finally:
        server.admin.config_set("appendonly", "yes")


@MODES
async def test_a_user_who_may_not_wait(server: Server, mode: Mode) -> None:
    rules = [word.replace("{queuert:shop}", "{queuert:default}") for word in documented_rules()]
    server.admin.execute_command("ACL", "SETUSER", "limited", *rules)
    state = server.state(as_user(server.url, "limited", "PASSWORD"))
    with pytest.raises(StateError, match=r"WAITAOF.*\+waitaof"):
        async with starting(state, mode):
            pass
    server.admin.execute_command("ACL", "SETUSER", "limited", "+waitaof")
    async with starting(state, mode) as start:
        await start(named("a"))


@pytest.mark.parametrize("case", one_of_each_group(), ids=str)
@MODES
def test_the_contract(server: Server, case: Case, mode: Mode) -> None:
    state = server.state(namespace=new_id(), answer_timeout=10.0)
    if all(need in state.capabilities for need in case.needs):
        asyncio.run(run_case(case, state, mode))
    assert scan(server.admin, state.namespace) == []
