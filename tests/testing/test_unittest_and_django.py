"""The queue of users' tests in unittest and Django, as the guide has it."""

from __future__ import annotations

import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.db.backends.sqlite3.base import DatabaseWrapper as SqliteWrapper
from django.test import TestCase, TransactionTestCase
from psycopg.conninfo import conninfo_to_dict

from queuert import Attempt, Client, JobType, JobTypes, Limits, Outcome, PostgresState, Processors, Rate, after
from queuert.errors import ConfigurationError
from queuert.integrations.django import database_dsn
from queuert.schedules import RecurringSchedule
from queuert.state.sqlite import SQLiteState
from queuert.testing import AsyncJobQueue, JobQueue
from tests.client.callers import django_database

greet = JobType("greet", input=str, output=str)
JOB_TYPES = JobTypes(greet)
processors = Processors(JOB_TYPES)


@processors.handles(greet, limits=Limits(rate=Rate(1, per=86_400)))
def greet_user(attempt: Attempt[str, str]) -> Outcome[str]:
    return f"hello {attempt.input}"


class Plain(unittest.TestCase):
    def setUp(self) -> None:
        self.queue = self.enterContext(JobQueue(SQLiteState(), JOB_TYPES))

    def test_greeting(self) -> None:
        chain = self.queue.client.start_chain(greet, "ada", run_at=after(hours=1))
        self.queue.advance(hours=1)
        self.queue.run_until_idle(processors)
        assert chain.result(timeout=0) == "hello ada"


class Asynchronous(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.queue = await self.enterAsyncContext(AsyncJobQueue(SQLiteState(), JOB_TYPES))

    async def test_greeting(self) -> None:
        chain = await self.queue.client.start_chain(greet, "ada")
        await self.queue.run_until_idle(processors)
        assert await chain.result(timeout=0) == "hello ada"


class _InTransactions(TransactionTestCase):
    __test__ = False  # Run below, with settings of Django.

    def setUp(self) -> None:
        self.queue = self.enterContext(JobQueue(PostgresState(database_dsn()), JOB_TYPES))

    def tearDown(self) -> None:
        self.queue.clear()

    def test_greeting(self) -> None:
        with transaction.atomic():
            chain = self.queue.client.start_chain(greet, "ada", connection=connection)
        self.queue.assert_started(greet)
        self.queue.run_until_idle(processors)
        assert chain.result(timeout=0) == "hello ada"

    def test_greeting_again(self) -> None:
        """The rate of one a day, and the chains of the test before, are gone."""
        self.queue.assert_not_started(greet)
        self.test_greeting()


class _Uncommitted(TestCase):
    __test__ = False  # Run below, with settings of Django.

    def test_greeting(self) -> None:
        with Client(PostgresState(database_dsn()), JOB_TYPES) as client, connection.cursor() as cursor:
            client.start_chain(greet, "ada", connection=connection)
            cursor.execute("select type, input from queuert.job")
            assert cursor.fetchall() == [("greet", '"ada"')]

    def test_greeting_again(self) -> None:
        self.test_greeting()


@pytest.fixture
def run_django(dsn: str) -> Iterator[Callable[[Any], None]]:
    """Runs a class of tests on the database of this test."""

    def run(case: Any) -> None:
        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
        assert result.testsRun == 2
        assert [text for _, text in (*result.failures, *result.errors)] == []

    with django_database(dsn):
        yield run


@pytest.mark.parametrize("case", [_InTransactions, _Uncommitted])
def test_django(run_django: Callable[[Any], None], case: Any) -> None:
    run_django(case)


def test_the_address_is_that_of_djangos_settings(dsn: str, tmp_path: Path) -> None:
    with django_database(dsn):
        options = {"sslmode": "prefer", "prepare_threshold": 7, "application_name": "it's mine"}
        connections["default"].settings_dict["OPTIONS"] = options
        assert conninfo_to_dict(database_dsn()) == {
            **conninfo_to_dict(dsn), "sslmode": "prefer", "application_name": "it's mine"
        }  # fmt: skip
        with Client(PostgresState(database_dsn()), JOB_TYPES) as client:
            assert client.list_chains().items == ()
        connections["lite"] = SqliteWrapper({**connections["default"].settings_dict, "NAME": tmp_path / "db"}, "lite")
        with pytest.raises(ConfigurationError, match="database 'lite' of Django must be Postgres, got sqlite"):
            database_dsn("lite")
        del connections["lite"]


def test_clear_empties_the_queue(dsn: str) -> None:
    with JobQueue(PostgresState(dsn), JOB_TYPES) as queue:
        first = queue.client.start_chain(greet, "ada")
        queue.client.start_chain(greet, "bob", blockers=[first])
        queue.client.put_schedules([RecurringSchedule("hourly", greet, "carl", every=3600)])
        queue.client.pause_job_types([greet])
        queue.clear()
        assert (queue.jobs(), queue.client.list_schedules()) == ([], [])
        queue.client.start_chain(greet, "dora")
        assert len(queue.run_until_idle(processors)) == 1
