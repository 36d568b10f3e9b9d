"""The argument of a case: stores of one mode, behind the asynchronous contract, and the user's own data."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Any, Protocol

from queuert.state import AsyncStore, StateAdapter
from queuert.state.threaded import as_async

_THREADS = 64
"""More threads than any case has concurrent calls: a call that waits for a lock must not delay the lock's holder."""


class Mode(StrEnum):
    """The mode of the stores on which a case runs."""

    ASYNC = "async"
    SYNC = "sync"


class UserData(Protocol):
    """Rows of the user's own in the adapter's database, for adapters with the capability of user transactions.

    A connection may be sync or async: it is the one that the store, or :meth:`transaction`, gave.
    """

    async def add(self, connection: Any, key: str) -> None:
        """Write a row on the connection. If the key exists already, the database raises an error."""
        ...

    async def keys(self) -> set[str]:
        """Return the keys of the committed rows."""
        ...

    def transaction(self, mode: Mode) -> AbstractAsyncContextManager[Any]:
        """Yield the caller's own connection in a transaction: committed if the block ends normally, else rolled
        back."""
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
            LookupError: the adapter has the capability of user transactions, but its author passed no user data to test
                it.
        """
        if self._user_data is None:
            raise LookupError("this adapter has user transactions: its conformance tests need user_data")
        return self._user_data

    def make(self, *, max_connections: int = 4) -> AsyncStore:
        """Return a store that is not open yet."""
        if self.mode is Mode.ASYNC:
            return self.adapter.async_store(max_connections=max_connections)
        return as_async(self.adapter.sync_store(max_connections=max_connections), threads=_THREADS)

    async def open(self, *, max_connections: int = 4) -> AsyncStore:
        """Yield an open store; it is closed when the case ends."""
        store = self.make(max_connections=max_connections)
        self._opened.append(store)
        await store.open()
        return store

    async def open_many(self, count: int) -> list[AsyncStore]:
        """Yield several open stores, as several workers would have."""
        return [await self.open(max_connections=2) for _ in range(count)]

    def user_transaction(self) -> AbstractAsyncContextManager[Any]:
        """Yield the caller's own connection, of the case's mode, in a transaction."""
        return self.user_data.transaction(self.mode)

    async def aclose(self) -> None:
        """Close all stores."""
        for store in self._opened:
            await store.aclose()
