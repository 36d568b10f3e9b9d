"""A request for each row of a DataFrame, and the responses as another."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from pydantic import BaseModel

from queuert import (
    Attempt,
    Client,
    JobType,
    JobTypes,
    Outcome,
    PostgresState,
    Processors,
    QueuertError,
    RetryPolicy,
    after,
)
from queuert.errors import (
    ChainNotFoundError,
    InvalidIdentifierError,
    NotFoundError,
    PayloadError,
    UnknownJobTypeError,
    WaitTimeoutError,
)
from queuert.spark.driver.driver import request, start_rows
from queuert.spark.driver.output_schema import spark_type
from queuert.spark.driver.result_frames import results
from queuert.spark.driver.waiting import ProgressLine, WaitProgress, chains_of_write, wait_all, wait_write
from queuert.spark.errors import SparkColumnError, WriteTimeoutError
from tests.spark.scope_support import WAIT
from tests.support.harness import PostgresHarness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


class Word(BaseModel):
    """A request."""

    text: str
    times: int = 1
    at: datetime | None = None


class Spelled(BaseModel):
    """A response."""

    letters: list[str]
    length: int
    at: datetime | None = None


spell = JobType("spell", input=Word, output=Spelled)
double = JobType("double", input=int, output=int)
JOB_TYPES = JobTypes(spell, double)


def _processors() -> Processors:
    processors = Processors(JOB_TYPES, retry=RetryPolicy(max_attempts=1))

    @processors.handles(spell)
    async def run(attempt: Attempt[Word, Spelled]) -> Outcome[Spelled]:
        word = attempt.input
        if word.text == "refuse":
            return attempt.fail("no such word")
        if word.text == "cancel":
            return attempt.cancel("not wanted")
        return Spelled(letters=list(word.text * word.times), length=len(word.text) * word.times, at=word.at)

    @processors.handles(double)
    async def run_double(attempt: Attempt[int, int]) -> Outcome[int]:
        return attempt.input * 2

    return processors


@pytest.fixture
def client(dsn: str) -> Iterator[Client]:
    """What a driver has."""
    with Client(PostgresState(dsn), JOB_TYPES) as client:
        yield client


@pytest.fixture
async def worker(dsn: str) -> AsyncIterator[None]:
    """A worker that spells."""
    harness = PostgresHarness(dsn)
    harness.client.job_types = JOB_TYPES
    try:
        async with harness.worker(_processors(), concurrency=4):
            yield
    finally:
        await harness.close()


async def test_a_whole_dataframe_is_requested_and_answered(worker: None, client: Client, spark: SparkSession) -> None:
    words = spark.createDataFrame(
        [("a", "cat", 2), ("b", "refuse", 1), ("c", "cancel", 1)], "id string, text string, times int"
    )
    seen: list[WaitProgress] = []

    def ask() -> list[Any]:
        answers = request(words, spell, client=client, output=Spelled, timeout=WAIT, on_progress=seen.append)
        assert answers.columns == ["chain_id", "type", "status", "input", "output", "error"]
        return answers.orderBy("chain_id").collect()

    cat, refused, cancelled = await asyncio.to_thread(ask)
    assert (cat.chain_id, cat.status, cat.error) == ("a", "completed", None)
    assert (cat.output.letters, cat.output.length) == (list("catcat"), 6)
    assert (refused.status, refused.output, refused.error) == ("failed", None, "no such word")
    assert (cancelled.status, cancelled.output, cancelled.error) == ("cancelled", None, "not wanted")
    assert '"refuse"' in refused.input
    assert [one.open for one in seen] == sorted((one.open for one in seen), reverse=True)
    assert (seen[0].open, seen[-1].open) == (3, 0)
    last = seen[-1]
    assert (last.completed, last.failed, last.cancelled, last.closed) == (1, 1, 1, 3)


async def test_requests_of_one_value_and_outputs_as_text(worker: None, client: Client, spark: SparkSession) -> None:
    numbers = spark.range(2500).selectExpr("id as input")

    def ask() -> tuple[list[Any], list[Any]]:
        answers = request(numbers, double, client=client, timeout=WAIT)
        parsed = request(numbers.limit(3), double, client=client, timeout=WAIT, output=int)
        return answers.collect(), parsed.collect()

    answers, parsed = await asyncio.to_thread(ask)
    assert [(row.input, row.output) for row in answers] == [(str(one), str(2 * one)) for one in range(2500)]
    assert [row.output for row in parsed] == [0, 2, 4]


async def test_times_keep_their_moment(worker: None, client: Client, spark: SparkSession) -> None:
    frame = spark.sql("select 'x' as text, timestamp'2026-03-01 12:00:00Z' as at")

    def ask() -> list[Any]:
        answers = request(frame, spell, client=client, timeout=WAIT, output=Spelled)
        return answers.selectExpr("input", "cast(output.at as long) as at").collect()

    (row,) = await asyncio.to_thread(ask)
    assert row.at == datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()
    assert "2026-03-01T12:00:00Z" in row.input


# --- without a worker -------------------------------------------------------------------------------------------------


def test_settings_of_the_job_come_from_their_columns(client: Client, spark: SparkSession) -> None:
    client.start_chain(double, 0, id="first")
    frame = spark.sql(
        "select 'second' as id, 7 as priority, timestamp'2999-01-01 00:00:00Z' as schedule_at,"
        " 'k' as deduplication_key, 'l' as limit_key, array('first') as blocked_by, named_struct('text', 'x') as input"
    )
    (chain,) = start_rows(frame, spell, client=client)
    job = client.get_job(chain.id)
    assert (job.id, job.priority, job.deduplication_key, job.limit_key) == ("second", 7, "k", "l")
    assert (job.open_blockers, job.scheduled_at.year) == (1, 2999)
    (again,) = start_rows(frame.drop("id"), spell, client=client)
    assert (again.id, again.deduplicated) == ("second", True)


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("select 'x' as text, 1 as mode", SparkColumnError),
        ("select 'x' as text, 'many' as times", PayloadError),
        ("select stack(2, 'a', 'cat', 'a', 'dog') as (id, text)", InvalidIdentifierError),
        ("select '{\"text\": 1}' as input", PayloadError),
    ],
)
def test_nothing_is_started_where_a_row_is_no_request(
    client: Client, spark: SparkSession, sql: str, error: type[QueuertError]
) -> None:
    with pytest.raises(error):
        start_rows(spark.sql(sql), spell, client=client)
    assert list(client.list_chains()) == []


def test_a_type_that_the_client_does_not_know_is_refused(client: Client, spark: SparkSession) -> None:
    with pytest.raises(UnknownJobTypeError):
        request(spark.range(1).selectExpr("id as input"), JobType("other", input=int, output=int), client=client)


def test_a_timeout_says_how_many_are_open(client: Client, spark: SparkSession) -> None:
    chains = start_rows(spark.range(3).selectExpr("id as input"), double, client=client)
    client.complete_chain(chains[1], output=1)
    seen: list[WaitProgress] = []
    with pytest.raises(WaitTimeoutError, match="2 chain") as raised:
        wait_all(client, chains, timeout=0.05, on_progress=seen.append)
    assert set(raised.value.open_ids) == {chains[0].id, chains[2].id}
    assert (seen[-1].open, seen[-1].completed) == (2, 1)
    rows = results(spark, client, chains, output=int).collect()
    assert [(row.status, row.output) for row in rows] == [("open", None), ("completed", 1), ("open", None)]


def test_results_of_none_and_of_chains_that_are_gone(client: Client, spark: SparkSession) -> None:
    assert results(spark, client, []).collect() == []
    assert wait_all(client, []).total == 0
    with pytest.raises(ChainNotFoundError, match="nobody"):
        results(spark, client, ["nobody"])


def test_a_wait_hears_of_closings_while_it_waits(client: Client, spark: SparkSession) -> None:
    chains = start_rows(spark.range(2).selectExpr("id as input"), double, client=client)
    reported = threading.Event()
    seen: list[WaitProgress] = []

    def hear(progress: WaitProgress) -> None:
        seen.append(progress)
        reported.set()

    waiting = threading.Thread(target=wait_all, args=(client, chains), kwargs={"timeout": WAIT, "on_progress": hear})
    waiting.start()
    for chain in chains:
        assert reported.wait(WAIT)
        reported.clear()
        client.complete_chain(chain, output=1)
    waiting.join(WAIT)
    assert [one.open for one in seen] == [2, 1, 0]


async def test_a_write_is_waited_for_by_its_id(worker: None, dsn: str, client: Client, spark: SparkSession) -> None:
    """As many chains as it started, and no others; the last one fails."""
    write_by_hand(dsn, "w", 40, refuse="39")
    client.start_chain(double, 1, run_at=after(days=1))
    seen: list[WaitProgress] = []
    done = await asyncio.to_thread(wait_write, client, "w", timeout=WAIT, on_progress=seen.append)
    assert (done.total, done.open, done.completed, done.failed) == (40, 0, 39, 1)
    assert seen[-1] == done
    assert [one.open for one in seen] == sorted((one.open for one in seen), reverse=True)
    frame = await asyncio.to_thread(results, spark, client, chains_of_write(client, "w"))
    assert frame.where("status = 'completed'").count() == 39


def test_a_write_that_takes_too_long_is_reported(dsn: str, client: Client) -> None:
    write_by_hand(dsn, "w", 3)
    with pytest.raises(
        WriteTimeoutError, match=r"3 chain\(s\) of write 'w' are still open after 0.3 seconds"
    ) as raised:
        wait_write(client, "w", timeout=0.3)
    assert (raised.value.open, raised.value.write_id) == (3, "w")
    with pytest.raises(NotFoundError, match="nothing"):
        wait_write(client, "nothing")


def write_by_hand(dsn: str, write_id: str, count: int, refuse: str = "") -> None:
    """What the data source leaves behind: chains that bear the id of their write."""
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "insert into queuert.job (id, chain_id, chain_type, chain_status, type, input, write_id)"
            " select n, n, 'spell', 'open', 'spell',"
            " jsonb_build_object('text', case n when %s then 'refuse' else 'cat' end), %s"
            " from (select n::text from generate_series(0, %s - 1) as n) as numbers",
            (refuse, write_id, count),
        )


def test_progress_is_a_line() -> None:
    stream = io.StringIO()
    line = ProgressLine(stream, every=3600)
    for one in (WaitProgress(2000, 2000, 0, 0, 0, 0.0), WaitProgress(2000, 1000, 999, 1, 0, 1.2)):
        line(one)
    line(WaitProgress(2000, 0, 1998, 1, 1, 3.0))
    assert stream.getvalue() == (
        "0 of 2,000 chains closed, 0 s\n2,000 of 2,000 chains closed, 1 failed, 1 cancelled, 3 s\n"
    )


# --- the types of outputs ---------------------------------------------------------------------------------------------


class Leaf(BaseModel):
    """A part."""

    name: str | None
    weight: float


class Tree(BaseModel):
    """Of all kinds of fields, and within itself."""

    leaves: list[Leaf]
    counts: dict[str, int]
    born: date
    seen: datetime
    green: bool = True
    price: Decimal = Decimal(1)
    either: int | str = 1
    whatever: Any = None
    children: list[Tree] = []


def test_the_spark_type_of_a_model() -> None:
    assert spark_type(Tree).simpleString() == (
        "struct<leaves:array<struct<name:string,weight:double>>,counts:map<string,bigint>,born:date,seen:timestamp,"
        "green:boolean,price:string,either:string,whatever:string,children:array<string>>"
    )
    assert spark_type(list[int]).simpleString() == "array<bigint>"
    assert spark_type(int | None).simpleString() == "bigint"


# --- a client in a closure --------------------------------------------------------------------------------------------


def test_a_client_in_a_function_for_executors_is_refused_with_advice(client: Client, spark: SparkSession) -> None:
    def start(number: int) -> str:
        return client.start_chain(double, number).id

    with pytest.raises(Exception, match=r"NotPicklableError: .*from_url"):
        spark.sparkContext.parallelize(range(2)).map(start).collect()
