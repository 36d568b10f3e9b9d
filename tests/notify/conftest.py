"""Adapters to test, closed when the test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

from queuert.notify import InProcessNotify
from queuert.notify.postgres import ListenerTimes, PostgresNotify
from tests.notify.support import Party

NewParty: TypeAlias = Callable[[], Party]


@pytest.fixture(params=["in_process", "postgres"])
def new_party(request: pytest.FixtureRequest) -> Iterator[NewParty]:
    """Makes parties that can hear each other: of one process for one adapter, of several for the other."""
    parties: list[Party] = []
    shared = InProcessNotify()
    dsn = request.getfixturevalue("bare_dsn") if request.param == "postgres" else ""

    def new() -> Party:
        parties.append(Party(PostgresNotify(dsn) if dsn else shared))
        return parties[-1]

    yield new
    for party in parties:
        party.adapter.close()


NewPostgresParty: TypeAlias = Callable[..., Party]


@pytest.fixture
def new_postgres_party() -> Iterator[NewPostgresParty]:
    """Makes parties on Postgres, by connection string."""
    parties: list[Party] = []

    def new(dsn: str, *, times: ListenerTimes | None = None, schema: str = "queuert") -> Party:
        parties.append(Party(PostgresNotify(dsn, schema=schema, times=times)))
        return parties[-1]

    yield new
    for party in parties:
        party.adapter.close()
