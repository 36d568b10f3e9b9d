"""A signal handler that raises, as of Ctrl-C, leaves no connection in the middle of an answer or of a login."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from queuert.state.redis import RedisState
from queuert.state.redis.sync_store import RedisStore
from queuert.testing.conformance.builders import job


class Interrupted(BaseException):
    """Raised by a signal handler."""


def _start(store: RedisStore) -> None:
    store.start_jobs([job()])


def _pipeline(store: RedisStore) -> None:
    """As a start that waits for the flush, which the server of the tests does not do."""
    store._connections.open().pipeline(transaction=False).execute_command("PING").execute()


@pytest.mark.parametrize("call", [_start, _pipeline])
@pytest.mark.parametrize("moment", ["on_connect_check_health", "can_read", "send_packed_command", "read_response"])
async def test_an_interrupted_call_leaves_no_open_connection(
    state: RedisState, monkeypatch: pytest.MonkeyPatch, moment: str, call: Callable[[RedisStore], None]
) -> None:
    """Its answer would be that of the next call, or the next call would send before the login."""
    store = state.sync_store(max_connections=1)
    store.open()
    pool = store._connections.open().connection_pool
    if moment == "on_connect_check_health":
        pool.disconnect()

    def interrupt(*_: Any, **__: Any) -> None:
        raise Interrupted

    with monkeypatch.context() as patched:
        patched.setattr(redis.Connection, moment, interrupt)
        with pytest.raises(Interrupted):
            call(store)
    assert [connection._sock for connection in pool._connections] == [None]
    _start(store)
    # The server may have done what was sent before the connection was closed.
    assert [one.count for one in store.count_jobs()] in ([1], [2])
    store.close()
