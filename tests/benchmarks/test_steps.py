"""The cost of steps, as small as can be, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks import steps
from benchmarks.servers import PostgresServer


@pytest.fixture
def server(postgres_server: str) -> Iterator[PostgresServer]:
    server = PostgresServer(postgres_server)
    yield server
    server.close()


def test_each_kind_is_measured(server: PostgresServer) -> None:
    found = steps.run(server, 2, 3)
    assert [set(one) for one in found] == [{*steps.KINDS, steps.REPLAY}] * 3
    assert [line.split()[0] for line in steps.report(found).splitlines()[1:]] == [*steps.KINDS, "replayed"]
