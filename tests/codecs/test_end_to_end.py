"""Formats through clients and workers, on a database: wherever a payload goes, nobody finds it there."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import psycopg
import pytest

from queuert import (
    AsyncClient,
    Attempt,
    ChainStatus,
    Client,
    InProcessWorker,
    JobStatus,
    JobType,
    JobTypes,
    NewChain,
    Outcome,
    PostgresState,
    Processors,
    RetryPolicy,
)
from queuert.codecs import EncryptionCodec, EncryptionKey, PayloadFormat
from queuert.deduplication import Deduplicate
from queuert.errors import JobFailedError, PayloadDecodeError
from queuert.notify.in_process import InProcessNotify
from queuert.observability.events import AttemptCompleted, AttemptRetried, ChainStarted
from queuert.schedules import RecurringSchedule
from queuert.testing import AsyncJobQueue
from queuert.testing.events import EventLog
from queuert.worker.after_attempt import EndedAttempt
from tests.codecs import secret
from tests.codecs.secret import NEW_KEY, OLD_KEY, WORD, Patient, examine, gather, heal, job_types, whisper

WAIT = 20.0
AT_ONCE = RetryPolicy(initial_delay=0.0, jitter=0.0, max_attempts=3)
SCAN = bytes(range(256)) * 3


class Database:
    """What anybody who reads the database sees."""

    def __init__(self, dsn: str) -> None:
        self._sql = psycopg.connect(dsn, autocommit=True)

    def close(self) -> None:
        self._sql.close()

    def rows(self, query: Any, *values: Any) -> list[tuple[Any, ...]]:
        cursor = self._sql.execute(query, values or None)
        return cursor.fetchall() if cursor.description else []

    def text(self) -> str:
        """All of it, and what is behind its base64."""
        tables = [name for (name,) in self.rows("select tablename from pg_tables where schemaname = 'queuert'")]
        text = "\n".join(row for name in tables for (row,) in self.rows(f"select t::text from queuert.{name} t"))
        payloads = [base64.b64decode(found) for found in re.findall(r'queuert.payload[\\"]*: ?[\\"]*([\w+/=]+)', text)]
        assert len(payloads) == text.count("queuert.payload")
        return "\n".join([text, *(data.decode("latin-1") for data in payloads)])

    def steps(self, column: str = "input") -> list[Any]:
        """The steps of each job's payload, the first job first."""
        return [
            row[0] for row in self.rows(f"select {column}->'queuert.codec' from queuert.job order by created_at, id")
        ]


@pytest.fixture
def database(dsn: str) -> Iterator[Database]:
    database = Database(dsn)
    yield database
    database.close()


@pytest.fixture
def log() -> EventLog:
    return EventLog()


@pytest.fixture
async def client(dsn: str, log: EventLog) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(PostgresState(dsn), job_types, notify=InProcessNotify(), observability=log) as client:
        yield client


def processors_of(types: JobTypes = job_types) -> Processors:
    return Processors(types, retry=AT_ONCE)


PATIENT = Patient(name=WORD, scan=SCAN)


async def test_a_chain_of_jobs_with_bytes(dsn: str, client: AsyncClient, database: Database) -> None:
    """Inputs, a continuation, an output that is kept, the result, lists: all readable with the key, none without."""
    processors = processors_of()

    @processors.handles(examine)
    async def examining(attempt: Attempt[Patient, str | Patient]) -> Outcome[str | Patient]:
        assert attempt.input == PATIENT
        return attempt.continue_with(heal, attempt.input, output=f"seen: {WORD}")

    @processors.handles(heal)
    async def healing(attempt: Attempt[Patient, Patient]) -> Outcome[Patient]:
        return attempt.input.model_copy(update={"scan": b"\x00\xff"})

    chain = await client.start_chain(examine, PATIENT, limit_key="k", deduplication=Deduplicate("d"))
    async with InProcessWorker(client, processors):
        healed = await chain.result(WAIT)
    assert healed == Patient(name=WORD, scan=b"\x00\xff")
    assert (await chain.refresh()).input == PATIENT

    [first, second] = await client.list_chain_jobs(chain)
    assert first.input["scan"] == second.input["scan"] == SCAN
    assert (first.output, second.output["scan"]) == (f"seen: {WORD}", b"\x00\xff")
    assert first == await client.get_job(first.id)
    assert {job.id: job for job in await client.list_jobs()} == {first.id: first, second.id: second}
    assert [job.output for job in await client.list_chain_jobs(chain, limit=1)] == [f"seen: {WORD}"]

    assert WORD not in database.text()
    assert database.steps() == database.steps("output") == [["msgpack", "aes-gcm:2030-02"]] * 2
    async with AsyncClient(PostgresState(dsn), JobTypes()) as stranger:
        shown = await stranger.get_job(first.id)
    assert shown.input["queuert.codec"] == ["msgpack", "aes-gcm:2030-02"]


async def test_blockers_and_completion_from_outside(client: AsyncClient, database: Database) -> None:
    processors = processors_of()

    @processors.handles(whisper)
    async def whispering(attempt: Attempt[str, str]) -> Outcome[str]:
        return attempt.input.lower()

    @processors.handles(gather)
    async def gathering(attempt: Attempt[str, list[str]]) -> Outcome[list[str]]:
        if len(attempt.blockers) < 2:
            return attempt.wait_for(NewChain(whisper, f"{WORD}-2"))
        return attempt.outputs_of(whisper)

    by_hand = await client.start_chain(whisper, WORD, id="by hand")
    await client.complete_chain(by_hand, f"{WORD}-1")
    both = await client.start_chain(gather, WORD, blockers=[by_hand])
    assert WORD not in database.text()
    async with InProcessWorker(client, processors):
        assert await both.result(WAIT) == [f"{WORD}-1", f"{WORD}-2".lower()]
        [one, other] = await client.get_blockers(both.id)
    assert (one.output, other.output) == (f"{WORD}-1", f"{WORD}-2".lower())
    assert WORD.lower() not in database.text().lower()


async def test_recurring_schedules(client: AsyncClient, log: EventLog, database: Database) -> None:
    processors = processors_of()

    @processors.handles(whisper)
    async def whispering(attempt: Attempt[str, str]) -> Outcome[str]:
        return attempt.input.lower()

    await client.put_schedules([RecurringSchedule("often", whisper, WORD, every=1)])
    async with InProcessWorker(client, processors):
        ticked = await log.wait_for(ChainStarted)
        chain = await client.get_chain(ticked.chain_id, whisper)
        assert await chain.result(WAIT) == WORD.lower()
    assert WORD.lower() not in database.text().lower()


async def test_continuing_from_outside(client: AsyncClient, database: Database) -> None:
    chain = await client.start_chain(examine, PATIENT)
    await client.continue_chain(chain, heal, PATIENT)
    await client.complete_chain(chain, PATIENT, expecting=heal)
    assert await chain.result(WAIT) == PATIENT
    assert WORD not in database.text()


async def test_handlers_in_processes_and_batches(client: AsyncClient, database: Database) -> None:
    processors = processors_of()
    processors.handles(examine, executor="process")(secret.examine_in_a_process)
    processors.handles(heal, executor="process")(secret.heal_in_a_process)
    processors.handles(gather, executor="process")(secret.gather_in_a_process)

    @processors.handles_batch(whisper, size=10)
    async def whispering(attempts: Sequence[Attempt[str, str]]) -> list[Outcome[str]]:
        return [attempt.input[:1] + WORD for attempt in attempts]

    chain, gathered = await client.start_chain(examine, PATIENT), await client.start_chain(gather, "ab")
    async with InProcessWorker(client, processors, concurrency=4):
        assert await chain.result(WAIT) == Patient(name=WORD, scan=SCAN * 2)
        assert await gathered.result(WAIT) == [f"a{WORD}"] * 2
    assert (await client.get_job(chain.id)).output == f"found {WORD}"
    assert WORD not in database.text()


async def test_request_and_response_with_a_last_look(client: AsyncClient, database: Database) -> None:
    def shout(ended: EndedAttempt) -> None:
        ended.output = ended.output.upper()

    processors = processors_of()

    @processors.handles(whisper, after_attempt=shout)
    async def whispering(attempt: Attempt[str, str]) -> Outcome[str]:
        async with attempt.complete() as tx:
            return tx.finish(attempt.input)

    async with InProcessWorker(client, processors):
        for _ in range(2):
            assert await client.start_and_wait(whisper, WORD, id="request", timeout=WAIT) == WORD.upper()
    assert WORD.lower() not in database.text().lower()


def test_synchronous_clients(dsn: str) -> None:
    with Client(PostgresState(dsn), job_types, notify=InProcessNotify()) as client:
        chain = client.start_chain(heal, PATIENT)
        client.complete_chain(chain, Patient(name="b", scan=b"\xff"))
        assert chain.result(WAIT) == Patient(name="b", scan=b"\xff")
        assert client.get_job(chain.id).input["scan"] == SCAN
        assert [job.output["scan"] for job in client.list_jobs()] == [b"\xff"]


async def test_the_queue_of_tests(dsn: str) -> None:
    processors = processors_of()

    @processors.handles(heal)
    async def healing(attempt: Attempt[Patient, Patient]) -> Outcome[Patient]:
        return attempt.input

    async with AsyncJobQueue(PostgresState(dsn), job_types) as queue:
        await queue.client.start_chain(heal, PATIENT)
        [found] = await queue.assert_started(heal, name=WORD, where=lambda patient: patient.scan == SCAN)
        assert found.input["scan"] == SCAN
        assert [job.input["name"] for job in await queue.jobs()] == [WORD]
        await queue.assert_not_started(heal, name="somebody else")
        with pytest.raises(AssertionError, match=WORD):
            await queue.assert_started(heal, name="somebody else")
        [ran] = await queue.run_until_idle(processors)
        assert ran.outcome == "completed"


# --- one key, or format, after another --------------------------------------------------------------------------------


def letters(*keys: EncryptionKey, **more: Any) -> tuple[JobType[str, str], JobTypes]:
    """The job type of a program that has these keys; without any, of one that knows nothing of encryption."""
    format = PayloadFormat(codecs=[EncryptionCodec(keys)], **more) if keys else None
    letter = JobType("letter", input=str, output=str, format=format)
    return letter, JobTypes(letter)


class Program:
    """A client of one version of a program, and what its worker would run."""

    def __init__(self, dsn: str, *keys: EncryptionKey, **more: Any) -> None:
        self.letter, types = letters(*keys, **more)
        self.log = EventLog()
        self.client = AsyncClient(PostgresState(dsn), types, notify=InProcessNotify(), observability=self.log)
        self.processors = Processors(types, retry=AT_ONCE)
        self.processors.handles(self.letter)(self._answer)

    async def _answer(self, attempt: Attempt[str, str]) -> Outcome[str]:
        return f"re: {attempt.input}"

    async def start(self, input: str) -> str:
        return (await self.client.start_chain(self.letter, input)).id

    async def result(self, id: str) -> str:
        return await (await self.client.get_chain(id, self.letter)).result(WAIT)

    def worker(self) -> InProcessWorker:
        return InProcessWorker(self.client, self.processors)


@pytest.fixture
async def programs(dsn: str) -> AsyncIterator[Any]:
    made: list[Program] = []

    def program(*keys: EncryptionKey, **more: Any) -> Program:
        made.append(Program(dsn, *keys, **more))
        return made[-1]

    yield program
    for one in made:
        await one.client.aclose()


async def test_a_key_follows_another_while_jobs_are_in_flight(programs: Any, database: Database) -> None:
    """Old key; both, old first; both, new first; and plain rows of the time before encryption."""
    fleet = [programs(), programs(OLD_KEY), programs(OLD_KEY, NEW_KEY), programs(NEW_KEY, OLD_KEY)]
    ids = [await one.start(f"{WORD}-{number}") for number, one in enumerate(fleet)]
    assert database.steps() == [None, *[["json", f"aes-gcm:{id}"] for id in ("2030-01", "2030-01", "2030-02")]]
    last = fleet[-1]
    async with last.worker():
        assert [await last.result(id) for id in ids] == [f"re: {WORD}-{number}" for number in range(4)]
    assert database.steps("output") == [["json", "aes-gcm:2030-02"]] * 4
    assert await fleet[2].result(ids[0]) == f"re: {WORD}-0"


async def test_a_worker_without_the_key_fails_attempts_and_lives(programs: Any, database: Database) -> None:
    producer, worker = programs(NEW_KEY), programs(OLD_KEY)
    id, good = await producer.start(WORD), await worker.start("readable")
    async with worker.worker() as running:
        assert await worker.result(good) == "re: readable"
        with pytest.raises(JobFailedError):
            await worker.result(id)
        ended = [event for event in worker.log.of(AttemptRetried) if event.job_id == id]
        assert len(ended) == 2
        assert await worker.result(await worker.start("still")) == "re: still"
        assert running is not None
    job = await producer.client.get_job(id)
    assert (job.status, job.attempt, job.input) == (JobStatus.FAILED, 3, WORD)
    error = job.last_error
    assert error is not None
    assert (error.kind, error.type) == ("decode", "queuert.errors.PayloadDecodeError")
    assert "input of job type 'letter'" in error.message
    assert (
        "aes-gcm:2030-02: the data is encrypted with a key that this program does not have; it has 2030-01"
        in error.message
    )
    assert WORD not in database.text()

    await producer.client.retry_chain(id)  # It was the worker's fault, not the job's.
    async with producer.worker():
        assert await producer.result(id) == f"re: {WORD}"


@pytest.mark.parametrize("keys", [(), (OLD_KEY,)], ids=["knows no encryption", "has another key"])
async def test_a_client_without_the_key(programs: Any, keys: tuple[EncryptionKey, ...]) -> None:
    writer, reader = programs(NEW_KEY), programs(*keys)
    id = await writer.start(WORD)
    await writer.client.complete_chain(id, WORD)
    chain = await reader.client.get_chain(id)
    assert chain.status is ChainStatus.COMPLETED
    with pytest.raises(PayloadDecodeError, match="aes-gcm:2030-02"):
        await chain.result(WAIT)
    with pytest.raises(PayloadDecodeError, match="aes-gcm:2030-02"):
        print(chain.input)
    job = await reader.client.get_job(id)
    assert job.input["queuert.codec"] == ["json", "aes-gcm:2030-02"]


async def test_a_payload_that_was_changed_or_put_elsewhere(programs: Any, database: Database) -> None:
    program = programs(NEW_KEY, also_reads=())
    kept, forged, swapped = [await program.start(f"{WORD}-{number}") for number in range(3)]
    database.rows("update queuert.job set input = '\"pay me\"' where id = %s", forged)
    database.rows("update queuert.job set input = %s::jsonb where id = %s", program.letter.encode_output("x"), swapped)
    async with program.worker():
        assert await program.result(kept) == f"re: {WORD}-0"
        for id, message in ((forged, "plain JSON"), (swapped, "for another job type or field")):
            with pytest.raises(JobFailedError, match=message):
                await program.result(id)


async def test_an_output_that_does_not_fit_is_not_reported(programs: Any, database: Database) -> None:
    program = programs(NEW_KEY)
    program.processors = Processors(program.client.job_types, retry=AT_ONCE)

    @program.processors.handles(program.letter)  # type: ignore[untyped-decorator]
    async def wrong(attempt: Attempt[str, str]) -> Any:
        return [attempt.input]

    id = await program.start(WORD)
    async with program.worker():
        with pytest.raises(JobFailedError, match="Input should be a valid string"):
            await program.result(id)
    assert WORD not in database.text()


async def test_deduplication_does_not_see_the_ciphertext(programs: Any) -> None:
    """The same payload is stored in two ways, and two keys of deduplication are what they are."""
    program = programs(NEW_KEY)
    client, letter = program.client, program.letter
    first = await client.start_chain(letter, WORD, deduplication=Deduplicate("a"))
    second = await client.start_chain(letter, WORD, deduplication=Deduplicate("a"))
    assert (second.id, second.deduplicated) == (first.id, True)
    third = await client.start_chain(letter, WORD, deduplication=Deduplicate("b"))
    attached = await client.start_chain(letter, WORD, id=third.id, attach=True)
    assert (third.deduplicated, attached.deduplicated) == (False, True)


async def test_a_schedule_that_is_put_again_keeps_its_ticks(programs: Any) -> None:
    program = programs(NEW_KEY)
    found = []
    for _ in range(2):
        await program.client.put_schedules([RecurringSchedule("far", program.letter, WORD, every=86_400.0 * 300)])
        found += await program.client.list_schedules()
    assert found[0].next_at == found[1].next_at
    assert [json.loads(one.input)["queuert.codec"] for one in found] == [["json", "aes-gcm:2030-02"]] * 2


async def test_many_at_once(programs: Any, database: Database) -> None:
    """Starts and finishes that share a statement."""
    program = programs(NEW_KEY)
    chains = await program.client.start_chains([NewChain(program.letter, f"{WORD}-{n}") for n in range(50)])
    async with InProcessWorker(program.client, program.processors, concurrency=10):
        await program.client.wait(chains, timeout=WAIT)
        assert [await program.result(chain.id) for chain in chains] == [f"re: {WORD}-{n}" for n in range(50)]
    assert len(program.log.of(AttemptCompleted)) == 50
    assert WORD not in database.text()
