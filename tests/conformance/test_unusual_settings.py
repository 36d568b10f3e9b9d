"""Postgres honours the contract in a database whose settings are all unusual: nothing relies on what a server has."""

from __future__ import annotations

import pytest

from queuert.state.postgres import PostgresState
from queuert.testing.conformance.pytest_plugin import conformance_tests
from tests.conformance.test_postgres import Rows
from tests.support.unusual_settings import make_unusual


@pytest.fixture
def state(dsn: str) -> PostgresState:
    return PostgresState(make_unusual(dsn))


@pytest.fixture
def rows(state: PostgresState, dsn: str) -> Rows:
    return Rows(dsn)


test_unusual_settings = conformance_tests("state", user_data="rows")
