"""The state of an attempt in a child process: the socket to the worker, a store of its own, its transactions."""

from __future__ import annotations

import asyncio
import pickle
import socket
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    suppress,
)
from datetime import datetime
from queue import SimpleQueue
from typing import Any, NoReturn

from queuert.errors import CompletionMisuseError, DefinitionError
from queuert.job_types import JobType
from queuert.jobs import AbortReason, Job
from queuert.observability.context import fields_of
from queuert.policies import RetryPolicy
from queuert.state.adapter import StateAdapter
from queuert.state.async_store import AsyncStoreTransaction
from queuert.state.paging import PageRequest
from queuert.state.steps import EventWait, NewStep, StepRecord
from queuert.state.sync_store import Store, StoreTransaction
from queuert.state.types import Finish, FinishResult
from queuert.worker import finishes, forks
from queuert.worker.attempt import AbortSignal
from queuert.worker.lifespan import GroupLifespan, entry_error, no_resources, opened
from queuert.worker.phases import PhaseReport
from queuert.worker.processes import messages
from queuert.worker.start_options import StartOptions, start_options

_CONNECTIONS = 2
"""One for ``complete()``, one to query whether a commit succeeded whose answer was lost."""


class Connection:
    """The child's end of the socket. Any thread may send messages; one receives them."""

    def __init__(self, sock: socket.socket) -> None:
        sock.set_inheritable(False)
        self._socket = sock
        self._file = sock.makefile("rb")
        self._lock = threading.Lock()

    def send(self, message: object) -> None:
        """Send a message. If the worker has ended, the message is lost."""
        data = messages.packed(message)
        with self._lock, suppress(OSError):
            self._socket.sendall(data)

    def receive(self) -> object | None:
        """Return the next message; None if the worker has closed the socket."""
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
    """The store of a child process, opened by the first handler that needs it."""

    def __init__(self, state: bytes | None) -> None:
        self._state = state
        self._store: Store | None = None

    def get(self) -> Store:
        """Return the store, opened by the first call.

        Raises:
            CompletionMisuseError: the state adapter cannot be pickled.
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
        """Close its connections."""
        if self._store is not None:
            self._store.close()


class ChildLifespan:
    """A lifespan in a child process: a plain one in the thread of the handlers, another one in an event loop.

    That loop has a thread of its own, and runs until the lifespan is left.

    Raises:
        LifespanError: it could not be entered.
    """

    def __init__(self, lifespan: GroupLifespan) -> None:
        self.resources: Any = None
        self._stack = ExitStack()
        manager = opened(lifespan)
        try:
            if isinstance(manager, AbstractAsyncContextManager):
                self.resources = self._stack.enter_context(_in_event_loop(manager))
            else:
                self.resources = self._stack.enter_context(manager)
        except BaseException as error:
            raise entry_error(lifespan, error) from error

    def leave(self) -> None:
        """Leave it. What it raises is raised."""
        self._stack.close()


@contextmanager
def _in_event_loop(manager: AbstractAsyncContextManager[Any]) -> Iterator[Any]:
    entered: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, Any]] = Future()
    left: Future[None] = Future()

    async def serve() -> None:
        leave = asyncio.Event()
        async with manager as resources:
            entered.set_result((asyncio.get_running_loop(), leave, resources))
            await leave.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            (left if entered.done() else entered).set_exception(error)
        else:
            left.set_result(None)

    threading.Thread(target=run, name="queuert-lifespan", daemon=True).start()
    loop, leave, resources = entered.result()
    try:
        yield resources
    finally:
        with suppress(RuntimeError):  # It has ended early.
            loop.call_soon_threadsafe(leave.set)
        left.result()


class NamedTypes:
    """The job types of the worker's client, by name, since they are other objects in this process."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def get(self, name: str) -> JobType[Any, Any] | None:
        """Return None: the job types themselves are in the worker's process."""
        return None

    def __contains__(self, item: object) -> bool:
        return isinstance(item, JobType) and item.name in self.names


class ChildAttempt:
    """The state of one attempt in a child process. It sends to the worker what ``AttemptState`` does there."""

    def __init__(self, run: messages.Run, connection: Connection, store: ChildStore, setup: messages.Setup) -> None:
        self.run = run
        self.job_types = NamedTypes(setup.types)
        self._worker = setup.worker
        self.abort = AbortSignal(run.job.id)
        self.stopping = run.stopping
        self.over = False
        self.job_type: JobType[Any, Any] | None = None
        self.retry = RetryPolicy()
        self.finishes_to_write: SimpleQueue[Finish] = SimpleQueue()
        self._has_recorded_progress = False
        self.written_phases: SimpleQueue[messages.PhaseWritten] = SimpleQueue()
        self.lifespan: ChildLifespan | None = None
        self._connection = connection
        self._generation = forks.generation
        self._store = store
        self._abort_transaction: Callable[[], None] | None = None

    def abort_transaction(self) -> None:
        """Close the connection of the open transaction, if there is one."""
        abort_transaction = self._abort_transaction
        if abort_transaction is not None:
            abort_transaction()

    def resources(self) -> Any:
        """Return what the lifespan of the processors has yielded in this process."""
        if self.lifespan is None:
            raise no_resources()
        return self.lifespan.resources

    def client(self) -> NoReturn:
        """Raise DefinitionError: the worker's client is in another process."""
        raise DefinitionError("the worker's client is in another process: make a Client in the lifespan")

    async def read_start(self) -> StartOptions:
        """Not called: ``check_event_loop`` raises before."""
        return self.read_start_in_thread()

    def read_start_in_thread(self) -> StartOptions:
        """Read the attributes of the chain and the limit key of the job, on a connection of this process."""
        store, job = self._store.get(), self.run.job
        [chain], [stored] = store.get_chains([job.chain_id]), store.get_jobs([job.id])
        return start_options(job.id, chain, stored)

    async def read_chain_jobs(self, page: PageRequest) -> Sequence[Job]:
        """Not called: ``check_event_loop`` raises before."""
        return self.read_chain_jobs_in_thread(page)

    def read_chain_jobs_in_thread(self, page: PageRequest) -> Sequence[Job]:
        """Read jobs of the chain, the earliest first, on a connection of this process."""
        return self._store.get().list_chain_jobs(self.run.job.chain_id, page).items[::-1]

    async def get_steps(self) -> list[StepRecord]:
        """Not called: ``check_event_loop`` raises before."""
        return self.get_steps_in_thread()

    def get_steps_in_thread(self) -> list[StepRecord]:
        """Read the recorded steps of the job, on a connection of this process."""
        return self._store.get().get_steps(self.run.job.id)

    async def record_step(self, step: NewStep) -> StepRecord:
        """Not called: ``check_event_loop`` raises before."""
        return self.record_step_in_thread(step)

    def record_step_in_thread(self, step: NewStep) -> StepRecord:
        """Record a step of the job, on a connection of this process. The worker records a phase."""
        if step.progress is not None:
            record: StepRecord = self._written(messages.RecordPhase(step))
            return record
        return self._store.get().record_step(self.run.job.lease, step)

    async def get_progress(self) -> str | None:
        """Not called: ``check_event_loop`` raises before."""
        return self.get_progress_in_thread()

    def get_progress_in_thread(self) -> str | None:
        """Read the progress of the job as it is stored, on a connection of this process."""
        return self._store.get().get_progress(self.run.job.id)

    async def begin_phase(self, progress: str) -> datetime:
        """Not called: ``check_event_loop`` raises before."""
        return self.begin_phase_in_thread(progress)

    def begin_phase_in_thread(self, progress: str) -> datetime:
        """Let the worker store the progress of a phase that begins."""
        answer: datetime = self._written(messages.BeginPhase(progress))
        return answer

    def report_phase(self, report: PhaseReport) -> None:
        """Let the worker report a phase to the observers."""
        self._connection.send(messages.PhaseReported(report))

    def waits_for(self, job_types: Collection[str]) -> None:
        """Let the worker know that the handler waits for chains that stand at jobs of these types.

        Not what outlives it, and not a process that it has forked: two that write to one socket garble both.
        """
        if not self.over and forks.generation == self._generation:
            self._connection.send(messages.WaitsFor(frozenset(job_types)))

    def fields(self) -> dict[str, object]:
        """Return the fields of the log records of its handler."""
        return fields_of(self._worker, self.run.job)

    def _written(self, request: messages.BeginPhase | messages.RecordPhase) -> Any:
        """Return what the worker has written: it also has progress to write, which must not come later."""
        self._connection.send(request)
        written = self.written_phases.get()
        if written.error is not None:
            raise pickle.loads(written.error)
        return written.answer

    async def wait_for_event(self, wait: EventWait) -> StepRecord:
        """``wait_for_event_in_thread``: a child process has its event loop to itself."""
        return self.wait_for_event_in_thread(wait)

    def wait_for_event_in_thread(self, wait: EventWait) -> StepRecord:
        """Record a wait of the job, on a connection of this process, and try to answer it."""
        return self._store.get().wait_for_event(self.run.job.lease, wait)

    def check_sleep(self) -> None:
        """Do nothing: handlers in child processes have no batches."""

    def check_process(self) -> None:
        """Raise CompletionMisuseError in a process that the handler forked."""
        forks.check_process(self._generation)

    def check_event_loop(self) -> None:
        """Raise CompletionMisuseError: the worker's event loop is in another process."""
        raise CompletionMisuseError("in another process, use the blocks of an attempt with `with`, in a plain function")

    def in_event_loop(self) -> bool:
        """Return False: the worker's event loop is in another process."""
        return False

    def worker_stopping(self) -> bool:
        """Whether the worker has been asked to stop."""
        return self.stopping

    def record_progress(self, progress: str) -> None:
        """Send progress to the worker, which writes it."""
        self.check_process()
        self._has_recorded_progress = True
        self._connection.send(messages.Progressed(progress))

    def finish(self, outcome: Any) -> Finish:
        """Return the finish for an outcome."""
        assert self.job_type is not None
        if self.abort.reason is AbortReason.TIMEOUT:
            self.abort.raise_if_set()
        return finishes.finish(self.run.job, self.job_type, self.retry, outcome)

    async def finish_to_write(self, finish: Finish) -> Finish:
        """Not called: ``check_event_loop`` raises before."""
        return finish

    def finish_to_write_in_thread(self, finish: Finish) -> Finish:
        """Let the worker add the changes of ``after_attempt``, and the progress that it has not written yet."""
        if not (self.run.has_after_attempt or self._has_recorded_progress):
            return finish
        self._connection.send(messages.GetFinishToWrite(finish))
        return self.finishes_to_write.get()

    def begin(self) -> AbstractAsyncContextManager[AsyncStoreTransaction]:
        """Not called: ``check_event_loop`` raises before."""
        raise CompletionMisuseError("there is no event loop of the worker in another process")

    @contextmanager
    def begin_in_thread(self) -> Iterator[StoreTransaction]:
        """Yield a transaction that locks the job."""
        with self._store.get().transaction(self.run.job) as transaction:
            yield _ReportedTransaction(transaction, self._connection)

    def pause_renewal(self, abort_transaction: Callable[[], None]) -> None:
        """The transaction has locked the job, so its lease cannot be renewed."""
        self._abort_transaction = abort_transaction
        self._connection.send(messages.RenewalPaused())

    def committed(self, finish: Finish, result: FinishResult) -> None:
        """The finish is committed."""
        self._abort_transaction = None
        self._connection.send(messages.Committed(finish, result))

    def closing(self, task: asyncio.Task[None]) -> None:
        """Not called: ``check_event_loop`` raises before."""

    def settling(self, finish: Finish) -> AbstractContextManager[Any]:
        """Return a context manager that does nothing, since the worker traces the write."""
        return nullcontext()

    def end_block(self, indeterminate: Finish | None) -> None:
        """The transaction has ended without a finish, or with an indeterminate one."""
        self._abort_transaction = None
        self._connection.send(messages.BlockEnded(indeterminate))


class _ReportedTransaction:
    """A transaction that reports its finish before the commit: if the process dies, the worker queries the result."""

    def __init__(self, transaction: StoreTransaction, connection: Connection) -> None:
        self._transaction = transaction
        self._connection = connection

    @property
    def connection(self) -> Any:
        """The connection, inside the transaction."""
        return self._transaction.connection

    @property
    def locks_job(self) -> bool:
        """Whether nobody else can claim the job meanwhile."""
        return self._transaction.locks_job

    def abort(self) -> None:
        """End the transaction's connection."""
        self._transaction.abort()

    def finish(self, finish: Finish, *, last: bool = False) -> FinishResult:
        """Write the finish without committing, even if it is the last write: the worker must know it before."""
        result = self._transaction.finish(finish)
        self._connection.send(messages.Committing(finish, result))
        return result

    def record_step(self, step: NewStep) -> StepRecord:
        """Record a step. If the process dies during the commit, the next attempt finds out."""
        return self._transaction.record_step(step)
