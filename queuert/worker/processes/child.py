"""The main program of a handler's child process. The worker does not import it."""

from __future__ import annotations

import copy
import io
import logging
import logging.handlers
import multiprocessing.spawn
import pickle
import signal
import socket
import sys
import threading
from contextlib import AbstractContextManager, nullcontext, suppress
from inspect import isawaitable, iscoroutine
from queue import SimpleQueue
from typing import Any

from queuert.job_types import JobType
from queuert.observability import context
from queuert.policies import RetryPolicy
from queuert.worker import executors, finishes, forks, handler_signature
from queuert.worker.attempt import Attempt
from queuert.worker.django_connections import close_old_connections
from queuert.worker.lifespan import GroupLifespan
from queuert.worker.processes import messages
from queuert.worker.processes.child_attempt import ChildAttempt, ChildLifespan, ChildStore, Connection
from queuert.worker.processes.guard import die_with, kill_group
from queuert.worker.steps import AttemptSleeping

_log = logging.getLogger("queuert.worker")


def main(fd: int, parent: int) -> None:
    """Run attempts for the worker with this process id, over this socket, until the worker closes it."""
    die_with(parent, fd)
    forks.default_in_children((signal.SIGTERM, signal.SIGINT))
    for number in (signal.SIGTERM, signal.SIGINT):
        # The worker decides when this process ends. Not SIG_IGN, which programs that the handler starts would inherit.
        signal.signal(number, lambda *_: None)
    connection = Connection(socket.socket(fileno=fd))
    setup = connection.receive()
    if isinstance(setup, messages.Setup):
        _Child(connection, setup).serve()


class _Child:
    """Runs one attempt after the other in the main thread; a second thread receives messages."""

    def __init__(self, connection: Connection, setup: messages.Setup) -> None:
        self._connection = connection
        self._setup = setup
        self._store = ChildStore(setup.state)
        self._work: SimpleQueue[ChildAttempt | None] = SimpleQueue()
        self._current: ChildAttempt | None = None
        self._specs: dict[bytes, tuple[Any, JobType[Any, Any], RetryPolicy, GroupLifespan | None]] = {}
        self._lifespans: dict[GroupLifespan, ChildLifespan] = {}
        self._main_imported = False

    def serve(self) -> None:
        """Run attempts until the worker ends this process or closes the socket; then leave the lifespans."""
        sys.path[:] = self._setup.search_path
        sys.argv[:] = self._setup.arguments
        _send_logs(self._connection, self._setup.levels)
        threading.Thread(target=self._listen, name="queuert-listener", daemon=True).start()
        while (attempt_state := self._work.get()) is not None:
            close_old_connections()
            result = self._run(attempt_state)
            for stream in (sys.stdout, sys.stderr):
                with suppress(Exception):  # The handler may have closed it.
                    stream.flush()
            attempt_state.over = True
            self._connection.send(result)
            close_old_connections()
        while self._lifespans:
            _, lifespan = self._lifespans.popitem()
            try:
                forks.call(lifespan.leave)
            except Exception:
                _log.exception("a lifespan raised when its process ended")
        self._store.close()

    def _listen(self) -> None:
        while (message := self._connection.receive()) is not None:
            match message:
                case messages.Run():
                    self._current = ChildAttempt(message, self._connection, self._store, self._setup)
                    self._work.put(self._current)
                case messages.Abort() if self._current is not None:
                    self._current.abort.set(message.reason)
                case messages.AbortTransaction() if self._current is not None:
                    self._current.abort_transaction()
                case messages.FinishToWrite() if self._current is not None:
                    self._current.finishes_to_write.put(message.finish)
                case messages.PhaseWritten() if self._current is not None:
                    self._current.written_phases.put(message)
                case messages.End():
                    self._work.put(None)
                case messages.Stopping() if self._current is not None:
                    self._current.stopping = True
                case _:
                    pass
        if self._current is not None and not self._current.over:
            # The worker is gone: the lease is not renewed, and the result would be lost.
            kill_group()
        self._work.put(None)

    # --- one attempt --------------------------------------------------------------------------------------------------

    def _run(self, attempt_state: ChildAttempt) -> messages.Returned | messages.Raised:
        retry, handler = RetryPolicy(), None
        try:
            handler, job_type, retry, lifespan = self._spec(attempt_state.run.spec)
            attempt_state.lifespan = None if lifespan is None else self._entered(lifespan)
            try:
                return messages.Returned(_pickled_outcome(self._outcome(attempt_state, handler, job_type, retry)))
            except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
                raise RuntimeError(f"the handler raised {type(error).__name__}: {error}") from error
        except BaseException as error:
            raised = handler_signature.call_error(attempt_state.run.job.type, handler, error) or error
            return messages.Raised(_pickled_exception(raised), finishes.error_of(raised), retry.allows_after(raised))

    def _outcome(
        self, attempt_state: ChildAttempt, handler: Any, job_type: JobType[Any, Any], retry: RetryPolicy
    ) -> Any:
        job = attempt_state.run.job
        attempt_state.job_type, attempt_state.retry = job_type, retry
        attempt = Attempt(
            job_type=job_type,
            claimed=job,
            input=job_type.decode_input(job.input),
            worker=self._setup.worker,
            abort=attempt_state.abort,
            blockers=self._loads(attempt_state.run.blockers),
            host=attempt_state,
        )
        with context.bind(attempt_state):
            self._connection.send(messages.Began())
            with _traced(attempt_state.run.trace_context):
                generation = forks.generation
                try:
                    outcome = handler(attempt)
                except AttemptSleeping as sleeping:
                    outcome = sleeping.outcome
                finally:
                    if forks.generation != generation:
                        forks.end_child()
        if isawaitable(outcome):
            if iscoroutine(outcome):
                outcome.close()
            raise TypeError("the handler returned an awaitable: executor='process' runs plain functions")
        return outcome

    def _entered(self, lifespan: GroupLifespan) -> ChildLifespan:
        """Return the lifespan, entered by the first attempt that needs it."""
        if lifespan not in self._lifespans:
            self._lifespans[lifespan] = forks.call(ChildLifespan, lifespan)
        return self._lifespans[lifespan]

    def _spec(self, spec: bytes) -> tuple[Any, JobType[Any, Any], RetryPolicy, GroupLifespan | None]:
        if spec not in self._specs:
            self._specs[spec] = self._loads(spec)
        return self._specs[spec]

    def _loads(self, data: bytes) -> Any:
        return _Unpickler(data, self._import_main).load()

    def _import_main(self) -> None:
        """Import the worker's script, if it defines something that is needed."""
        if not self._main_imported:
            self._main_imported = True
            executors.importing_main(True)
            try:
                multiprocessing.spawn.prepare(dict(self._setup.main))
            finally:
                executors.importing_main(False)


def _traced(trace_context: str | None) -> AbstractContextManager[None]:
    if trace_context is None:
        return nullcontext()
    from queuert.observability.otel_tracing import attached  # The import is slow, and most attempts need none.

    return attached(trace_context)


def _pickled_outcome(outcome: Any) -> bytes:
    try:
        return pickle.dumps(outcome)
    except Exception as error:
        message = f"what the handler returned cannot be pickled, to be sent back from its process: {error}"
        raise TypeError(message) from error


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, import_main: Any) -> None:
        super().__init__(io.BytesIO(data))
        self._import_main = import_main

    def find_class(self, module_name: str, global_name: str) -> Any:
        if module_name == "__main__":
            self._import_main()
        return super().find_class(module_name, global_name)


def _pickled_exception(error: BaseException) -> bytes | None:
    """Return the pickled exception; None if it cannot be pickled and unpickled."""
    try:
        data = pickle.dumps(error)
        return data if type(pickle.loads(data)) is type(error) else None
    except Exception:
        return None


# --- logging ----------------------------------------------------------------------------------------------------------


class _WorkerLogHandler(logging.handlers.QueueHandler):
    """Sends records to the worker's loggers, with the fields of the attempt.

    Processes that a handler forks write theirs to stderr: two that write to one socket garble what both have to say,
    and its lock may have been taken at the moment of the fork.
    """

    def __init__(self, connection: Connection) -> None:
        super().__init__(SimpleQueue())  # Not used: the socket is the queue.
        self._connection = connection
        self._generation = forks.generation
        self._in_children = logging.StreamHandler()
        self._in_children.setFormatter(logging.Formatter(context.LINE))
        self.addFilter(context.ContextFilter())

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record; write it in a forked child."""
        if forks.generation == self._generation:
            super().emit(record)
        else:
            self._in_children.handle(record)

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Return the record to send: formatted, unless its message is a dict for structlog's formatter."""
        if not isinstance(record.msg, dict):
            prepared: logging.LogRecord = super().prepare(record)
            return prepared
        copied = copy.copy(record)
        copied.exc_info = None
        return copied

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send a record. If its extras cannot be pickled, their ``repr`` is sent."""
        try:
            data = pickle.dumps(record)
        except Exception:
            for name, value in vars(record).items():
                vars(record)[name] = _plain(value)
            data = pickle.dumps(record)
        self._connection.send(messages.Logged(data))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    return value if isinstance(value, str | int | float | None) else repr(value)


def _send_logs(connection: Connection, levels: dict[str, int]) -> None:
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger().addHandler(_WorkerLogHandler(connection))
