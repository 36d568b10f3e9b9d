"""A word that is a secret, in payloads, passwords and exceptions: where it may be found, and where not."""

from __future__ import annotations

import io
import json
import logging
import re
from typing import Any

import psycopg
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from pydantic import BaseModel, SecretStr

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Outcome, PostgresState
from queuert.cli.logs import JsonFormatter, LineFormatter
from queuert.codecs import EncryptionCodec, EncryptionKey, PayloadFormat
from queuert.deduplication import Deduplicate
from queuert.errors import JobFailedError, PayloadDecodeError, PayloadError, StateUnavailableError
from queuert.observability.log import LogObservability
from queuert.observability.otel import OTelObservability
from queuert.policies import RetryPolicy
from queuert.testing.events import EventLog
from queuert.worker import Processors
from tests.support.addresses import as_user

WORD = "Rumpelstilzchen"
WAIT = 20.0


class Login(BaseModel):
    user: str
    word: str


login = JobType("login", input=Login, output=Login)
follow = JobType("follow", input=Login, output=str)
first = JobType("first", input=Login, continues_with=follow)
TYPES = JobTypes(login, follow, first)


class Observed:
    """All that observers are told, as text: events, logs in both formats, metrics with their labels."""

    def __init__(self) -> None:
        self.events = EventLog()
        self._text = io.StringIO()
        self._logger = logging.getLogger(f"queuert.canary.{id(self)}")
        self._logger.setLevel(logging.DEBUG)
        self._logger.propagate = False
        for formatter in (JsonFormatter(), LineFormatter("%(message)s")):
            handler = logging.StreamHandler(self._text)
            handler.setFormatter(formatter)
            self._logger.addHandler(handler)
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider([self._reader])

    def adapters(self) -> list[Any]:
        """What to give to a client."""
        return [self.events, LogObservability(self._logger), OTelObservability(self._provider)]

    def text(self) -> str:
        """All of it."""
        metrics = self._reader.get_metrics_data()
        assert metrics is not None
        return "\n".join([*map(repr, self.events.events), self._text.getvalue(), metrics.to_json()])


def processors_of(types: JobTypes) -> Processors:
    """Handlers that return, continue with and choke on what they were given."""
    found = Processors(types, retry=RetryPolicy(initial_delay=0.0, jitter=0.0, max_attempts=2))
    named = {job_type.name: job_type for job_type in types}

    async def handler(attempt: Attempt[Any, Any]) -> Outcome[Any]:
        if attempt.input.user == "wrong output":
            return [attempt.input]
        if attempt.type == "first":
            return attempt.continue_with(named["follow"], attempt.input)
        return attempt.input.word if attempt.type == "follow" else attempt.input

    for job_type in types:
        found.handles(job_type)(handler)
    return found


async def test_payloads_are_in_no_log_event_metric_or_notification(dsn: str) -> None:
    observed, misfit = Observed(), Login.model_construct(user=["a"], word=WORD)
    client = AsyncClient(PostgresState(dsn), TYPES, observability=observed.adapters())
    with psycopg.connect(dsn, autocommit=True) as listening:
        for topic in ("jobs", "chains", "leases"):
            listening.execute(f'LISTEN "queuert_{topic}"'.encode())
        async with client, InProcessWorker(client, processors_of(TYPES)):
            secret = Login(user="a", word=WORD)
            chains = [await client.start_chain(kind, secret) for kind in (login, first, follow)]
            chains.append(await client.start_chain(login, secret, deduplication=Deduplicate("once")))
            assert [await chain.result(WAIT) for chain in chains] == [secret, WORD, WORD, secret]
            wrong = await client.start_chain(login, Login(user="wrong output", word=WORD))
            with pytest.raises(JobFailedError):
                await wrong.result(WAIT)
            with pytest.raises(PayloadError) as caught:
                await client.start_chain(login, misfit)
            await client.cancel_chain(await client.start_chain(login, secret, run_at=None))
        heard = [one.payload for one in listening.notifies(timeout=0)]
    assert heard
    assert WORD not in "\n".join(heard)
    assert WORD not in str(caught.value)
    assert WORD not in observed.text()
    assert "login" in observed.text()


async def test_rows_that_do_not_fit_are_reported_of_without_what_stands_there(dsn: str) -> None:
    observed = Observed()
    client = AsyncClient(PostgresState(dsn), TYPES, observability=observed.adapters())
    async with client:
        chain = await client.start_chain(login, Login(user="a", word="b"))
        with psycopg.connect(dsn) as connection:
            connection.execute(
                "update queuert.job set input = %s", [json.dumps({"user": [WORD], "word": {WORD: WORD}})]
            )
        async with InProcessWorker(client, processors_of(TYPES)):
            with pytest.raises(JobFailedError) as failed:
                await chain.result(WAIT)
        with pytest.raises(PayloadDecodeError) as caught:
            print((await client.get_chain(chain.id, login)).input)
    assert WORD not in str(failed.value) + str(caught.value) + observed.text()


async def test_encrypted_payloads_are_nowhere_but_in_the_handlers_hands(dsn: str) -> None:
    """Not in the database either; and what an exception says is, since it is the handler's own."""
    sealed = PayloadFormat(codecs=[EncryptionCodec([EncryptionKey.generate("2030-01")])], also_reads=())
    hidden = JobType("login", input=Login, output=Login, format=sealed)
    observed = Observed()
    processors = processors_of(JobTypes(hidden))
    client = AsyncClient(PostgresState(dsn), JobTypes(hidden), observability=observed.adapters())
    async with client, InProcessWorker(client, processors):
        chain = await client.start_chain(hidden, Login(user="a", word=WORD))
        assert (await chain.result(WAIT)).word == WORD
        wrong = await client.start_chain(hidden, Login(user="wrong output", word=WORD))
        with pytest.raises(JobFailedError):
            await wrong.result(WAIT)
    assert WORD not in observed.text()
    assert WORD not in dump(dsn)


def dump(dsn: str) -> str:
    """Every row of every table."""
    with psycopg.connect(dsn) as connection:
        tables = connection.execute("select tablename from pg_tables where schemaname = 'queuert'").fetchall()
        rows = [connection.execute(f"select t::text from queuert.{name} t".encode()).fetchall() for (name,) in tables]
    assert len(rows) > 10
    return "\n".join(row for table in rows for (row,) in table)


async def test_a_ciphertext_in_another_place_is_not_read(dsn: str) -> None:
    """That of another job type, or of an output; every step of what was bound counts."""
    key = EncryptionKey.generate("2030-01")
    sealed = PayloadFormat(codecs=[EncryptionCodec([key])], also_reads=())
    one = JobType("one", input=str, output=str, format=sealed)
    two = JobType("two", input=str, output=str, format=sealed)
    async with AsyncClient(PostgresState(dsn), JobTypes(one, two)) as client:
        first, second = await client.start_chain(one, WORD), await client.start_chain(two, "other")
        with psycopg.connect(dsn) as connection:
            connection.execute(
                "update queuert.job as mine set input = other.input from queuert.job as other where mine.id <> other.id"
            )
        for chain, kind in ((first, one), (second, two)):
            with pytest.raises(PayloadDecodeError, match="for another job type or field"):
                print((await client.get_chain(chain.id, kind)).input)


@pytest.mark.parametrize("form", ["url", "libpq"])
async def test_the_password_of_an_address_is_in_no_event_and_no_error(dsn: str, form: str) -> None:
    address = as_user(dsn, "nobody_of_this_name", WORD)
    if form == "libpq":
        [(user, host, port, name)] = re.findall(r"//(\w+):\w+@([\d.]+):(\d+)/(\w+)", address)
        address = f"user={user} password={WORD} host={host} port={port} dbname={name}"
    observed = Observed()
    state = PostgresState(address, connect_timeout=2.0)
    client = AsyncClient(state, TYPES, observability=observed.adapters())
    with pytest.raises(StateUnavailableError) as caught:
        async with client:
            pass
    reported = [repr(caught.value), repr(caught.value.__cause__), repr(client), repr(state)]
    assert WORD not in "\n".join(reported) + repr([vars(one) for one in observed.events.events])


async def test_what_models_hide_is_refused_and_stays_hidden(dsn: str) -> None:
    """Pydantic's own secrets would be stored as the stars that they show themselves as, and be lost."""

    class Hidden(BaseModel):
        word: SecretStr

    kind = JobType("hidden", input=Hidden, output=None)
    async with AsyncClient(PostgresState(dsn), JobTypes(kind)) as client:
        with pytest.raises(PayloadError, match=r"input\.word: would change on the way") as caught:
            await client.start_chain(kind, Hidden(word=SecretStr(WORD)))
        assert WORD not in repr(caught.value)
    assert WORD not in dump(dsn)
