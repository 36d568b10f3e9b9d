"""What tests of behaviours share: one face of both modes of client, a harness that is called through it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, LiteralString

import psycopg

from queuert import AsyncChain, AsyncClient, Client
from queuert.notify import NotifyAdapter
from tests.support.harness import PostgresHarness
from tests.support.waiting import WAIT

QUICK = 0.05
"""Seconds between two polls where a test has no notifications."""


class Caller:
    """A client sync or async behind one face: every method is awaited, and so is all that handles do."""

    def __init__(self, client: AsyncClient | Client, dsn: str) -> None:
        self.client = client
        self._dsn = dsn

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        return self._awaited(getattr(self.client, name))

    async def result(self, chain: Any, timeout: float = WAIT) -> Any:
        """The chain's output, when it has closed."""
        return await self._awaited(chain.result)(timeout)

    async def closed(self, chain: Any, timeout: float = WAIT) -> Any:
        """The chain, read when it has closed."""
        return await self._awaited(chain.wait)(timeout)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A transaction of the caller's own: it commits at the end of the block, or rolls back."""
        if isinstance(self.client, AsyncClient):
            async with await psycopg.AsyncConnection.connect(self._dsn) as connection:
                yield connection
        else:
            with psycopg.connect(self._dsn) as synchronous:
                yield synchronous

    @asynccontextmanager
    async def rolled_back(self) -> AsyncIterator[Any]:
        """A transaction of the caller's own that rolls back at the end of the block."""
        async with self.transaction() as connection:
            yield connection
            await self.execute(connection, "rollback")

    async def execute(self, connection: Any, statement: LiteralString) -> None:
        """Run a statement on a connection of the caller's own."""
        answer = connection.execute(statement)
        if isinstance(connection, psycopg.AsyncConnection):
            await answer

    async def close(self) -> None:
        """Close the client."""
        if isinstance(self.client, AsyncClient):
            await self.client.aclose()
        else:
            await asyncio.to_thread(self.client.close)

    def _awaited(self, method: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        if isinstance(self.client, AsyncClient):
            return method

        async def call(*values: Any, **named: Any) -> Any:
            return await asyncio.to_thread(method, *values, **named)

        return call


class CallerHarness(PostgresHarness):
    """The harness with a caller, whose client is async or sync, and a client for each worker.

    Args:
        dsn: the database.
        mode: the class of the caller's client.
        notify: the notifications of all clients; by default those of the database.
        settings: of `PostgresHarness`.
    """

    def __init__(
        self,
        dsn: str,
        *,
        mode: type[AsyncClient] | type[Client] = AsyncClient,
        notify: NotifyAdapter | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(dsn, notify=notify, client_per_worker=True, **settings)
        client = mode(self.state, self.job_types, notify=notify, observability=self.log)
        self.caller = Caller(client, dsn)

    async def close(self) -> None:
        """Stop, and close the caller's client."""
        await super().close()
        await self.caller.close()


def kept(chain: AsyncChain[Any]) -> int | None:
    """Seconds that a closed chain is kept after its end; None: it has no end of its own."""
    if chain.expires_at is None or chain.closed_at is None:
        return None
    return round((chain.expires_at - chain.closed_at).total_seconds())
