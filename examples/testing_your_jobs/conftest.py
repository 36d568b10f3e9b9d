"""The program's own tables, beside the queue's: what its migrations do. The other fixtures come with queuert."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest


@pytest.fixture(scope="session")
def queuert_prepare() -> Callable[[str], None]:
    def prepare(dsn: str) -> None:
        with psycopg.connect(dsn) as connection:
            connection.execute("create table if not exists people (address text)")

    return prepare
