"""A harness for each test."""

from collections.abc import Iterator

import psycopg
import pytest

from tests.support.store_harness import StoreHarness, opened


@pytest.fixture
def harness(dsn: str) -> Iterator[StoreHarness]:
    """A store on a database of the test's own, and its log."""
    store = opened(dsn)
    try:
        with psycopg.connect(dsn, autocommit=True) as sql:
            yield StoreHarness(dsn, store, sql)
    finally:
        store.close()
