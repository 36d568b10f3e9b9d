"""A synchronous store behind the asynchronous contract: each call on a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self, TypeVar

from queuert.jobs import AbortReason, ChainRecord, Job
from queuert.state import AsyncStore, AsyncStoreTransaction, Store, StoreTransaction
from queuert.state.adapter import (
    BlockerRecord,
    ClaimedJob,
    ClaimRequest,
    Finish,
    FinishResult,
    Lease,
    NewJob,
    ReapRequest,
    ReapResult,
    Renewal,
    StartedJob,
    TypeCount,
)

_T = TypeVar("_T")


class ThreadedStore(AsyncStore):
    """An :class:`~queuert.state.AsyncStore` made of a :class:`~queuert.state.Store`."""

    def __init__(self, store: Store, threads: Executor) -> None:
        self._store = store
        self._threads = threads

    async def _call(self, function: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    async def open(self) -> None:
        await self._call(self._store.open)

    async def aclose(self) -> None:
        await self._call(self._store.close)

    async def start_jobs(self, jobs: Sequence[NewJob], *, connection: Any = None) -> list[StartedJob]:
        return await self._call(lambda: self._store.start_jobs(jobs, connection=connection))

    async def claim(self, request: ClaimRequest) -> list[ClaimedJob]:
        return await self._call(lambda: self._store.claim(request))

    async def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        return await self._call(lambda: self._store.renew(renewals))

    async def finish(self, finishes: Sequence[Finish], *, wait: bool = True) -> list[FinishResult]:
        return await self._call(lambda: self._store.finish(finishes, wait=wait))

    async def release(self, leases: Sequence[Lease]) -> int:
        return await self._call(lambda: self._store.release(leases))

    async def release_claim(self, request: ClaimRequest) -> int:
        return await self._call(lambda: self._store.release_claim(request))

    async def reap(self, request: ReapRequest) -> ReapResult:
        return await self._call(lambda: self._store.reap(request))

    async def lost_reasons(self, leases: Sequence[Lease]) -> list[AbortReason | None]:
        return await self._call(lambda: self._store.lost_reasons(leases))

    async def next_due(self, types: Sequence[str]) -> float | None:
        return await self._call(lambda: self._store.next_due(types))

    async def get_jobs(self, ids: Sequence[str]) -> list[Job | None]:
        return await self._call(lambda: self._store.get_jobs(ids))

    async def get_chains(self, ids: Sequence[str]) -> list[ChainRecord | None]:
        return await self._call(lambda: self._store.get_chains(ids))

    async def get_blockers(self, job_id: str) -> list[BlockerRecord]:
        return await self._call(lambda: self._store.get_blockers(job_id))

    async def counts(self, types: Sequence[str] | None = None) -> list[TypeCount]:
        return await self._call(lambda: self._store.counts(types))

    def transaction(self, job: ClaimedJob) -> ThreadedTransaction:
        return ThreadedTransaction(self._store.transaction(job), self._threads)


class ThreadedTransaction(AsyncStoreTransaction):
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
