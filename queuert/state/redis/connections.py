"""Pools of connections sync and async, and how a script is run on one of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.exceptions import NoScriptError, ResponseError
from redis.retry import Retry

from queuert.errors import ClosedError
from queuert.state._asyncio import finish_despite_cancel
from queuert.state.redis.encode import Arguments
from queuert.state.redis.errors import checked, is_read_only, mapped_errors
from queuert.state.redis.scripts import script
from queuert.state.redis.settings import RedisSettings
from queuert.state.redis.waitaof import confirmed, queued

_CLOSED = "the store is not open: it was closed, or never opened"


@asynccontextmanager
async def in_time(client: Any) -> AsyncIterator[None]:
    """Wait no longer than a pool does for a connection. Who is cancelled inside drops the connection.

    Raises:
        TimeoutError: there was no answer in that time.
    """
    timeout = getattr(client.connection_pool, "timeout", None)
    try:
        async with asyncio.timeout(timeout):
            yield
    except TimeoutError:
        raise TimeoutError(f"no answer from Redis in {timeout:g} s") from None


class AsyncConnections:
    """A pool for coroutines. Who finds all connections in use waits for one."""

    def __init__(self, settings: RedisSettings, connections: int) -> None:
        self._settings = settings
        self._connections = connections
        self._client: Any = None

    async def open(self) -> Any:
        """Make the pool, if there is none; the client on it."""
        if self._client is None:
            kinds = redis.asyncio.BlockingConnectionPool, redis.asyncio.Connection, AsyncRetry
            pool = self._settings.pool(*kinds, self._connections)
            # With a timeout of its own the driver sends through asyncio.wait_for(), which in Python 3.11 loses a
            # cancellation that comes when all was sent. The timeout is in_time() instead.
            pool.connection_kwargs["socket_timeout"] = None
            self._client = redis.asyncio.Redis.from_pool(pool)
        return self._client

    async def aclose(self) -> None:
        """Close the pool; what is under way on it fails."""
        client, self._client = self._client, None
        if client is not None:
            await self._disconnect(client)

    async def _disconnect(self, client: Any) -> None:
        # The driver has a task for each connection: cancelled before they begin, they would leave all of them open.
        await finish_despite_cancel(asyncio.ensure_future(client.connection_pool.disconnect(inuse_connections=True)))

    async def run(self, name: str, arguments: Arguments, *, flushed: bool = False) -> Any:
        """Run an operation and return what it answers; ``flushed``: when it is on disk, if that is set."""
        client = self._client
        if client is None:
            raise ClosedError(_CLOSED)
        one = script(name)
        try:
            with mapped_errors():
                try:
                    async with in_time(client):
                        words = (1, self._settings.prefix, *arguments)
                        try:
                            answer = await self._params(client, "EVALSHA", one.digest, *words, flushed=flushed)
                        except NoScriptError:
                            answer = await self._params(client, "EVAL", one.text, *words, flushed=flushed)
                except ResponseError as error:
                    # Where a name or a proxy stands for the primary, new connections lead to the new one.
                    if is_read_only(error):
                        await client.connection_pool.disconnect(inuse_connections=False)
                    raise
        finally:
            if self._client is not client:
                # Closed meanwhile. What connected after that is in the old pool, which nobody closes again.
                await self._disconnect(client)
        return checked(answer)

    async def _params(self, client: Any, *words: Any, flushed: bool) -> Any:
        if not (flushed and self._settings.wait_for_flush):
            return await client.execute_command(*words)
        pipeline = queued(client.pipeline(transaction=False), words, self._settings)
        return confirmed(await pipeline.execute(raise_on_error=False), self._settings)


class Connections:
    """A pool for threads. Who finds all connections in use waits for one."""

    def __init__(self, settings: RedisSettings, connections: int) -> None:
        self._settings = settings
        self._connections = connections
        self._client: Any = None

    def open(self) -> Any:
        """Make the pool, if there is none; the client on it."""
        if self._client is None:
            kinds = redis.BlockingConnectionPool, redis.Connection, Retry
            pool = self._settings.pool(*kinds, self._connections)
            self._client = redis.Redis.from_pool(pool)
        return self._client

    def close(self) -> None:
        """Close the pool; what is under way on it fails."""
        client, self._client = self._client, None
        if client is not None:
            client.connection_pool.disconnect(inuse_connections=True)

    def run(self, name: str, arguments: Arguments, *, flushed: bool = False) -> Any:
        """Run an operation and return what it answers; ``flushed``: when it is on disk, if that is set."""
        client = self._client
        if client is None:
            raise ClosedError(_CLOSED)
        one = script(name)
        try:
            with mapped_errors():
                try:
                    words = (1, self._settings.prefix, *arguments)
                    try:
                        answer = self._params(client, "EVALSHA", one.digest, *words, flushed=flushed)
                    except NoScriptError:
                        answer = self._params(client, "EVAL", one.text, *words, flushed=flushed)
                except ResponseError as error:
                    if is_read_only(error):
                        client.connection_pool.disconnect(inuse_connections=False)
                    raise
        finally:
            if self._client is not client:
                client.connection_pool.disconnect(inuse_connections=True)
        return checked(answer)

    def _params(self, client: Any, *words: Any, flushed: bool) -> Any:
        if not (flushed and self._settings.wait_for_flush):
            return client.execute_command(*words)
        pipeline = queued(client.pipeline(transaction=False), words, self._settings)
        return confirmed(pipeline.execute(raise_on_error=False), self._settings)
