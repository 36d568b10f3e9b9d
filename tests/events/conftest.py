"""A scene for each test."""

from collections.abc import Iterator

import psycopg
import pytest

from tests.events.support import Scene, opened


@pytest.fixture
def scene(dsn: str) -> Iterator[Scene]:
    """A store on a database of the test's own, and its log."""
    store = opened(dsn)
    try:
        with psycopg.connect(dsn, autocommit=True) as sql:
            yield Scene(dsn, store, sql)
    finally:
        store.close()
