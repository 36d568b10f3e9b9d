"""The life of an asynchronous client. ``sync_base.py`` is generated from this module."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import NoReturn, Self

from queuert.client.middleware import ClientMiddleware
from queuert.errors import ClosedError, ConfigurationError, DefinitionError, NotPicklableError
from queuert.job_types import JobTypes
from queuert.notify.adapter import NotifyAdapter
from queuert.observability.adapter import ObservabilityAdapter, observers
from queuert.state.adapter import StateAdapter
from queuert.state.async_store import AsyncStore
from queuert.state.risks import emit_store_warnings


class AsyncClientBase:
    """Adapters and connections, opened at the first use."""

    def __init__(
        self,
        state: StateAdapter,
        job_types: JobTypes,
        *,
        notify: NotifyAdapter | None = None,
        observability: ObservabilityAdapter | Iterable[ObservabilityAdapter] | None = None,
        middlewares: Iterable[ClientMiddleware] = (),
        max_connections: int = 4,
    ) -> None:
        if not hasattr(state, "async_store"):
            raise ConfigurationError(
                "the first argument is where jobs live, such as PostgresState(dsn); from_url() takes an address"
            )
        if not isinstance(job_types, JobTypes):
            raise DefinitionError(f"the second argument is JobTypes(resize, publish, ...), not {job_types!r}")
        self.state = state
        self.job_types = job_types
        self.notify = state.default_notify() if notify is None else notify
        self.observers = observers(observability)
        self._middlewares = tuple(middlewares)
        self._connections = max_connections
        self._stores: dict[int, AsyncStore] = {}
        """By process: a forked child must not share its parent's connections, nor collect them."""
        self._closed = False
        self._finalizer: weakref.finalize[..., AsyncClientBase] | None = None

    @classmethod
    def from_url(
        cls,
        url: str,
        job_types: JobTypes,
        *,
        notify: NotifyAdapter | None = None,
        observability: ObservabilityAdapter | Iterable[ObservabilityAdapter] | None = None,
        middlewares: Iterable[ClientMiddleware] = (),
        max_connections: int = 4,
    ) -> Self:
        """A client of the store at an address, such as ``sqlite:///queue.db``; :mod:`queuert.urls` lists them.

        The other arguments are those of the class. Nothing is connected yet, but for ``embedded://``: that starts a
        server, if this process has none in the directory, which takes a second or two.

        Raises:
            ConfigurationError: the address or an option of it makes no sense, or an optional package is not installed.
            EmbeddedServerError: with ``embedded://``: there is no Postgres to run, its directory is in use, or it does
                not start.
        """
        from queuert.urls import state_from_url

        return cls(
            state_from_url(url),
            job_types,
            notify=notify,
            observability=observability,
            middlewares=middlewares,
            max_connections=max_connections,
        )

    def __reduce__(self) -> NoReturn:
        # Pickled by mistake, as a rule: a function for Spark or a process pool mentions a client that is outside of it.
        raise NotPicklableError(type(self).__name__)

    async def open(self) -> None:
        """Connect now rather than at the first use. Idempotent.

        Raises:
            StateUnavailableError: the store cannot be reached.
            SchemaMissingError: its schema is not there: run ``queuert migrate up``.
        """
        await self._opened()

    async def aclose(self) -> None:
        """Send what is pending and let go of all connections. Idempotent; the client cannot be used afterwards."""
        self._closed = True
        store = self._stores.pop(os.getpid(), None)
        try:
            if store is not None:
                await store.aclose()
        finally:
            if self._finalizer is not None:
                self._finalizer()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _found(self) -> AsyncStore | None:
        if self._closed:
            raise ClosedError("the client is closed: make a new one")
        return self._stores.get(os.getpid())

    def _keeps(self, store: AsyncStore) -> bool:
        """Whether this store is the client's from now on: in one step, since other calls may be in other threads."""
        return not self._closed and self._stores.setdefault(os.getpid(), store) is store

    async def _opened(self) -> AsyncStore:
        found = self._found()
        if found is not None:
            return found
        store = self.state.async_store(max_connections=self._connections)
        await store.open()
        if not self._keeps(store):
            # Meanwhile the client was closed, or another call has opened it.
            await store.aclose()
            return await self._opened()
        self.notify.open(self.observers)
        emit_store_warnings(self.state, store.risks, self.observers)
        # The last notifications should go out even if nobody closes the client.
        self._finalizer = weakref.finalize(self, self.notify.close)
        if self._closed:
            # It was closed just now, and may have had nothing to close yet.
            await self.aclose()
        return store
