"""Private parts of libraries have a public way beside them, which is taken where they are missing."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import redis

from queuert.notify.redis.connection import NO_SOCKET, descriptor, wait
from queuert.worker.processes.interpreter_flags import interpreter_flags

PRINT = (
    "import subprocess, sys; from queuert.worker.processes.interpreter_flags import interpreter_flags;"
    " delattr(subprocess, '_args_from_interpreter_flags'); print(*interpreter_flags())"
)


def test_the_flags_of_the_interpreter_are_handed_on_without_the_private_function() -> None:
    command = [sys.executable, "-E", "-s", "-O", "-Wdefault::FutureWarning", "-c", PRINT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["-E", "-s", "-O", "-Wdefault::FutureWarning"]


def test_the_standard_library_knows_the_flags() -> None:
    assert hasattr(subprocess, "_args_from_interpreter_flags")
    assert all(f"-W{option}" in interpreter_flags() for option in sys.warnoptions)


class Hidden:
    """A connection of a version of redis-py that does not show its socket."""


def test_the_socket_of_a_connection_is_found_or_said_to_be_hidden(redis_url: str) -> None:
    pool = redis.ConnectionPool.from_url(redis_url)
    connection: Any = pool.connection_class(**pool.connection_kwargs)
    assert descriptor(connection) is None
    connection.connect()
    try:
        found = descriptor(connection)
        assert found is not None
        assert found >= 0
    finally:
        connection.disconnect()
    hidden: Any = Hidden()
    assert descriptor(hidden) == NO_SOCKET


def test_a_hidden_socket_makes_the_wait_short(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    class Poll:
        def register(self, descriptor: int, mask: int) -> None:
            assert descriptor != NO_SOCKET

        def poll(self, milliseconds: float) -> None:
            waited.append(milliseconds)

    monkeypatch.setattr("select.poll", Poll)
    wait([5, NO_SOCKET], 60)
    wait([5, 6], 60)
    assert waited == [100, 60_000]
