"""Runs handlers in child processes, for work that keeps a processor busy, may crash, or must be killed.

This is the worker's side; ``child.py`` is the child's.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing  # noqa: F401  (it makes a script's classes known under the name that they have in a child)
import pickle
import sys
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

from queuert.jobs import AbortReason
from queuert.state.adapter import StateAdapter
from queuert.state.steps import NewStep, StepRecord
from queuert.state.types import Finish, FinishResult
from queuert.worker.attempt import Attempt
from queuert.worker.executors import (
    HandlerCrashedError,
    HandlerKilledError,
    HandlerProcessError,
    RemoteCauseError,
    death,
    pickled,
)
from queuert.worker.phases import PhaseReport
from queuert.worker.processes import messages
from queuert.worker.processes.handle import ChildProcess
from queuert.worker.processors import Processor
from queuert.worker.timeouts import timer

_own_log = logging.getLogger("queuert.worker")

_ABORT_TIMEOUT = 1.0
"""Seconds that an aborted handler has to end before its process is killed."""
_START_TIMEOUT = 60.0
"""Seconds that a child may take to import the handler, before its hard timeout begins."""


class AttemptHost(Protocol):
    """What an attempt in a child process needs of the worker."""

    def abort(self, reason: AbortReason) -> None:
        """Abort the attempt."""
        ...

    def handler_began(self) -> None:
        """The handler has begun in the child."""
        ...

    def killed(self, reason: AbortReason) -> None:
        """The child is killed, for this reason."""
        ...

    def record_progress(self, progress: str) -> None:
        """Write progress, as it is stored."""
        ...

    async def begin_phase(self, progress: str) -> datetime:
        """Store the progress of a phase that begins, under the lease."""
        ...

    async def record_step(self, step: NewStep) -> StepRecord:
        """Record a step of the job under the lease."""
        ...

    def report_phase(self, report: PhaseReport) -> None:
        """Report a phase to the observers."""
        ...

    def waits_for(self, job_types: Collection[str]) -> None:
        """Take note that the handler waits for chains that stand at jobs of these types, and keeps its slot."""
        ...

    def trace_context(self) -> str | None:
        """Return the trace context of this attempt, if it is traced."""
        ...

    def pause_renewal(self, abort_transaction: Callable[[], None]) -> None:
        """A transaction has locked the job, so its lease cannot be renewed."""
        ...

    async def finish_to_write(self, finish: Finish) -> Finish:
        """Return the finish of a block with the changes of ``after_attempt``, and the last progress of the attempt."""
        ...

    def committing(self, finish: Finish, result: FinishResult) -> None:
        """The child commits this finish next."""
        ...

    def committed(self, finish: Finish, result: FinishResult) -> None:
        """The finish is committed."""
        ...

    def end_block(self, indeterminate: Finish | None) -> None:
        """The transaction has ended without a finish, or with one whose commit was not answered."""
        ...


class HandlerProcesses:
    """The child processes of a worker: as many as handlers ran at once so far. Each runs one attempt at a time."""

    def __init__(self, worker: str, state: StateAdapter, types: tuple[str, ...] = ()) -> None:
        self._worker = worker
        self._types = types
        self._state = state
        self._specs: dict[str, bytes] = {}
        self._children: set[ChildProcess] = set()
        self._idle: list[ChildProcess] = []
        self._stopping = False

    async def call(self, processor: Processor, attempt: Attempt[Any, Any], host: AttemptHost) -> Any:
        """Run a handler in a child, and return what it returns. If the caller is cancelled, the child is killed.

        Raises:
            Exception: what the handler raised, if it can be pickled.
            HandlerProcessError: what the handler raised, if it cannot be pickled.
            HandlerKilledError: the child was killed: because of the hard timeout, or of an abort.
            HandlerCrashedError: the child died by itself.
        """
        run = messages.Run(
            self._spec(processor),
            attempt._claimed,
            pickle.dumps(tuple(attempt.blockers)),
            stopping=False,
            has_after_attempt=processor.after_attempt is not None,
            trace_context=host.trace_context(),
        )
        while True:
            child = self._idle.pop() if self._idle else await self._start()
            if not child.alive:
                self._return_child(child, healthy=False)
                continue
            child_run = _ChildRun(child, attempt, host, processor.hard_timeout)
            used = child.used
            try:
                return await child_run.run(run, stopping=self._stopping)
            except HandlerCrashedError:
                if child_run.began or not used:
                    raise
                # It died while it was idle, or before the handler began: another child runs the attempt.
            finally:
                self._return_child(child, healthy=child_run.over)

    def _spec(self, processor: Processor) -> bytes:
        name = processor.job_type.name
        if name not in self._specs:
            self._specs[name] = pickled(name, *processor.child_parts)
        return self._specs[name]

    async def _start(self) -> ChildProcess:
        child = await ChildProcess.start(f"queuert-{self._worker}-process", self._setup())
        self._children.add(child)
        child.exited.add_done_callback(lambda _: self._remove_child(child))
        if self._stopping:
            child.send(messages.Stopping())
        return child

    def _setup(self) -> messages.Setup:
        try:
            state = pickle.dumps(self._state)
        except Exception:
            state = None  # Handlers without complete() need none; complete() raises an error.
        levels = {
            name: logger.level
            for name, logger in logging.root.manager.loggerDict.items()
            if isinstance(logger, logging.Logger) and logger.level
        }
        return messages.Setup(
            search_path=list(sys.path),
            arguments=list(sys.argv),
            main=_how_to_import_main(),
            levels={"": logging.root.level, **levels},
            worker=self._worker,
            types=self._types,
            state=state,
        )

    def _return_child(self, child: ChildProcess, *, healthy: bool) -> None:
        if healthy and child.alive:
            child.used = True
            self._idle.append(child)
        else:
            child.kill()
            child.close()

    def _remove_child(self, child: ChildProcess) -> None:
        self._children.discard(child)
        if child in self._idle:
            self._idle.remove(child)
            child.close()

    def send_stopping(self) -> None:
        """Tell all children that the worker has been asked to stop."""
        self._stopping = True
        for child in self._children:
            child.send(messages.Stopping())

    def kill(self) -> None:
        """Kill all children, since nobody reads what they send any more. From any thread."""
        for child in tuple(self._children):
            child.kill()

    async def close(self, seconds: float) -> None:
        """End all children: busy ones are killed at once, idle ones leave their lifespans, and are killed after so
        many seconds. Idempotent."""
        children, idle, self._idle = list(self._children), set(self._idle), []
        for child in children:
            if child in idle:
                child.send(messages.End())
            else:
                child.kill()
        if children:
            await asyncio.wait([child.exited for child in children], timeout=seconds)
        for child in children:
            child.kill()
            await asyncio.wait([child.exited])
            child.close()


def _how_to_import_main() -> dict[str, Any]:
    main = sys.modules["__main__"]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name is not None:
        return {"init_main_from_name": name}
    path = getattr(main, "__file__", None)
    return {} if path is None else {"init_main_from_path": path}


class _ChildRun:
    """The run of one attempt in one child."""

    def __init__(
        self, child: ChildProcess, attempt: Attempt[Any, Any], host: AttemptHost, hard_timeout: float | None
    ) -> None:
        self.over = False
        """Whether the attempt has ended, so that the child can run another one."""
        self.began = False
        """Whether the handler has begun."""
        self._child = child
        self._attempt = attempt
        self._host = host
        self._hard_timeout = hard_timeout
        self._loop = asyncio.get_running_loop()
        self._kill_timer: asyncio.TimerHandle | None = None
        self._killed = False
        self._detached = False

    async def run(self, run: messages.Run, *, stopping: bool) -> Any:
        """Send the attempt to the child, handle its messages, and return what the handler returns."""
        start_timeout = None if self._hard_timeout is None else self._hard_timeout + _START_TIMEOUT
        try:
            self._child.send(replace(run, stopping=stopping))
            self._attempt.abort.on_abort(self._on_abort)
            with timer(start_timeout, self._on_hard_timeout):
                early_end = await self._wait_began()
            if early_end is not None:
                return self._end(early_end)
            with timer(self._hard_timeout, self._on_hard_timeout):
                return self._end(await self._wait_ended())
        finally:
            # A later abort must not reach this child, which may run another attempt.
            self._detached = True
            if self._kill_timer is not None:
                self._kill_timer.cancel()

    async def _wait_began(self) -> object | None:
        """Wait until the handler begins. Return its last message if the attempt ends before, else None."""
        while True:
            message = await self._receive()
            if isinstance(message, messages.Began):
                self.began = True
                self._host.handler_began()
                return None
            if isinstance(message, messages.Raised):
                return message

    async def _wait_ended(self) -> object:
        """Handle the messages of the child, and return the last one."""
        while True:
            message = await self._receive()
            match message:
                case messages.Returned() | messages.Raised():
                    return message
                case messages.Progressed():
                    self._host.record_progress(message.progress)
                case messages.BeginPhase():
                    await self._write_phase(self._host.begin_phase(message.progress))
                case messages.RecordPhase():
                    await self._write_phase(self._host.record_step(message.step))
                case messages.PhaseReported():
                    self._host.report_phase(message.report)
                case messages.WaitsFor():
                    self._host.waits_for(message.job_types)
                case messages.RenewalPaused():
                    self._host.pause_renewal(self._abort_transaction)
                case messages.GetFinishToWrite():
                    finish = await self._host.finish_to_write(message.finish)
                    self._child.send(messages.FinishToWrite(finish))
                case messages.Committing():
                    self._host.committing(message.finish, message.result)
                case messages.Committed():
                    self._host.committed(message.finish, message.result)
                case messages.BlockEnded():
                    self._host.end_block(message.indeterminate)
                case _:
                    pass

    async def _write_phase(self, writing: Awaitable[datetime | StepRecord]) -> None:
        """Write for the child, after the progress that it has sent before."""
        try:
            self._child.send(messages.PhaseWritten(await writing))
        except Exception as error:
            self._child.send(messages.PhaseWritten(None, pickle.dumps(error)))

    async def _receive(self) -> object:
        message = await self._child.receive()
        if message is None:
            code = await self._child.end()
            if self._killed:
                raise HandlerKilledError("the process of the handler was killed")
            raise HandlerCrashedError(death(code))
        if isinstance(message, messages.Logged):
            _log(message.record)
        return message

    def _end(self, message: object) -> Any:
        self.over = not self._killed
        if isinstance(message, messages.Returned):
            return pickle.loads(message.outcome)
        assert isinstance(message, messages.Raised)
        raise _exception(message) from RemoteCauseError(message.error, message.may_retry)

    # --- abort --------------------------------------------------------------------------------------------------------

    def _on_abort(self) -> None:
        with suppress(RuntimeError):  # The loop is closed, so the child has ended.
            self._loop.call_soon_threadsafe(self._send_abort)

    def _send_abort(self) -> None:
        reason = self._attempt.abort.reason
        if self._detached or self._killed or reason is None:
            return
        self._child.send(messages.Abort(reason))
        if reason is not AbortReason.TIMEOUT:
            self._kill_timer = self._loop.call_later(_ABORT_TIMEOUT, self._kill, reason)

    def _on_hard_timeout(self) -> None:
        self._host.abort(AbortReason.TIMEOUT)
        self._kill(AbortReason.TIMEOUT)

    def _kill(self, reason: AbortReason) -> None:
        if not self.over and not self._killed:
            self._killed = True
            self._child.kill()
            self._host.killed(reason)

    def _abort_transaction(self) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._child.send, messages.AbortTransaction())


def _exception(message: messages.Raised) -> BaseException:
    if message.exception is not None:
        with suppress(Exception):
            exception = pickle.loads(message.exception)
            if isinstance(exception, BaseException):
                return exception
    return HandlerProcessError(str(message.error))


def _log(data: bytes) -> None:
    try:
        record: logging.LogRecord = pickle.loads(data)
    except Exception as error:
        _own_log.warning("a log record of a handler's process could not be read: %r", error)
        return
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
