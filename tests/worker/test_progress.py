"""What handlers tell of their progress: seen from outside while they run, sealed as payloads are, by processes too."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Outcome, Processors, RetryPolicy
from queuert.cli import main
from queuert.codecs import EncryptionCodec, EncryptionKey, PayloadFormat
from queuert.errors import ConfigurationError
from queuert.jobs import JobProgress, JobStatus
from queuert.policies import LeasePolicy
from tests.support.harness import PostgresHarness
from tests.support.job_types import AT_ONCE, anything, number
from tests.support.waiting import START, WAIT, Gate, until
from tests.worker.completing import effects_of
from tests.worker.killable import counts, counts_and_completes, counts_in_a_block, counts_to_the_end

SECRET = "Rumpelstilzchen"
secret = JobType(
    "secret", input=int, output=int, format=PayloadFormat(codecs=[EncryptionCodec([EncryptionKey("one", b"k" * 32)])])
)


async def seen(client: AsyncClient, job_id: str, done: float, within: float = WAIT) -> JobProgress:
    """The progress of a job, as soon as so much is done."""
    async with asyncio.timeout(within):
        while (progress := (await client.get_job(job_id)).progress) is None or progress.done != done:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return progress


async def test_others_see_it_while_the_handler_runs(harness: PostgresHarness) -> None:
    gate = Gate()

    # Of itself no renewal comes within the test: what is told is what brings one.
    @harness.processors.handles(number, retry=AT_ONCE, lease=LeasePolicy(seconds=600.0, renew_every=200.0))
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        if attempt.number == 1:
            for done in range(1_000):  # the newest counts, and is not waited for
                attempt.record_progress(done, 1_000, message=f"row {done}")
            await gate.pass_through(attempt)
            raise ValueError
        return attempt.input

    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        progress = await seen(harness.client, chain.id, 999)
        assert (progress.fraction, progress.total, progress.message) == (0.999, 1_000, "row 999")
        gate.open()
        assert await chain.result(WAIT) == 1
    # The attempt that told it is not the last any more.
    assert (await harness.job(chain.id)).progress is None


async def test_it_is_written_after_a_transaction_and_kept_at_the_end(
    harness: PostgresHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    effects_of(harness)
    inside, after = Gate(), Gate()

    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.transaction():
            attempt.record_progress(1, 4, message="held")
            await inside.pass_through(attempt)
        await after.pass_through(attempt)
        return attempt.input

    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        await inside.next()
        assert (await harness.job(chain.id)).progress is None
        inside.open()
        await seen(harness.client, chain.id, 1)
        after.open()
        await chain.result(WAIT)
    kept = (await harness.job(chain.id)).progress
    assert kept is not None
    assert (kept.done, kept.total, kept.fraction, kept.message) == (1, 4, 0.25, "held")
    assert await asyncio.to_thread(main, ["jobs", "show", chain.id, "--url", harness.dsn]) == 0
    assert "25%, 1 of 4, held (20" in capsys.readouterr().out


@pytest.mark.parametrize("how", ["returns", "thread", "raises", "after_attempt", "block", "block in a thread"])
async def test_what_an_attempt_records_last_is_written_with_its_finish(harness: PostgresHarness, how: str) -> None:
    """Within the second in which a renewal has written progress."""
    gate = Gate()

    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        attempt.record_progress(1, 4)
        await gate.pass_through(attempt)
        attempt.record_progress(3, 4)
        if how == "block":
            async with attempt.complete() as tx:
                attempt.record_progress(4, 4, message="done")
                return tx.finish(1)
        attempt.record_progress(4, 4, message="done")
        if how == "raises":
            raise ValueError
        return 1

    def in_a_thread(attempt: Attempt[int, int]) -> Outcome[int]:
        attempt.record_progress(1, 4)
        asyncio.run_coroutine_threadsafe(gate.pass_through(attempt), loop).result(WAIT)
        attempt.record_progress(4, 4, message="done")
        if how == "thread":
            return 1
        with attempt.complete() as tx:
            return tx.finish(1)

    loop = asyncio.get_running_loop()
    in_loop = how not in ("thread", "block in a thread")
    hook = (lambda ended: None) if how == "after_attempt" else None
    harness.handles(number, handler if in_loop else in_a_thread, retry=RetryPolicy(max_attempts=1), after_attempt=hook)
    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        await seen(harness.client, chain.id, 1)
        gate.open()
        await chain.wait(WAIT)
    last = (await harness.job(chain.id)).progress
    assert last is not None
    assert (last.done, last.total, last.message) == (4, 4, "done")
    page = await harness.client.list_events(chain=chain, oldest_first=True)
    log = [(event.kind, None if event.progress is None else event.progress.done) for event in page]
    assert log[-2:] == [("progressed", 4), ("failed" if how == "raises" else "completed", None)]


@pytest.mark.parametrize("in_loop", [True, False])
async def test_a_block_that_is_rolled_back_takes_no_progress_with_it(harness: PostgresHarness, in_loop: bool) -> None:
    """Its commit fails, and what was recorded in it is written with the finish of the attempt."""
    harness.rows("CREATE TABLE alone (value int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    twice = "INSERT INTO alone VALUES (1), (1)"

    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        async with attempt.complete() as tx:
            attempt.record_progress(4, 4)
            await tx.connection.execute(twice)
            return tx.finish(1)

    def in_a_thread(attempt: Attempt[int, int]) -> Outcome[int]:
        with attempt.complete() as tx:
            attempt.record_progress(4, 4)
            tx.connection.execute(twice)
            return tx.finish(1)

    harness.handles(number, handler if in_loop else in_a_thread, retry=RetryPolicy(max_attempts=1))
    async with harness.worker():
        chain = await harness.client.start_chain(number, 1)
        await chain.wait(WAIT)
    ended = await harness.job(chain.id)
    assert ended.status is JobStatus.FAILED
    assert ended.last_error is not None
    assert "UniqueViolation" in str(ended.last_error.type)
    assert ended.progress is not None
    assert ended.progress.done == 4


@pytest.mark.timeout(2 * START)
@pytest.mark.parametrize("handler", [counts_to_the_end, counts_in_a_block])
async def test_the_last_progress_of_a_process(
    harness: PostgresHarness, tmp_path: Path, handler: Callable[[Attempt[Any, Any]], Any]
) -> None:
    place = str(tmp_path / "here")
    harness.handles(anything, handler, executor="process")
    async with harness.worker():
        chain = await harness.client.start_chain(anything, place)
        await seen(harness.client, chain.id, 3, START)
        Path(place + ".go").touch()
        await chain.result(WAIT)
    last = (await harness.job(chain.id)).progress
    assert last is not None
    assert last.done == 4
    page = await harness.client.list_events(chain=chain, kinds=["progressed"], oldest_first=True)
    assert [event.progress.done for event in page if event.progress is not None] == [3, 4]


@pytest.mark.timeout(2 * START)
async def test_a_process_does_not_write_again_what_is_written(harness: PostgresHarness, tmp_path: Path) -> None:
    place = str(tmp_path / "here")
    harness.handles(anything, counts_and_completes, executor="process")
    async with harness.worker() as worker:
        chain = await harness.client.start_chain(anything, place)
        await seen(harness.client, chain.id, 3, START)
        assert worker._runtime is not None
        [held] = worker._runtime.leases._held
        await until(lambda: held.unlogged_progress is None, "the worker knows that it is written")
        Path(place + ".go").touch()
        await chain.result(WAIT)
    page = await harness.client.list_events(chain=chain, kinds=["progressed"])
    assert len(page) == 1


@pytest.mark.timeout(2 * START)
async def test_a_process_tells_it_too(harness: PostgresHarness, tmp_path: Path) -> None:
    place = str(tmp_path / "here")
    harness.handles(anything, counts, executor="process")
    async with harness.worker():
        chain = await harness.client.start_chain(anything, place)
        assert (await seen(harness.client, chain.id, 3, START)).message == "from a process"
        Path(place + ".go").touch()
        await chain.result(WAIT)


async def test_its_message_is_sealed_as_the_payloads_are(harness: PostgresHarness) -> None:
    types, gate = JobTypes(secret), Gate()
    processors = Processors(types)

    @processors.handles(secret)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        attempt.record_progress(1, 2, message=SECRET)
        await gate.pass_through(attempt)
        return attempt.input

    async with AsyncClient(harness.state, types) as client, InProcessWorker(client, processors):
        chain = await client.start_chain(secret, 1)
        assert (await seen(client, chain.id, 1)).message == SECRET
        stored = harness.one("select progress from queuert.job")
        assert SECRET not in stored
        # Without the key the numbers are all there is to be read.
        reported = await seen(harness.client, chain.id, 1)
        assert (reported.fraction, SECRET in str(reported)) == (0.5, False)
        gate.open()
        await chain.result(WAIT)


@pytest.mark.parametrize(
    ("reported", "match"),
    [
        ({"done": -1}, "done of progress must be .* got -1"),
        ({"done": math.nan}, "done of progress must be .* got nan"),
        ({"done": 10**400}, "done of progress must be .* got an integer of over 300 digits"),
        ({"done": 1, "total": 10**5_000}, "total of progress must be .* got an integer of over 300 digits"),
        ({"fraction": 10**400}, "fraction of progress must be .* got an integer"),
        ({"fraction": 1.01}, "fraction of progress must be .* got 1.01"),
        ({"done": 1, "total": math.inf}, "total of progress must be .* got inf"),
        ({"message": "x" * 1_001}, "at most 1,000 characters"),
        ({"message": "a\x00"}, "NUL"),
        ({"total": 3}, "at least one of done, fraction and message"),
    ],
)
async def test_what_makes_no_sense_is_refused(harness: PostgresHarness, reported: dict[str, Any], match: str) -> None:
    @harness.processors.handles(number)
    async def handler(attempt: Attempt[int, int]) -> Outcome[int]:
        with pytest.raises(ConfigurationError, match=match):
            attempt.record_progress(**reported)
        return attempt.input

    async with harness.worker():
        assert await (await harness.client.start_chain(number, 1)).result(WAIT) == 1
