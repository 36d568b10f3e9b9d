"""What an attempt needs in a child process: the socket to the worker, a store of its own, ``complete()``."""

from __future__ import annotations

import asyncio
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, nullcontext, suppress
from queue import SimpleQueue
from typing import Any

from queuert.errors import CompletionMisuseError
from queuert.job_types import JobType
from queuert.jobs import AbortReason
from queuert.policies import RetryPolicy
from queuert.state.adapter import StateAdapter
from queuert.state.async_store import AsyncStoreTransaction
from queuert.state.sync_store import Store, StoreTransaction
from queuert.state.types import Finish, FinishResult
from queuert.worker import finishes
from queuert.worker.attempt import AbortSignal
from queuert.worker.processes import messages

_CONNECTIONS = 2
"""One for ``complete()``, one to learn the result of a commit whose answer was lost."""


class Connection:
    """The child's end of the socket. Messages are sent from any thread, received in one."""

    def __init__(self, sock: socket.socket) -> None:
        sock.set_inheritable(False)
        self._socket = sock
        self._file = sock.makefile("rb")
        self._lock = threading.Lock()

    def send(self, message: object) -> None:
        """Send a message; if the worker is gone, nobody minds."""
        data = messages.packed(message)
        with self._lock, suppress(OSError):
            self._socket.sendall(data)

    def receive(self) -> object | None:
        """The next message; None when the worker has hung up."""
        try:
            header = self._file.read(messages.HEADER.size)
            if len(header) < messages.HEADER.size:
                return None
            (length,) = messages.HEADER.unpack(header)
            body = self._file.read(length)
        except OSError:
            return None
        return pickle.loads(body) if len(body) == length else None


class ChildStore:
    """The store of a child process, opened when the first handler asks."""

    def __init__(self, state: bytes | None) -> None:
        self._state = state
        self._store: Store | None = None

    def opened(self) -> Store:
        """The store.

        Raises:
            CompletionMisuseError: the state adapter cannot be sent to another process.
        """
        if self._state is None:
            raise CompletionMisuseError("the state adapter cannot be pickled, so complete() works in threads only")
        if self._store is None:
            state: StateAdapter = pickle.loads(self._state)
            store = state.sync_store(max_connections=_CONNECTIONS)
            store.open()
            self._store = store
        return self._store

    def close(self) -> None:
        """Let go of its connections."""
        if self._store is not None:
            self._store.close()


class NamedTypes:
    """The job types of the worker's client, which are other objects here: known by name."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def __contains__(self, item: object) -> bool:
        return isinstance(item, JobType) and item.name in self.names


class ChildAttempt:
    """The state of one attempt in a child: as the worker's, which it calls over the socket."""

    def __init__(
        self, run: messages.Run, connection: Connection, store: ChildStore, types: tuple[str, ...] = ()
    ) -> None:
        self.run = run
        self.job_types = NamedTypes(types)
        self.abort = AbortSignal(run.job.id)
        self.stopping = run.stopping
        self.over = False
        self.job_type: JobType[Any, Any] | None = None
        self.retry = RetryPolicy()
        self.answers: SimpleQueue[Finish] = SimpleQueue()
        self._connection = connection
        self._store = store
        self._cut: Callable[[], None] | None = None

    def cut(self) -> None:
        """End the transaction's connection."""
        cut = self._cut
        if cut is not None:
            cut()

    def check_event_loop(self) -> None:
        """No event loop here is the worker's."""
        raise CompletionMisuseError("in another process, use the blocks of an attempt with `with`, in a plain function")

    def worker_stopping(self) -> bool:
        """Whether the worker has been asked to stop."""
        return self.stopping

    def progressed(self, progress: str) -> None:
        """The worker writes it."""
        self._connection.send(messages.Progressed(progress))

    def finish(self, outcome: Any) -> Finish:
        """How the attempt ends with this outcome."""
        assert self.job_type is not None
        if self.abort.reason is AbortReason.TIMEOUT:
            self.abort.raise_if_set()
        return finishes.finish(self.run.job, self.job_type, self.retry, outcome)

    async def apply_after_attempt(self, finish: Finish) -> Finish:
        """Not here: ``check_event_loop`` goes first."""
        return finish

    def apply_after_attempt_in_thread(self, finish: Finish) -> Finish:
        """The finish as the worker's hook leaves it."""
        if not self.run.amends:
            return finish
        self._connection.send(messages.AttemptFinish(finish))
        return self.answers.get()

    def begin(self) -> AbstractAsyncContextManager[AsyncStoreTransaction]:
        """Not here: ``check_event_loop`` goes first."""
        raise CompletionMisuseError("there is no event loop of the worker in another process")

    @contextmanager
    def begin_in_thread(self) -> Iterator[StoreTransaction]:
        """A transaction that holds the job."""
        with self._store.opened().transaction(self.run.job) as transaction:
            yield _Announced(transaction, self._connection)

    def hold(self, cut: Callable[[], None]) -> None:
        """The transaction has the row locked."""
        self._cut = cut
        self._connection.send(messages.Held())

    def committed(self, finish: Finish, result: FinishResult) -> None:
        """The finish stands."""
        self._cut = None
        self._connection.send(messages.Committed(finish, result))

    def closing(self, task: asyncio.Task[None]) -> None:
        """Not here: ``check_event_loop`` goes first."""

    def settling(self, finish: Finish) -> AbstractContextManager[Any]:
        """Nothing: the worker traces."""
        return nullcontext()

    def end_block(self, doubtful: Finish | None) -> None:
        """The transaction is over, and the job has no finish, or one in doubt."""
        self._cut = None
        self._connection.send(messages.LetGo(doubtful))


class _Announced:
    """A transaction that says what it is about to commit: should the process die in it, the worker finds out."""

    def __init__(self, transaction: StoreTransaction, connection: Connection) -> None:
        self._transaction = transaction
        self._connection = connection

    @property
    def connection(self) -> Any:
        """The connection, inside the transaction."""
        return self._transaction.connection

    @property
    def locks_job(self) -> bool:
        """Whether nobody else can take the job meanwhile."""
        return self._transaction.locks_job

    def abort(self) -> None:
        """End the transaction's connection."""
        self._transaction.abort()

    def finish(self, finish: Finish, *, last: bool = False) -> FinishResult:
        """Write the finish inside the transaction, and never commit with it: the worker must hear of it before."""
        result = self._transaction.finish(finish)
        self._connection.send(messages.Committing(finish, result))
        return result
