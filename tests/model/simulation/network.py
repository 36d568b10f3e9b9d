"""What a simulated process has of the store and of notifications: adapters whose ways lead to a simulated server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self, cast

from queuert.errors import StateError, StateUnavailableError
from queuert.notify.adapter import Notification, NotificationCallback, NotifyAdapter, Subscription, Topic
from queuert.observability.adapter import Observers
from queuert.state.adapter import Capability
from queuert.state.async_store import AsyncStore
from queuert.state.sync_store import Store
from queuert.state.types import ClaimedJob, Finish, FinishResult
from tests.model.simulation.server import Held, LockedConnection, Server, Weather
from tests.model.simulation.standins import Event
from tests.model.simulation.world import Process, World


class SimulatedAsyncStore:
    """The contract's operations, as coroutines on simulated time."""

    risks = ()
    pool_use = None

    def __init__(self, server: Server, process: Process) -> None:
        self._link = LockedConnection(server, process, 30.0)
        self._closed = False

    def __getattr__(self, name: str) -> Any:
        operation = self._link.server.operation(name)

        async def call(*values: Any, **named: Any) -> Any:
            return await self.ask(lambda: operation(*values, **named))

        return call

    async def ask(self, operation: Callable[[], Any]) -> Any:
        """Send a statement and wait for its answer."""
        if self._closed:
            raise StateUnavailableError("the store was closed")
        loop = self._link.process.loop
        future = loop.create_future()

        def settle(result: Any, error: Exception | None) -> None:
            loop.call_soon(deliver, result, error)

        def deliver(result: Any, error: Exception | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self._link.ask(operation, settle)
        return await future

    async def aclose(self) -> None:
        """Let go of all connections."""
        self._closed = True
        self._link.close()

    def transaction(self, job: ClaimedJob) -> SimulatedTransaction:
        """A transaction that holds the job."""
        return SimulatedTransaction(self, self._link.server, job)


class SimulatedTransaction:
    """The client's end of a transaction."""

    locks_job = True
    connection = None

    def __init__(self, store: SimulatedAsyncStore, server: Server, job: ClaimedJob) -> None:
        self._store = store
        self._server = server
        self._job = job
        self._held: Held | None = None

    def abort(self) -> None:
        """End the connection."""
        if self._held is not None:
            self._server.abort(self._held)

    async def finish(self, finish: Finish, *, last: bool = False) -> FinishResult:
        """Write the finish."""
        held = self._held
        assert held is not None
        return cast("FinishResult", await self._store.ask(lambda: self._server.write(held, finish)))

    async def __aenter__(self) -> Self:
        begun: list[Held] = []

        def begin() -> None:
            begun.append(self._server.begin(self._job))

        try:
            await self._store.ask(begin)
        except BaseException:
            # The connection goes with whoever does not wait for it any more.
            self._server.world.later(0.01, None, lambda: self._server.abort_all(begun))
            raise
        [self._held] = begun
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held, server = self._held, self._server
        assert held is not None
        try:
            await self._store.ask(partial(server.end, held, commits=error is None))
        except StateUnavailableError:
            if error is None and held.finish is None:
                raise
            if error is None:
                await self._resolve(held)

    async def _resolve(self, held: Held) -> None:
        """The answer to the commit was lost: look whether it was done."""
        self._server.probes["commits in doubt"] += 1
        for _ in range(20):
            await asyncio.sleep(0.5)
            try:
                stands = await self._store.ask(lambda: self._server.stands(held))
            except StateError:
                continue
            if stands:
                return
            break
        raise StateUnavailableError("the commit was not done, as far as can be known")


class SimulatedStore:
    """The contract's operations for a simulated thread, which waits for the answer."""

    def __init__(self, server: Server, process: Process, timeout: float) -> None:
        self._link = LockedConnection(server, process, timeout)

    def __getattr__(self, name: str) -> Any:
        operation = self._link.server.operation(name)

        def call(*values: Any, **named: Any) -> Any:
            event, answers = Event(self._link.server.world), list[tuple[Any, Exception | None]]()

            def settle(result: Any, error: Exception | None) -> None:
                answers.append((result, error))
                event.set()

            self._link.ask(lambda: operation(*values, **named), settle)
            event.wait()
            [(result, error)] = answers
            if error is not None:
                raise error
            return result

        return call

    def close(self) -> None:
        """Let go of all connections."""
        self._link.close()


class SimulatedState:
    """The state adapter of one process."""

    capabilities = frozenset({Capability.USER_TRANSACTIONS, Capability.ROW_LOCKS, Capability.MULTI_PROCESS})

    def __init__(self, server: Server, process: Process, notify: NotifyAdapter) -> None:
        self._server = server
        self._process = process
        self._notify = notify

    def sync_store(self, *, max_connections: int = 4, answer_timeout: float | None = None) -> Store:
        """A store for a thread."""
        return cast("Store", SimulatedStore(self._server, self._process, answer_timeout or 30.0))

    def async_store(self, *, max_connections: int = 4) -> AsyncStore:
        """A store for the event loop."""
        return cast("AsyncStore", SimulatedAsyncStore(self._server, self._process))

    def default_notify(self) -> NotifyAdapter:
        """The process's."""
        return self._notify


class Notifications:
    """Carries notifications between the processes of a world; some of them."""

    def __init__(self, world: World, weather: Weather, healthy: bool) -> None:
        self.world = world
        self.weather = weather
        self.healthy = healthy
        self.listeners: list[Listener] = []

    def publish(self, topic: Topic, keys: Iterable[str]) -> None:
        """Tell whoever listens, now or a little later."""
        notification = Notification(topic, frozenset(keys))
        for one in self.listeners if notification.keys else ():
            if one.topic is topic and self.weather.notification_arrives(self.world.now):
                self.world.later(self.weather.way(self.world.now), one.process, partial(one.hear, notification))


@dataclass(eq=False)
class Listener:
    """Somebody who wants notifications."""

    notifications: Notifications
    process: Process
    topic: Topic
    callback: NotificationCallback

    def hear(self, notification: Notification) -> None:
        """A notification has come."""
        if self in self.notifications.listeners:
            self.callback(notification)

    def close(self) -> None:
        """Leave."""
        if self in self.notifications.listeners:
            self.notifications.listeners.remove(self)


class SimulatedNotify:
    """The notify adapter of one process."""

    def __init__(self, notifications: Notifications, process: Process) -> None:
        self._notifications = notifications
        self._process = process

    def open(self, observers: Observers) -> None:
        """Nothing is to be opened."""

    def close(self) -> None:
        """Nothing is to be closed."""

    def publish(self, topic: Topic, keys: Iterable[str]) -> None:
        """Tell the others, if one of us still can."""
        if self._process.alive:
            self._notifications.publish(topic, keys)

    def subscribe(self, topic: Topic, callback: NotificationCallback) -> Subscription:
        """Hear of a topic."""
        listener = Listener(self._notifications, self._process, topic, callback)
        self._notifications.listeners.append(listener)
        return listener

    @property
    def healthy(self) -> bool:
        """What it believes."""
        return self._notifications.healthy
