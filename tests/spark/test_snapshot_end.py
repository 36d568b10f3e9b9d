"""The end of a block that held a snapshot: against a real server, without a Spark session."""

from __future__ import annotations

import psycopg
import pytest

from queuert.errors import StateUnavailableError
from queuert.spark import snapshot


def end_sessions(dsn: str) -> None:
    """End all other connections to the database, and wait until they are gone."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ended = connection.execute(f"SELECT pg_terminate_backend(pid, 60000) {others}".encode()).fetchall()
        assert ended == [(True,)]


def test_one_that_was_lost_unused_is_no_error(dsn: str) -> None:
    with snapshot(dsn):
        end_sessions(dsn)


def test_what_went_wrong_in_the_block_is_reported_even_so(dsn: str) -> None:
    def lose_it() -> None:
        with snapshot(dsn):
            end_sessions(dsn)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        lose_it()


def test_one_that_cannot_be_held_is_an_error() -> None:
    with pytest.raises(StateUnavailableError), snapshot("postgresql://postgres@127.0.0.1:1/x"):
        pytest.fail("the block was entered")
