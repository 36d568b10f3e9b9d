"""A synchronous store behind the asynchronous contract: each call on a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from queuert.state import AsyncStore, AsyncStoreTransaction, Store, StoreTransaction
from queuert.state.adapter import ClaimedJob, Finish, FinishResult

_T = TypeVar("_T")


def threaded(store: Store, threads: Executor) -> AsyncStore:
    """An :class:`~queuert.state.AsyncStore` made of a :class:`~queuert.state.Store`."""
    return cast("AsyncStore", _ThreadedStore(store, threads))


class _ThreadedStore:
    """Every operation of the store, as a coroutine function of the same name and arguments."""

    def __init__(self, store: Store, threads: Executor) -> None:
        self._store = store
        self._threads = threads

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._store, "close" if name == "aclose" else name)

        async def call(*values: Any, **named: Any) -> Any:
            return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: operation(*values, **named))

        return call

    def transaction(self, job: ClaimedJob) -> _ThreadedTransaction:
        return _ThreadedTransaction(self._store.transaction(job), self._threads)


class _ThreadedTransaction(AsyncStoreTransaction):
    """An asynchronous transaction made of a synchronous one."""

    def __init__(self, block: AbstractContextManager[StoreTransaction], threads: Executor) -> None:
        self._block = block
        self._threads = threads
        self._entered: StoreTransaction | None = None

    async def _call(self, function: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    @property
    def _transaction(self) -> StoreTransaction:
        if self._entered is None:
            raise RuntimeError("the transaction has not begun")
        return self._entered

    @property
    def connection(self) -> Any:
        return self._transaction.connection

    def cut(self) -> None:
        """End the transaction's connection."""
        self._transaction.cut()

    async def finish(self, finish: Finish) -> FinishResult:
        return await self._call(lambda: self._transaction.finish(finish))

    async def __aenter__(self) -> Self:
        self._entered = await self._call(self._block.__enter__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._call(lambda: self._block.__exit__(kind, error, trace))
