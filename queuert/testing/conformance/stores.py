"""What a case is given: stores of one mode, behind the asynchronous contract, and the user's own data."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Any, Protocol

from queuert.state import AsyncStore, StateAdapter
from queuert.state.threaded import as_async

_THREADS = 64
"""Above the number of calls that any case has in flight: one that waits for a lock must not keep its holder waiting."""


class Mode(StrEnum):
    """Which of an adapter's stores a case runs on."""

    ASYNC = "async"
    SYNC = "sync"


class UserData(Protocol):
    """Rows of the user's own in the adapter's database, for adapters capable of user transactions.

    A connection may be sync or async: it is the one that the store, or :meth:`transaction`, gave.
    """

    async def add(self, connection: Any, key: str) -> None:
        """Write a row on the connection. A key that is there already is an error of the database."""
        ...

    async def keys(self) -> set[str]:
        """The keys of the rows that are committed."""
        ...

    def transaction(self, mode: Mode) -> AbstractAsyncContextManager[Any]:
        """The caller's own connection in a transaction: committed when the block ends well, else rolled back."""
        ...


class Stores:
    """Opens stores for one case."""

    def __init__(self, adapter: StateAdapter, mode: Mode, user_data: UserData | None = None) -> None:
        self.adapter = adapter
        self.mode = mode
        self._user_data = user_data
        self._opened: list[AsyncStore] = []

    @property
    def user_data(self) -> UserData:
        """The user's own rows.

        Raises:
            LookupError: the adapter can take part in user transactions, and its author gave no user data to show it.
        """
        if self._user_data is None:
            raise LookupError("this adapter has user transactions: its conformance tests need user_data")
        return self._user_data

    def make(self, *, max_connections: int = 4) -> AsyncStore:
        """A store that is not open yet."""
        if self.mode is Mode.ASYNC:
            return self.adapter.async_store(max_connections=max_connections)
        return as_async(self.adapter.sync_store(max_connections=max_connections), threads=_THREADS)

    async def open(self, *, max_connections: int = 4) -> AsyncStore:
        """An open store; it is closed when the case ends."""
        store = self.make(max_connections=max_connections)
        self._opened.append(store)
        await store.open()
        return store

    async def open_many(self, count: int) -> list[AsyncStore]:
        """Several open stores, as several workers would have."""
        return [await self.open(max_connections=2) for _ in range(count)]

    def user_transaction(self) -> AbstractAsyncContextManager[Any]:
        """The caller's own connection, of the case's mode, in a transaction."""
        return self.user_data.transaction(self.mode)

    async def aclose(self) -> None:
        """Close all stores."""
        for store in self._opened:
            await store.aclose()
