"""A flood of poison beside good jobs, as small as can be, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks import poison
from benchmarks.servers import PostgresServer

OPTIONS = {"poison": 3, "concurrency": 4, "limit": 2, "children": 1, "sleep": 0.0}


@pytest.fixture
def server(postgres_server: str) -> Iterator[PostgresServer]:
    server = PostgresServer(postgres_server)
    yield server
    server.close()


def test_a_flood_is_measured_beside_the_good_jobs_alone(server: PostgresServer) -> None:
    found = {flood: poison.measure(server, flood, 20, OPTIONS) for flood in ("alone", "raise")}
    assert found["alone"]["failed"] == 0 < found["raise"]["failed"]
    # The processor time of a server is known to those who started it.
    table = poison.report(
        [{flood: {"server_cpu_us": 1.0, **reported} for flood, reported in found.items()}]
    ).splitlines()
    assert [line.split()[0] for line in table] == ["flood", "alone", "raise"]
    assert "1.000 (1.000-1.000)" in table[1]
