"""Handlers in child processes: what they can do, how they are killed, and what their deaths cost."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from queuert import Attempt, JobStatus, NewChain, Outcome, Processors, RetryPolicy
from queuert.errors import ConfigurationError, DefinitionError
from queuert.jobs import AbortReason
from queuert.observability.events import (
    AttemptAborted,
    AttemptCompleted,
    AttemptFailed,
    AttemptRetried,
    ErrorAfterCompletion,
    FinishRejected,
    HandlerKilled,
)
from queuert.policies import LeasePolicy
from queuert.worker.processes import handle
from queuert.worker.processes.executor import HandlerProcesses
from queuert.worker.processes.handle import ChildProcess
from queuert.worker.processes.messages import Abort
from tests.support.harness import PostgresHarness
from tests.support.job_types import AT_ONCE, JOB_TYPES, WATCHED, anything, echo, number, relay, text
from tests.support.waiting import START, WAIT, in_time, until
from tests.worker import killable
from tests.worker.completing import effects_of
from tests.worker.test_abort import CANCEL, EXPIRE_AND_GIVE_BACK

ROOT = Path(__file__).parents[2]
ONCE = RetryPolicy(max_attempts=1)

pytestmark = pytest.mark.timeout(12 * WAIT)


@pytest.fixture(autouse=True)
def _patient_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that stops waits until processes that are killed have ended: two seconds may be too short for that."""
    monkeypatch.setattr("queuert.worker.runtime._AFTER_CANCEL", WAIT)


@pytest.fixture
def time_to_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that is told to stop may be slow in it: it is not killed a second later."""
    monkeypatch.setattr("queuert.worker.processes.executor._ABORT_TIMEOUT", WAIT)


def runs(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def arrived(place: Path) -> int:
    """The process that has come to a place."""
    try:
        async with asyncio.timeout(START):
            while not place.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"no handler came to {place} within {START:g} s") from None
    return int(place.read_text())


async def gone(*pids: int) -> None:
    """Wait until these processes have ended."""
    await until(lambda: not any(map(runs, pids)), f"the processes {pids} end")


def handles(harness: PostgresHarness, handler: Callable[[Attempt[Any, Any]], Any], **settings: Any) -> None:
    harness.handles(anything, handler, executor="process", **settings)


async def result(harness: PostgresHarness, input: Any) -> Any:
    return await (await harness.client.start_chain(anything, input)).result(START)


# --- what it can do ---------------------------------------------------------------------------------------------------


async def test_it_runs_elsewhere_with_all_that_an_attempt_has(harness: PostgresHarness) -> None:
    handles(harness, killable.here)
    harness.handles(number, echo)
    async with harness.worker() as worker:
        blockers = await harness.client.start_chains([NewChain(number, 1), NewChain(number, 2)])
        chain = await harness.client.start_chain(anything, {"a": [1]}, id="here", blockers=blockers)
        found = await chain.result(START)
        again = await result(harness, None)
    assert found["pid"] not in (os.getpid(), 0)
    assert again["pid"] == found["pid"], "the process is kept"
    del found["pid"]
    assert found == {
        "input": {"a": [1]},
        "job_id": "here",
        "number": 1,
        "worker": worker.name,
        "stopping": False,
        "blockers": [1, 2],
    }


async def test_each_slot_has_a_process_of_its_own(harness: PostgresHarness, tmp_path: Path) -> None:
    handles(harness, killable.wait_for_leave)
    places = [tmp_path / "one", tmp_path / "two"]
    async with harness.worker(concurrency=2):
        chains = await harness.client.start_chains([NewChain(anything, str(place)) for place in places])
        pids = [await arrived(place) for place in places]
        for place in places:
            place.with_suffix(".go").touch()
        await harness.client.wait(chains, timeout=START)
    assert len({*pids, os.getpid()}) == 3
    await gone(*pids)


async def test_it_continues_its_chain(harness: PostgresHarness) -> None:
    harness.handles(relay, killable.onwards, executor="process")
    harness.handles(number, killable.double, executor="process")
    async with harness.worker():
        assert await (await harness.client.start_chain(relay, 20)).result(START) == 42


@pytest.mark.parametrize(("input", "status"), [("fail", JobStatus.FAILED), ("cancel", JobStatus.CANCELLED)])
async def test_it_asks_for_retries_fails_and_cancels(harness: PostgresHarness, input: str, status: JobStatus) -> None:
    handles(harness, killable.again)
    async with harness.worker():
        chain = await (await harness.client.start_chain(anything, input)).wait(START)
    job = await harness.job(chain.id)
    assert (job.status, job.attempt, job.last_error and job.last_error.kind) == (status, 2, input)
    assert harness.log.of(AttemptRetried)[0].error.message == "once more"


async def test_what_it_logs_goes_to_the_workers_loggers(
    harness: PostgresHarness, caplog: pytest.LogCaptureFixture
) -> None:
    handles(harness, killable.here)
    async with harness.worker():
        chain = await harness.client.start_chain(anything, 1)
        await chain.result(START)
    record = next(one for one in caplog.records if one.name == "tests.killable")
    assert (record.getMessage(), record.levelno) == ("said by the handler", logging.WARNING)
    assert vars(record)["queuert_job_id"] == chain.id


async def test_middlewares_wrap_it_and_see_what_it_raised(harness: PostgresHarness) -> None:
    seen: list[object] = []

    async def watch(attempt: Attempt[Any, Any], call_next: Any) -> Any:
        try:
            seen.append(await call_next())
        except killable.Odd as error:
            seen.append(str(error))
            return "mended"
        return seen[-1]

    handles(harness, killable.raises, middlewares=[watch])
    harness.handles(number, killable.double, executor="process", middlewares=[watch])
    async with harness.worker():
        assert await (await harness.client.start_chain(number, 4)).result(START) == 8
        assert await result(harness, "odd") == "mended"
    assert seen == [8, "odd"]


# --- what it raises ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("input", "type", "message"),
    [
        ("odd", "tests.worker.killable.Odd", "odd"),
        ("stubborn", "tests.worker.killable.Stubborn", "1 and 2"),
        ("exit", "RuntimeError", "the handler raised SystemExit: 3"),
        ("fatal", "tests.worker.killable.Fatal", "no exception"),
    ],
)
async def test_an_exception_is_a_failed_attempt_with_its_traceback(
    harness: PostgresHarness, input: str, type: str, message: str
) -> None:
    handles(harness, killable.raises, retry=ONCE)
    async with harness.worker():
        chain = await (await harness.client.start_chain(anything, input)).wait(START)
    job = await harness.job(chain.id)
    assert job.last_error is not None
    assert (job.status, job.last_error.kind, job.last_error.type, job.last_error.message) == (
        JobStatus.FAILED,
        "handler",
        type,
        message,
    )
    assert "in raises" in str(job.last_error.traceback)
    assert (job.attempt, job.lease_expirations) == (1, 0)


async def test_what_cannot_be_sent_back_is_a_failed_attempt(harness: PostgresHarness) -> None:
    handles(harness, killable.raises, retry=ONCE)
    async with harness.worker():
        chain = await (await harness.client.start_chain(anything, "a function")).wait(START)
        assert "what the handler returned cannot be pickled" in str(chain.error)
        assert "odd" in str((await (await harness.client.start_chain(anything, "odd")).wait(START)).error)


async def test_a_lost_lease_that_it_reports_writes_nothing(harness: PostgresHarness) -> None:
    handles(harness, killable.raises)
    async with harness.worker():
        await harness.client.start_chain(anything, "lost", id="lost")
        refused = await harness.log.wait_for(FinishRejected, job_id="lost", timeout=START)
        assert refused.reason is AbortReason.NOT_FOUND
    assert harness.log.of(AttemptRetried) == []


# --- complete() -------------------------------------------------------------------------------------------------------


async def test_its_writes_commit_with_the_finish(harness: PostgresHarness) -> None:
    effects = effects_of(harness)
    handles(harness, killable.completes)
    async with harness.worker():
        chain = await harness.client.start_chain(anything, "")
        assert await chain.result(START) == 1
        assert await result(harness, "") == 1, "in the same process, on the same connection"
    assert effects()[0] == (chain.id, 1)
    assert len(harness.log.of(AttemptCompleted)) == 2


async def test_a_block_that_forgets_to_finish_is_rolled_back(harness: PostgresHarness) -> None:
    effects = effects_of(harness)
    retry = RetryPolicy(initial_delay=0, jitter=0, retry_programming_errors=True)
    harness.handles(anything, killable.completes, executor="process", retry=retry)
    async with harness.worker():
        chain = await harness.client.start_chain(anything, "forgets")
        assert await chain.result(START) == 2
    assert effects() == [(chain.id, 2)]
    assert "CompletionMissingError" in str(harness.log.of(AttemptRetried)[0].error)


async def test_an_error_after_the_commit_changes_nothing(harness: PostgresHarness) -> None:
    effects = effects_of(harness)
    handles(harness, killable.completes)
    async with harness.worker():
        chain = await harness.client.start_chain(anything, "raises")
        assert await chain.result(START) == 1
        await harness.log.wait_for(ErrorAfterCompletion, job_id=chain.id)
    assert effects() == [(chain.id, 1)]


async def test_a_death_inside_the_block_rolls_back(harness: PostgresHarness) -> None:
    effects = effects_of(harness)
    handles(harness, killable.completes)
    async with harness.worker():
        chain = await harness.client.start_chain(anything, "inside")
        assert await chain.result(START) == 2
    assert effects() == [(chain.id, 2)]
    assert [event.error.kind for event in harness.log.of(AttemptRetried)] == ["crashed"]


async def test_a_death_after_the_commit_changes_nothing(harness: PostgresHarness) -> None:
    effects = effects_of(harness)
    handles(harness, killable.completes)
    async with harness.worker():
        chain = await harness.client.start_chain(anything, "after")
        assert await chain.result(START) == 1
        await harness.log.wait_for(ErrorAfterCompletion, job_id=chain.id)
    assert effects() == [(chain.id, 1)]
    assert (await harness.job(chain.id)).lease_expirations == 0


@pytest.mark.parametrize("how", ["committed", "uncommitted"])
async def test_a_death_around_the_commit_is_settled_by_the_store(harness: PostgresHarness, how: str) -> None:
    effects = effects_of(harness)
    handles(harness, killable.dies_before_it_says_so)
    expected = 1 if how == "committed" else 2
    async with harness.worker():
        chain = await harness.client.start_chain(anything, how)
        assert await chain.result(START) == expected
        await harness.log.wait_for(AttemptCompleted, attempt=expected)
    assert effects() == [(chain.id, expected)]
    assert len(harness.log.of(AttemptRetried)) == expected - 1
    assert len(harness.log.of(AttemptCompleted)) == 1
    assert (await harness.job(chain.id)).attempt == expected


@pytest.mark.parametrize("stands", [True, False], ids=["the commit goes through", "it does not"])
async def test_a_death_in_the_commit_waits_for_the_server(
    harness: PostgresHarness, tmp_path: Path, stands: bool
) -> None:
    effects = effects_of(harness)
    harness.rows(
        "create function hold() returns trigger language plpgsql as"
        " 'begin if new.attempt = 1 then perform pg_advisory_xact_lock(42); end if; return new; end'"
    )
    harness.rows(
        "create constraint trigger hold after insert on effect deferrable initially deferred"
        " for each row execute function hold()"
    )
    handles(harness, killable.commits_slowly)
    with psycopg.connect(harness.dsn, autocommit=True) as other:
        other.execute("select pg_advisory_lock(42)")
        async with harness.worker():
            chain = await harness.client.start_chain(anything, str(tmp_path / "here"))
            pid = await arrived(tmp_path / "here")
            await until(lambda: bool(_committing(harness)), "the server works on the commit")
            (tmp_path / "here").unlink()
            os.kill(pid, signal.SIGKILL)
            await gone(pid)
            if not stands:
                other.execute("select pg_terminate_backend(%s)", _committing(harness))
            other.execute("select pg_advisory_unlock(42)")
            assert await chain.result(START) == (1 if stands else 2)
            await harness.log.wait_for(AttemptCompleted)
    assert effects() == [(chain.id, 1 if stands else 2)]
    assert len(harness.log.of(AttemptRetried)) == (0 if stands else 1)


def _committing(harness: PostgresHarness) -> list[int]:
    found = harness.rows("select pid from pg_locks where locktype = 'advisory' and not granted")
    return [row[0] for row in found]


# --- killing ----------------------------------------------------------------------------------------------------------


async def test_the_hard_timeout_kills_it_with_all_that_it_started(
    harness: PostgresHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timers: list[tuple[float | None, Callable[[], None]]] = []

    @contextmanager
    def timer(seconds: float | None, action: Callable[[], None]) -> Iterator[None]:
        # The time is over when the test says so: what the handler starts may take its time to get there.
        timers.append((seconds, action))
        try:
            yield
        finally:
            timers.pop()

    monkeypatch.setattr("queuert.worker.processes.executor.timer", timer)
    handles(harness, killable.stay, hard_timeout=1.5, retry=ONCE)
    harness.handles(number, killable.double, executor="process")
    place = tmp_path / "here"
    async with harness.worker():
        chain = await harness.client.start_chain(anything, str(place))
        pids = [await arrived(place), await arrived(tmp_path / "here.grandchild")]
        await until(lambda: [seconds for seconds, _ in timers] == [1.5], "the time of the handler runs")
        timers[0][1]()
        assert "ran for longer than 1.5 seconds: its process was killed" in str((await chain.wait(START)).error)
        await gone(*pids)
        assert await (await harness.client.start_chain(number, 4)).result(START) == 8
    job = await harness.job(chain.id)
    assert (job.status, job.attempt, job.lease_expirations) == (JobStatus.FAILED, 1, 0)
    assert job.last_error is not None
    assert job.last_error.kind == "timeout"
    assert [event.reason for event in harness.log.of(HandlerKilled)] == [AbortReason.TIMEOUT]


async def test_the_hard_timeout_kills_what_never_lets_go_of_the_interpreter(
    harness: PostgresHarness, tmp_path: Path
) -> None:
    handles(harness, killable.spin, timeout=0.2, hard_timeout=0.5, retry=ONCE)
    async with harness.worker():
        chain = await harness.client.start_chain(anything, str(tmp_path / "here"))
        assert "0.5 seconds" in str((await chain.wait(START)).error)
    assert len(harness.log.of(AttemptAborted)) == 1


async def test_a_timeout_in_the_block_leaves_nothing_written(harness: PostgresHarness, tmp_path: Path) -> None:
    effects = effects_of(harness)
    handles(harness, killable.holds, hard_timeout=1, retry=ONCE)
    async with harness.worker():
        chain = await (await harness.client.start_chain(anything, str(tmp_path / "here"))).wait(START)
    assert chain.error is not None
    assert chain.error.kind == "timeout"
    assert effects() == []


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        (EXPIRE_AND_GIVE_BACK, AbortReason.TAKEN_BY_ANOTHER_WORKER),
        (CANCEL, AbortReason.CANCELLED),
    ],
    ids=["lease lost", "cancelled"],
)
async def test_it_is_killed_when_it_does_not_listen(
    harness: PostgresHarness, tmp_path: Path, statement: Any, reason: AbortReason
) -> None:
    handles(harness, killable.stay, lease=WATCHED)
    harness.handles(text, echo)
    async with harness.worker():
        await harness.client.start_chain(anything, str(tmp_path / "here"), id="one")
        pid = await arrived(tmp_path / "here")
        harness.rows(statement, "one")
        await harness.log.wait_for(HandlerKilled, job_id="one", reason=reason)
        await gone(pid)
        assert await (await harness.client.start_chain(text, "the slot is free")).result(START)
    assert harness.log.of(AttemptRetried) + harness.log.of(AttemptFailed) == []


@pytest.mark.usefixtures("time_to_listen")
async def test_it_is_reported_first(harness: PostgresHarness, tmp_path: Path) -> None:
    handles(harness, killable.listen, lease=WATCHED)
    async with harness.worker():
        await harness.client.start_chain(anything, str(tmp_path / "here"), id="one")
        pid = await arrived(tmp_path / "here")
        harness.rows("update queuert.job set lease_token = gen_random_uuid() where id = 'one'")
        await until((tmp_path / "here.told").exists, "it is told")
        await harness.log.wait_for(FinishRejected, job_id="one")
        assert runs(pid), "it ended in time, and is kept"
    assert (tmp_path / "here.told").read_text() == "taken_by_another_worker False"
    assert harness.log.of(HandlerKilled) == []


async def test_a_call_that_a_middleware_cancels_is_killed(harness: PostgresHarness, tmp_path: Path) -> None:
    came = asyncio.Event()

    async def timeout(attempt: Attempt[Any, Any], call_next: Any) -> Any:
        call = asyncio.ensure_future(call_next())
        await came.wait()
        call.cancel()
        return "given up"

    handles(harness, killable.stay, middlewares=[timeout])
    async with harness.worker():
        chain = await harness.client.start_chain(anything, str(tmp_path / "here"))
        pid = await arrived(tmp_path / "here")
        came.set()
        assert await chain.result(START) == "given up"
        await gone(pid)


# --- dying ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("input", "says"), [("exit", "exit code 7"), ("kill", "killed by SIGKILL"), ("segfault", "killed by SIGSEGV")]
)
async def test_a_death_is_a_failed_attempt_and_the_worker_lives(
    harness: PostgresHarness, input: str, says: str
) -> None:
    handles(harness, killable.die, retry=ONCE)
    async with harness.worker():
        chain = await (await harness.client.start_chain(anything, input)).wait(START)
        assert await result(harness, "well") == "well"
    job = await harness.job(chain.id)
    assert job.last_error is not None
    assert (job.status, job.last_error.kind) == (JobStatus.FAILED, "crashed")
    assert says in job.last_error.message


@pytest.mark.parametrize("noticed", [True, False], ids=["noticed", "not noticed yet"])
async def test_a_process_that_dies_idle_is_replaced(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch, noticed: bool
) -> None:
    if not noticed:
        monkeypatch.setattr(ChildProcess, "alive", True)
        monkeypatch.setattr(HandlerProcesses, "_remove_child", lambda self, child: self._children.discard(child))
    handles(harness, killable.here)
    async with harness.worker():
        first = await result(harness, 1)
        os.kill(first["pid"], signal.SIGKILL)
        await gone(first["pid"])
        second = await result(harness, 2)
    assert second["pid"] != first["pid"]
    assert harness.log.of(AttemptRetried) == []


async def test_nothing_of_a_process_that_is_found_dead_stays_open(
    harness: PostgresHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: asyncio.Future[ChildProcess] = asyncio.get_running_loop().create_future()
    closed: list[ChildProcess] = []
    close = ChildProcess.close

    def tell(executor: HandlerProcesses, child: ChildProcess) -> None:
        if not found.done():
            found.set_result(child)

    def close_and_tell(child: ChildProcess) -> None:
        closed.append(child)
        close(child)

    # It is still among those that wait for an attempt when the next one comes.
    monkeypatch.setattr(HandlerProcesses, "_remove_child", tell)
    monkeypatch.setattr(ChildProcess, "close", close_and_tell)
    handles(harness, killable.here)
    async with harness.worker():
        os.kill((await result(harness, 1))["pid"], signal.SIGKILL)
        dead = await in_time(found)
        await result(harness, 2)
        assert dead in closed


@pytest.mark.usefixtures("time_to_listen")
async def test_a_process_that_died_idle_is_not_killed_for_the_attempt_that_found_it(
    harness: PostgresHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[ChildProcess] = []
    send = ChildProcess.send

    def send_and_note(child: ChildProcess, message: object) -> None:
        if isinstance(message, Abort):
            reported.append(child)
        send(child, message)

    monkeypatch.setattr(ChildProcess, "send", send_and_note)
    monkeypatch.setattr(ChildProcess, "alive", True)
    monkeypatch.setattr(HandlerProcesses, "_remove_child", lambda self, child: self._children.discard(child))
    handles(harness, killable.here)
    harness.handles(text, killable.listen, executor="process", lease=WATCHED)
    async with harness.worker():
        pid = (await result(harness, 1))["pid"]
        os.kill(pid, signal.SIGKILL)
        await gone(pid)
        await harness.client.start_chain(text, str(tmp_path / "here"), id="one")
        listening = await arrived(tmp_path / "here")
        harness.rows("update queuert.job set lease_token = gen_random_uuid() where id = 'one'")
        await harness.log.wait_for(FinishRejected, job_id="one")
    # Whoever is told is killed later, if it does not listen: the dead one, which was there first, was not even told.
    assert [child._process.pid for child in reported] == [listening]
    assert harness.log.of(HandlerKilled) == []


async def test_a_process_for_which_there_is_no_thread_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[subprocess.Popen[bytes]] = []
    spawn = handle._spawn

    def spawn_and_tell(theirs: socket.socket) -> subprocess.Popen[bytes]:
        made.append(spawn(theirs))
        return made[0]

    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(handle, "_spawn", spawn_and_tell)
    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="new thread"):
            await ChildProcess.start("test", None)
    assert made[0].returncode == -signal.SIGKILL
    made.clear()
    gc.collect()


async def test_signals_meant_for_the_whole_service_do_not_end_it(harness: PostgresHarness, tmp_path: Path) -> None:
    handles(harness, killable.wait_for_leave)
    async with harness.worker():
        chain = await harness.client.start_chain(anything, str(tmp_path / "here"))
        pid = await arrived(tmp_path / "here")
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
        (tmp_path / "here.go").touch()
        assert await chain.result(START) == {"stopping": False}
    assert (await harness.job(chain.id)).attempt == 1


# --- stopping ---------------------------------------------------------------------------------------------------------


async def test_it_may_finish_within_the_grace_and_knows_of_the_stop(harness: PostgresHarness, tmp_path: Path) -> None:
    handles(harness, killable.wait_for_leave)
    worker = harness.worker(shutdown_timeout=WAIT)
    await worker.start()
    chain = await harness.client.start_chain(anything, str(tmp_path / "here"))
    pid = await arrived(tmp_path / "here")
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0)
    (tmp_path / "here.stop").touch()
    (tmp_path / "here.go").touch()
    await in_time(stopping)
    assert await chain.result(START) == {"stopping": True}
    await gone(pid)


@pytest.mark.parametrize("how", ["beyond the grace", "asked twice"])
async def test_it_is_reported_and_killed_when_the_grace_is_over(
    harness: PostgresHarness, tmp_path: Path, how: str
) -> None:
    handles(harness, killable.stay, retry=ONCE)
    worker = harness.worker(shutdown_timeout=0 if how == "beyond the grace" else 3600)
    await worker.start()
    chain = await harness.client.start_chain(anything, str(tmp_path / "here"))
    pids = [await arrived(tmp_path / "here"), await arrived(tmp_path / "here.grandchild")]
    stops = [asyncio.create_task(worker.stop())]
    if how == "asked twice":
        await asyncio.sleep(0)
        stops.append(asyncio.create_task(worker.stop()))
    await in_time(asyncio.gather(*stops))
    assert worker.abandoned == 0
    job = await harness.job(chain.id)
    assert (job.status, job.attempt, job.uncounted, job.lease_expirations) == (JobStatus.READY, 1, 0, 1)
    [retried] = harness.log.of(AttemptRetried)
    assert retried.error.kind == "worker_stopping"
    assert "its process was killed: crash 1 of max_crashes=5" in retried.error.message
    await gone(*pids)


@pytest.mark.usefixtures("time_to_listen")
async def test_it_dies_by_itself_when_the_grace_is_over(harness: PostgresHarness, tmp_path: Path) -> None:
    """That is a crash as any other, and its error says how it died."""
    handles(harness, killable.dies_when_aborted)
    worker = harness.worker()
    await worker.start()
    chain = await harness.client.start_chain(anything, str(tmp_path / "here"))
    await arrived(tmp_path / "here")
    await in_time(worker.stop(shutdown_timeout=0))
    job = await harness.job(chain.id)
    assert (job.status, job.lease_expirations) == (JobStatus.READY, 1)
    assert job.last_error is not None
    assert job.last_error.kind == "crashed"
    assert "exit code 7" in job.last_error.message


async def test_a_handler_that_has_not_begun_when_the_grace_is_over_does_not_count(
    harness: PostgresHarness, tmp_path: Path
) -> None:
    """Its process is still importing it."""
    handles(harness, killable.NeverLoaded(str(tmp_path / "here")), retry=ONCE)
    worker = harness.worker()
    await worker.start()
    chain = await harness.client.start_chain(anything, "")
    pid = await arrived(tmp_path / "here")
    await in_time(worker.stop(shutdown_timeout=0))
    job = await harness.job(chain.id)
    assert (job.status, job.uncounted, job.lease_expirations) == (JobStatus.READY, 1, 0)
    await gone(pid)


@pytest.mark.usefixtures("time_to_listen")
async def test_it_hears_why_when_the_grace_is_over(harness: PostgresHarness, tmp_path: Path) -> None:
    handles(harness, killable.listen)
    worker = harness.worker()
    await worker.start()
    await harness.client.start_chain(anything, str(tmp_path / "here"))
    await arrived(tmp_path / "here")
    await in_time(worker.stop(shutdown_timeout=0))
    assert (tmp_path / "here.told").read_text() == "worker_stopping True"


@pytest.mark.parametrize("handler", ["stay", "spin"])
async def test_nothing_outlives_a_worker_that_is_killed(harness: PostgresHarness, tmp_path: Path, handler: str) -> None:
    """Also where the handler never lets go of the interpreter, so that no thread of it can notice."""
    program = _PROGRAM.format(dsn=harness.dsn, handler=handler)
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    try:
        await harness.client.start_chain(anything, str(tmp_path / "here"))
        pids = [await arrived(tmp_path / "here")]
        if handler == "stay":
            pids.append(await arrived(tmp_path / "here.grandchild"))
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)
    await gone(*pids)


_PROGRAM = """
from queuert import Client, InProcessWorker, PostgresState, Processors
from tests.worker import killable
from tests.support.job_types import JOB_TYPES, anything
processors = Processors(JOB_TYPES)
processors.handles(anything, executor="process")(killable.{handler})
InProcessWorker(Client(PostgresState({dsn!r}), JOB_TYPES), processors).run()
"""


# --- scripts ----------------------------------------------------------------------------------------------------------

_SCRIPT = """
import os
from typing import Any
from pydantic import BaseModel
from queuert import Attempt, Client, InProcessWorker, JobType, JobTypes, Outcome, PostgresState, Processors, RetryPolicy
print("imported", flush=True)

class Size(BaseModel):
    width: int

class TooBig(Exception):
    pass

grow = JobType("anything", input=Size, output=Size)
processors = Processors(JobTypes(grow), retry=RetryPolicy(max_attempts=1, fail_on=(TooBig,)))

@processors.handles(grow, executor="process")
def double(attempt: Attempt[Size, Size]) -> Outcome[Size]:
    if attempt.input.width > 100:
        raise TooBig(str(attempt.input.width))
    return Size(width=attempt.input.width * 2)

{guard}InProcessWorker(Client(PostgresState(os.environ["URL"]), processors.job_types), processors).run()
"""


async def _outcome_of_script(harness: PostgresHarness, place: Path, script: str, width: int) -> str:
    place.write_text(script)
    process = subprocess.Popen(
        [sys.executable, str(place)], cwd=ROOT, env={**os.environ, "URL": harness.dsn, "PYTHONPATH": str(ROOT)}
    )
    try:
        chain = await (await harness.client.start_chain(anything, {"width": width})).wait(START)
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)
    return str(chain.error) if chain.error else str(await chain.result(START))


@pytest.mark.parametrize(("width", "outcome"), [(4, "{'width': 8}"), (500, "__main__.TooBig: 500")])
async def test_a_handler_in_a_script_is_imported_from_it(
    harness: PostgresHarness, tmp_path: Path, width: int, outcome: str
) -> None:
    script = _SCRIPT.format(guard='if __name__ == "__main__": ')
    found = await _outcome_of_script(harness, tmp_path / "app.py", script, width)
    assert found.replace("__mp_main__", "__main__") == outcome


async def test_a_script_that_would_start_a_worker_in_each_child_is_reported(
    harness: PostgresHarness, tmp_path: Path
) -> None:
    found = await _outcome_of_script(harness, tmp_path / "app.py", _SCRIPT.format(guard=""), 4)
    assert 'if __name__ == "__main__"' in found
    assert "DefinitionError" in found


@pytest.mark.parametrize("signals", [1, 2], ids=["within the grace", "asked twice"])
async def test_the_command_line_runs_it_and_ends_it(harness: PostgresHarness, tmp_path: Path, signals: int) -> None:
    (tmp_path / "app.py").write_text(_APPLICATION)
    command = [
        sys.executable,
        "-m",
        "queuert",
        "worker",
        "app:processors",
        "--url",
        harness.dsn,
        "--shutdown-timeout",
        "600",
    ]
    place = tmp_path / "here"
    with subprocess.Popen(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            chain = await harness.client.start_chain(anything, str(place), id="one")
            pid = await arrived(place)
            process.send_signal(signal.SIGTERM)
            assert await in_time(asyncio.to_thread(_says, process, "is stopping"))
            if signals == 2:
                process.send_signal(signal.SIGTERM)
            else:
                place.with_suffix(".go").touch()
            assert await asyncio.to_thread(process.wait, START) == 0
        finally:
            process.kill()
    await gone(pid)
    job = await harness.job(chain.id)
    expected = (JobStatus.COMPLETED, 1, 0) if signals == 1 else (JobStatus.READY, 1, 1)
    assert (job.status, job.attempt, job.lease_expirations) == expected


def _says(process: subprocess.Popen[str], what: str) -> bool:
    assert process.stderr is not None
    return any(what in line for line in process.stderr)


_APPLICATION = """
from typing import Any
from queuert import Attempt, JobType, JobTypes, Outcome, Processors
from queuert.worker import runtime
from tests.worker.killable import wait_for_leave
runtime._AFTER_CANCEL = 20.0  # Not abandoned, and said so by the exit code, because it takes a while to be killed.
anything = JobType("anything", input=Any, output=Any)
processors = Processors(JobTypes(anything))

@processors.handles(anything, executor="process")
def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    return wait_for_leave(attempt)
"""


# --- definitions ------------------------------------------------------------------------------------------------------


async def coroutine(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    return attempt.input


def plain(attempt: Attempt[Any, Any]) -> Outcome[Any]:
    return attempt.input


def unequal(other: Any, attempt: Attempt[Any, Any]) -> Outcome[Any]:
    return attempt.input is other


class Secret(Exception):
    """Hidden below."""


Secret.__qualname__ = "nowhere"


@pytest.mark.parametrize(
    ("handler", "settings", "says"),
    [
        (coroutine, {"executor": "process"}, "coroutine"),
        (lambda attempt: attempt.input, {"executor": "process"}, "top of a module"),
        (plain, {"executor": "thread "}, "executor"),
        (plain, {"hard_timeout": 5}, "cannot be killed"),
        (coroutine, {"hard_timeout": 5}, "cannot be killed"),
    ],
)
def test_what_cannot_run_in_a_process_is_refused(handler: Any, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        Processors(JOB_TYPES).handles(anything, **settings)(handler)


@pytest.mark.parametrize(
    "settings",
    [
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": float("nan")},
        {"timeout": float("inf")},
        {"executor": "process", "hard_timeout": 0},
        {"executor": "process", "timeout": 5, "hard_timeout": 5},
    ],
)
def test_timeouts_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Processors(JOB_TYPES).handles(anything, **settings)(plain)


@pytest.mark.parametrize(
    ("handler", "retry"),
    [(partial(unequal, lambda: None), AT_ONCE), (plain, RetryPolicy(fail_on=(Secret,)))],
    ids=["the handler", "its policy"],
)
async def test_what_cannot_be_sent_is_refused_before_the_worker_starts(
    harness: PostgresHarness, handler: Any, retry: RetryPolicy
) -> None:
    handles(harness, handler, retry=retry)
    with pytest.raises(DefinitionError, match="cannot run in another process"):
        harness.worker()


def test_a_handler_typed_at_a_prompt_is_refused() -> None:
    program = (
        "from queuert import Processors\n"
        "from tests.support.job_types import JOB_TYPES, anything\n"
        "def handler(attempt): return attempt.input\n"
        "Processors(JOB_TYPES).handles(anything, executor='process')(handler)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "DefinitionError: the handler of 'anything' lives in __main__" in done.stderr


async def test_a_state_that_cannot_be_sent_still_runs_handlers(harness: PostgresHarness) -> None:
    harness.state.unsendable = lambda: None  # type: ignore[attr-defined]
    handles(harness, killable.completes, retry=ONCE)
    harness.handles(number, killable.double, executor="process")
    async with harness.worker():
        assert await (await harness.client.start_chain(number, 4)).result(START) == 8
        chain = await (await harness.client.start_chain(anything, "")).wait(START)
    assert "complete() works in threads only" in str(chain.error)


async def test_it_goes_on_while_somebody_holds_its_row_for_longer_than_its_lease(
    harness: PostgresHarness, tmp_path: Path
) -> None:
    """A caller's transaction that starts a chain behind it: the lease is extended beside the row."""
    handles(harness, killable.wait_for_leave, lease=LeasePolicy(seconds=4.0, renew_every=0.7))
    harness.handles(number, echo)
    place = tmp_path / "held"
    async with harness.worker():
        chain = await harness.client.start_chain(anything, str(place))
        await arrived(place)
        async with await psycopg.AsyncConnection.connect(harness.dsn) as connection:
            await harness.client.start_chain(number, 1, id="waits", blockers=[chain], connection=connection)
            over = "select lease_expires_at < clock_timestamp() from queuert.job where type = 'anything'"
            await until(lambda: harness.one(over), "the lease in its row is over")
            beside = "select count(*) from queuert.lease_extension where expires_at > clock_timestamp()"
            assert harness.one(beside) == 1
        place.with_suffix(".go").touch()
        await chain.result(START)
    assert harness.log.of(AttemptAborted) == []
    assert harness.rows("select attempt, lease_expirations from queuert.job where type = 'anything'") == [(1, 0)]
