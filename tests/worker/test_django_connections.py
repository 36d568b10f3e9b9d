"""Handlers that use Django's ORM outside of ``atomic``, in threads and processes that outlive their connections."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connections

from queuert import Attempt
from queuert.jobs import JobStatus
from queuert.worker.django_connections import close_old_connections
from tests.client.callers import django_database
from tests.support.harness import PostgresHarness
from tests.support.job_types import number, text
from tests.support.waiting import WAIT


@pytest.fixture(params=["for ever", "health checks", "default"])
def django(request: pytest.FixtureRequest, dsn: str) -> Iterator[Any]:
    """Django's databases: connections that are kept for ever, without and with checks, and as Django has it."""
    options = {
        "for ever": {"CONN_MAX_AGE": None},
        "health checks": {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True},
        "default": {},
    }
    with django_database(dsn) as wrapper:
        connections.settings["default"].update(options[request.param])
        yield request.param, wrapper


def backend(attempt: Attempt[int, int]) -> int:
    """The process of the server that Django's connection of this thread is to."""
    with connections["default"].cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        return int(cursor.fetchone()[0])


def terminate(dsn: str, pid: int) -> None:
    """End a session of the server, and wait until it is gone."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select pg_terminate_backend(%s, 10000)", [pid])


async def test_a_handler_in_a_thread_works_again_after_its_connection_was_lost(
    harness: PostgresHarness, dsn: str, django: Any
) -> None:
    """One attempt may find out, unless connections are checked or made anew; the next one has another connection."""
    name, _ = django
    harness.handles(number, backend)
    async with harness.worker():
        first = await (await harness.client.start_chain(number, 1)).result(WAIT)
        terminate(dsn, first)
        chain = await harness.client.start_chain(number, 2)
        assert await chain.result(WAIT) != first
    job = await harness.job(chain.id)
    assert (job.status, job.attempt) == (JobStatus.COMPLETED, 2 if name == "for ever" else 1)


_opened: list[Any] = []


def backend_in_process(attempt: Attempt[str, str]) -> str:
    """The same of a process of its own, which the input is the database's address for."""
    if not _opened:
        _opened.append(django_database(attempt.input))
        _opened[0].__enter__()
        connections.settings["default"]["CONN_MAX_AGE"] = None
    with connections["default"].cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        return str(cursor.fetchone()[0])


async def test_a_handler_in_a_process_works_again_after_its_connection_was_lost(
    harness: PostgresHarness, dsn: str
) -> None:
    """The process is the same, and goes on to the next attempt."""
    harness.handles(text, backend_in_process, executor="process")
    async with harness.worker():
        first = await (await harness.client.start_chain(text, dsn)).result(WAIT)
        terminate(dsn, int(first))
        assert await (await harness.client.start_chain(text, dsn)).result(WAIT) != first


async def test_a_connection_is_kept_from_attempt_to_attempt_within_its_age(
    harness: PostgresHarness, django: Any
) -> None:
    """``CONN_MAX_AGE`` counts, as for requests."""
    name, _ = django
    harness.handles(number, backend)
    async with harness.worker():
        pids = [await (await harness.client.start_chain(number, n)).result(WAIT) for n in range(3)]
    assert len(set(pids)) == (3 if name == "default" else 1)


def test_a_program_without_django_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is imported."""
    monkeypatch.delitem(sys.modules, "django.db", raising=False)
    close_old_connections()
    assert "django.db" not in sys.modules


def test_settings_that_cannot_be_read_are_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that does not use Django does not care."""

    class Broken:
        @property
        def settings(self) -> Any:
            raise RuntimeError("no settings")

    monkeypatch.setitem(sys.modules, "django.conf", Broken())
    close_old_connections()
