"""Pools of connections, sync and async, and how scripts are run on them.

If it is asked for, a script is followed by WAITAOF in one round trip, which waits until the server has flushed the
write. WAITAOF waits for the writes of its own connection, and so for all earlier ones, since the append-only file is
one sequence. But a script that finds its work done already writes nothing, and what it found may not be flushed yet. So
the client increments a generation between the two, which is always a write.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.exceptions import NoScriptError, ResponseError
from redis.retry import Retry

from queuert.errors import ClosedError, StateUnavailableError
from queuert.state._asyncio import finish_despite_cancel
from queuert.state.redis.encode import Arguments
from queuert.state.redis.errors import checked, is_read_only, mapped_errors
from queuert.state.redis.scripts import script
from queuert.state.redis.settings import RedisSettings


def queued(pipeline: Any, script: Sequence[Any], settings: RedisSettings) -> Any:
    """Append a script and the wait for its flush to the pipeline, and return the pipeline."""
    pipeline.execute_command(*script)
    pipeline.execute_command("INCR", f"{settings.prefix}gen")
    # A timeout of 0 would mean no timeout.
    pipeline.execute_command("WAITAOF", 1, 0, max(1, int(settings.flush_timeout * 1000)))
    return pipeline


def confirmed(answers: Sequence[Any], settings: RedisSettings) -> Any:
    """Return the answer of the script, which is flushed.

    Raises:
        redis.ResponseError: the script, or the write after it, was refused.
        StateUnavailableError: the script has run, but it is unknown whether its writes are flushed.
    """
    answer, mark, flush = answers
    for one in (answer, mark):
        if isinstance(one, ResponseError):
            raise one
    if isinstance(flush, ResponseError) or flush[0] < 1:
        why = flush if isinstance(flush, ResponseError) else f"no flush in {settings.flush_timeout:g} s"
        raise StateUnavailableError(
            f"the server did not confirm the flush of the write ({why}): the write is kept unless the server crashes"
        )
    return answer


_CLOSED = "the store must be open: it was closed, or never opened"


@asynccontextmanager
async def in_time(client: Any) -> AsyncIterator[None]:
    """Raise if the block takes longer than the pool's timeout. A cancellation inside drops the connection.

    Raises:
        TimeoutError: the block did not end in that time.
    """
    timeout = getattr(client.connection_pool, "timeout", None)
    try:
        async with asyncio.timeout(timeout):
            yield
    except TimeoutError:
        raise TimeoutError(f"no answer from Redis in {timeout:g} s") from None


class AsyncConnections:
    """A pool for coroutines. While all connections are in use, callers wait."""

    def __init__(self, settings: RedisSettings, connections: int) -> None:
        self._settings = settings
        self._connections = connections
        self._client: Any = None
        self._has_worked = False  # Before it has, a missing right is a wrong setting, and no outage.

    async def open(self) -> Any:
        """Create the pool if there is none, and return its client."""
        if self._client is None:
            kinds = redis.asyncio.BlockingConnectionPool, redis.asyncio.Connection, AsyncRetry
            pool = self._settings.pool(*kinds, self._connections)
            # With a timeout of its own redis-py sends through asyncio.wait_for(), which in Python 3.11 loses a
            # cancellation that comes after everything was sent. in_time() is used instead.
            pool.connection_kwargs["socket_timeout"] = None
            self._client = redis.asyncio.Redis.from_pool(pool)
        return self._client

    async def aclose(self) -> None:
        """Close the pool; calls in progress fail."""
        client, self._client, self._has_worked = self._client, None, False
        if client is not None:
            await self._disconnect(client)

    async def _disconnect(self, client: Any) -> None:
        # redis-py starts a task for each connection. If these are cancelled before they begin, all connections stay
        # open.
        await finish_despite_cancel(asyncio.ensure_future(client.connection_pool.disconnect(inuse_connections=True)))

    async def run(self, name: str, arguments: Arguments, *, flushed: bool = False) -> Any:
        """Run a script and return its answer. With ``flushed`` it returns once the write is on disk, if that is
        configured."""
        client = self._client
        if client is None:
            raise ClosedError(_CLOSED)
        one = script(name)
        try:
            with mapped_errors(opening=not self._has_worked):
                try:
                    async with in_time(client):
                        words = (1, self._settings.prefix, *arguments)
                        try:
                            answer = await self._execute(client, "EVALSHA", one.digest, *words, flushed=flushed)
                        except NoScriptError:
                            answer = await self._execute(client, "EVAL", one.text, *words, flushed=flushed)
                except ResponseError as error:
                    # If a DNS name or a proxy leads to the primary, new connections lead to the new primary.
                    if is_read_only(error):
                        await client.connection_pool.disconnect(inuse_connections=False)
                    raise
        finally:
            if self._client is not client:
                # The store was closed meanwhile. Connections made since then are in the old pool, which nothing else
                # closes.
                await self._disconnect(client)
        if self._client is client:
            self._has_worked = True
        return checked(answer)

    async def _execute(self, client: Any, *words: Any, flushed: bool) -> Any:
        if not (flushed and self._settings.wait_for_flush):
            return await client.execute_command(*words)
        pipeline = queued(client.pipeline(transaction=False), words, self._settings)
        return confirmed(await pipeline.execute(raise_on_error=False), self._settings)


class _Pool(redis.BlockingConnectionPool):
    """A pool that gets no connection back in the middle of a login, or of an answer."""

    def release(self, connection: Any) -> None:
        """Take a connection back; closed if an exception of a signal handler, such as Ctrl-C, has ended its call."""
        error = sys.exception()
        if error is not None and not isinstance(error, Exception):
            connection.disconnect()
        super().release(connection)  # type: ignore[no-untyped-call]


class Connections:
    """A pool for threads. While all connections are in use, callers wait."""

    def __init__(self, settings: RedisSettings, connections: int) -> None:
        self._settings = settings
        self._connections = connections
        self._client: Any = None
        self._has_worked = False  # Before it has, a missing right is a wrong setting, and no outage.

    def open(self) -> Any:
        """Create the pool if there is none, and return its client."""
        if self._client is None:
            pool = self._settings.pool(_Pool, redis.Connection, Retry, self._connections)
            self._client = redis.Redis.from_pool(pool)
        return self._client

    def close(self) -> None:
        """Close the pool; calls in progress fail."""
        client, self._client, self._has_worked = self._client, None, False
        if client is not None:
            client.connection_pool.disconnect(inuse_connections=True)

    def run(self, name: str, arguments: Arguments, *, flushed: bool = False) -> Any:
        """Run a script and return its answer. With ``flushed`` it returns once the write is on disk, if that is
        configured."""
        client = self._client
        if client is None:
            raise ClosedError(_CLOSED)
        one = script(name)
        try:
            with mapped_errors(opening=not self._has_worked):
                try:
                    words = (1, self._settings.prefix, *arguments)
                    try:
                        answer = self._execute(client, "EVALSHA", one.digest, *words, flushed=flushed)
                    except NoScriptError:
                        answer = self._execute(client, "EVAL", one.text, *words, flushed=flushed)
                except ResponseError as error:
                    if is_read_only(error):
                        client.connection_pool.disconnect(inuse_connections=False)
                    raise
        finally:
            if self._client is not client:
                client.connection_pool.disconnect(inuse_connections=True)
        if self._client is client:
            self._has_worked = True
        return checked(answer)

    def _execute(self, client: Any, *words: Any, flushed: bool) -> Any:
        if not (flushed and self._settings.wait_for_flush):
            return client.execute_command(*words)
        pipeline = queued(client.pipeline(transaction=False), words, self._settings)
        return confirmed(pipeline.execute(raise_on_error=False), self._settings)
