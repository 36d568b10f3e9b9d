"""Opens and closes an async client. ``sync_base.py`` is generated from this module."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import NoReturn, Self

from queuert.callbacks import CallbackUrls
from queuert.client.entering import AsyncEntered
from queuert.client.event_feed import EventFeed
from queuert.client.middleware import ClientMiddleware
from queuert.codecs import PayloadFormat
from queuert.errors import ClosedError, ConfigurationError, DefinitionError, NotPicklableError
from queuert.job_types import RESERVED, JobTypes
from queuert.notify.adapter import NotifyAdapter
from queuert.observability.adapter import ObservabilityAdapter, observers
from queuert.observability.tracing import TracingMiddleware, tracing_of
from queuert.state.adapter import StateAdapter, emit_store_warnings
from queuert.state.async_store import AsyncStore
from queuert.webhooks.endpoints import WebhookCodec


class AsyncClientBase(AsyncEntered):
    """The part of a client that opens its adapters and connections, at the first use."""

    def __init__(
        self,
        state: StateAdapter,
        job_types: JobTypes,
        *,
        notify: NotifyAdapter | None = None,
        observability: ObservabilityAdapter | Iterable[ObservabilityAdapter] | None = None,
        middlewares: Iterable[ClientMiddleware | TracingMiddleware] = (),
        max_connections: int = 4,
        webhook_format: PayloadFormat | None = None,
        callbacks: CallbackUrls | None = None,
    ) -> None:
        if not hasattr(state, "async_store"):
            raise ConfigurationError(
                f"state must be a state adapter, such as PostgresState(dsn), got {type(state).__name__}; "
                "from_url() takes a URL"
            )
        if not isinstance(job_types, JobTypes):
            raise DefinitionError(f"job_types must be JobTypes(resize, publish, ...), got {job_types!r}")
        self.state = state
        self.job_types = job_types
        self.notify = state.default_notify() if notify is None else notify
        self.observers = observers(observability)
        all_middlewares = tuple(middlewares)
        self._middlewares = tuple(
            middleware for middleware in all_middlewares if not isinstance(middleware, TracingMiddleware)
        )
        self.tracing = tracing_of(all_middlewares)
        self._max_connections = max_connections
        self.callbacks = callbacks
        self.webhook_codec = WebhookCodec(webhook_format)
        """Writes and reads webhooks, with their secrets in its format."""
        self._stores: dict[int, AsyncStore] = {}
        """The stores by process id: a forked child must neither use nor close its parent's connections."""
        self._feeds: dict[int, EventFeed] = {}
        """The event feeds by process id, each made when an event is first followed."""
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
        middlewares: Iterable[ClientMiddleware | TracingMiddleware] = (),
        max_connections: int = 4,
        webhook_format: PayloadFormat | None = None,
        callbacks: CallbackUrls | None = None,
    ) -> Self:
        """Return a client of the store at a URL, such as ``sqlite:///queue.db``; :mod:`queuert.urls` lists the schemes.

        The other arguments are those of the class. It does not connect yet, except for ``embedded://``, which starts a
        server, if this process has none in the directory. That takes a second or two.

        Raises:
            ConfigurationError: the URL or an option of it is not valid, or an optional package is not installed.
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
            webhook_format=webhook_format,
            callbacks=callbacks,
        )

    def __reduce__(self) -> NoReturn:
        # Usually a mistake: a function for Spark or a process pool refers to a client outside of it.
        raise NotPicklableError(type(self).__name__)

    async def open(self) -> None:
        """Connect now rather than at the first use. Idempotent.

        Raises:
            StateUnavailableError: the store cannot be reached.
            SchemaMissingError: the schema does not exist: run ``queuert migrate up``.
        """
        await self._open_store()

    async def aclose(self) -> None:
        """Send pending notifications and close all connections. Idempotent; the client cannot be used afterwards."""
        self._closed = True
        feed = self._feeds.pop(os.getpid(), None)
        store = self._stores.pop(os.getpid(), None)
        # Each is closed whatever the others raise: nobody could close it later.
        try:
            if feed is not None:
                feed.close()
        finally:
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

    def _adopt(self, store: AsyncStore) -> bool:
        """Make this the client's store, unless it has one or is closed. Return whether it is; atomic, for threads."""
        return not self._closed and self._stores.setdefault(os.getpid(), store) is store

    def _event_feed(self) -> EventFeed:
        """Return what reads the event log for all followers of this process."""
        feed = self._feeds.get(os.getpid())
        if feed is None:
            feed = self._feeds.setdefault(os.getpid(), EventFeed(self.state, self.notify, self.observers))
        return feed

    async def _open_store(self) -> AsyncStore:
        """Return the client's store, opened by the first call."""
        if self._closed:
            raise ClosedError("the client is closed: create a new one")
        store = self._stores.get(os.getpid())
        if store is not None:
            return store
        store = self.state.async_store(max_connections=self._max_connections)
        await store.open()
        try:
            # Before another call can get the store: what it starts is to be announced.
            self.notify.open(self.observers)
        except BaseException:
            await store.aclose()
            raise
        if not self._adopt(store):
            # The client was closed meanwhile, or another call has opened a store.
            try:
                self.notify.close()
            finally:
                await store.aclose()
            return await self._open_store()
        emit_store_warnings(self.state, store.risks, self.observers)
        # Pending notifications should be sent even if nobody closes the client.
        self._finalizer = weakref.finalize(self, self.notify.close)
        if self._stores.get(os.getpid()) is not store:
            # The client was closed meanwhile, perhaps before there was a finalizer to call.
            await self.aclose()
        return store

    async def _types_meant(self, named: tuple[str, ...] | None) -> tuple[str, ...]:
        """Return the types of the chains that a change of many means: the named ones, or all but the library's own."""
        if named is not None:
            return named
        # Only which types there are is of interest.
        counts = await (await self._open_store()).count_jobs(exact_up_to=1)
        return tuple(sorted({one.type for one in counts if not one.type.startswith(RESERVED)}))
