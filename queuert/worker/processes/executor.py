"""Child processes for handlers that keep a processor busy, may crash, or must be killed: the worker's side."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing  # noqa: F401  (it makes a script's classes known under the name that they have in a child)
import pickle
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from queuert.jobs import AbortReason
from queuert.state.adapter import StateAdapter
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
from queuert.worker.processes import messages
from queuert.worker.processes.handle import ChildProcess
from queuert.worker.processors import Processor
from queuert.worker.timeouts import timer

_own_log = logging.getLogger("queuert.worker")

_REPORTED = 1.0
"""Seconds between telling a handler that its attempt is over, and killing it."""
_START = 60.0
"""Seconds that a child may take to import the handler, before a hard timeout begins to count."""
_END = 1.0
"""Seconds that an idle child has to end when the worker stops."""


class Host(Protocol):
    """What becomes of a transaction in the child, for whoever holds the lease."""

    def abort(self, reason: AbortReason) -> None:
        """The attempt must stop."""
        ...

    def killed(self, reason: AbortReason) -> None:
        """The child is killed for it."""
        ...

    def progressed(self, progress: str) -> None:
        """This is how far the attempt is."""
        ...

    def trace_context(self) -> str | None:
        """The context of this attempt, if it is traced."""
        ...

    def hold(self, cut: Any) -> None:
        """A transaction holds the job."""
        ...

    async def apply_after_attempt(self, finish: Finish) -> Finish:
        """The finish of a ``complete()`` block as it is to be written."""
        ...

    def committing(self, finish: Finish, result: FinishResult) -> None:
        """This finish is about to be committed."""
        ...

    def committed(self, finish: Finish, result: FinishResult) -> None:
        """It stands."""
        ...

    def end_block(self, doubtful: Finish | None) -> None:
        """It is over, and the job has no finish, or one whose commit was not answered."""
        ...


class HandlerProcesses:
    """As many children as handlers ran at once so far, each with one attempt at a time, and kept for the next."""

    def __init__(self, worker: str, state: StateAdapter, types: tuple[str, ...] = ()) -> None:
        self._worker = worker
        self._types = types
        self._state = state
        self._specs: dict[str, bytes] = {}
        self._children: set[ChildProcess] = set()
        self._idle: list[ChildProcess] = []
        self._stopping = False

    async def call(self, processor: Processor, attempt: Attempt[Any, Any], host: Host) -> Any:
        """Run a handler in a child; returns what it returned.

        Cancelling the caller kills the child.

        Raises:
            Exception: what the handler raised, as far as it can be sent.
            HandlerKilledError: the child was killed: the hard timeout, or the attempt's abort signal.
            HandlerCrashedError: the child died by itself.
        """
        run = messages.Run(
            self._spec(processor),
            attempt._claimed,
            pickle.dumps(tuple(attempt.blockers)),
            stopping=False,
            amends=processor.after_attempt is not None,
            trace_context=host.trace_context(),
        )
        while True:
            child = self._idle.pop() if self._idle else await self._start()
            if not child.alive:
                self._put_back(child, healthy=False)
                continue
            conversation = _ChildRun(child, attempt, host, processor.hard_timeout)
            used = child.used
            try:
                return await conversation.hold(run, stopping=self._stopping)
            except HandlerCrashedError:
                if conversation.began or not used:
                    raise
                # It died while it was idle, or of what the next one will tell: not this attempt's doing.
            finally:
                self._put_back(child, healthy=conversation.over)

    def _spec(self, processor: Processor) -> bytes:
        name = processor.job_type.name
        if name not in self._specs:
            self._specs[name] = pickled(name, processor.handler, processor.job_type, processor.retry)
        return self._specs[name]

    async def _start(self) -> ChildProcess:
        child = await ChildProcess.start(f"queuert-{self._worker}-process", self._setup())
        self._children.add(child)
        child.exited.add_done_callback(lambda _: self._forget(child))
        if self._stopping:
            child.send(messages.Stopping())
        return child

    def _setup(self) -> messages.Setup:
        try:
            state = pickle.dumps(self._state)
        except Exception:
            state = None  # Handlers without complete() need none; the others are told.
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

    def _put_back(self, child: ChildProcess, *, healthy: bool) -> None:
        if healthy and child.alive:
            child.used = True
            self._idle.append(child)
        else:
            child.kill()
            child.close()

    def _forget(self, child: ChildProcess) -> None:
        self._children.discard(child)
        if child in self._idle:
            self._idle.remove(child)
            child.close()

    def tell_stopping(self) -> None:
        """The worker has been asked to stop."""
        self._stopping = True
        for child in self._children:
            child.send(messages.Stopping())

    async def close(self) -> None:
        """End all children, by force if they take their time. Idempotent."""
        children, idle, self._idle = list(self._children), set(self._idle), []
        for child in children:
            if child in idle:
                child.hang_up()
            else:
                child.kill()
        if children:
            await asyncio.wait([child.exited for child in children], timeout=_END)
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
    """One attempt on one child."""

    def __init__(self, child: ChildProcess, attempt: Attempt[Any, Any], host: Host, hard_timeout: float | None) -> None:
        self.over = False
        self.began = False
        self._child = child
        self._attempt = attempt
        self._host = host
        self._hard_timeout = hard_timeout
        self._loop = asyncio.get_running_loop()
        self._killer: asyncio.TimerHandle | None = None
        self._killed = False
        self._heard_out = False

    async def hold(self, run: messages.Run, *, stopping: bool) -> Any:
        """Tell the child what to run, and hear it out."""
        longest = None if self._hard_timeout is None else self._hard_timeout + _START
        try:
            self._child.send(replace(run, stopping=stopping))
            self._attempt.abort.on_abort(self._on_abort)
            with timer(longest, self._out_of_time):
                began = await self._until_began()
            if began is not None:
                return self._end(began)
            with timer(self._hard_timeout, self._out_of_time):
                return self._end(await self._until_ended())
        finally:
            # An abort may come later, when another child runs the attempt.
            self._heard_out = True
            if self._killer is not None:
                self._killer.cancel()

    async def _until_began(self) -> object | None:
        """None once the handler runs; otherwise how it ended before it could."""
        while True:
            message = await self._next()
            if isinstance(message, messages.Began):
                self.began = True
                return None
            if isinstance(message, messages.Raised):
                return message

    async def _until_ended(self) -> object:
        while True:
            message = await self._next()
            match message:
                case messages.Returned() | messages.Raised():
                    return message
                case messages.Progressed():
                    self._host.progressed(message.progress)
                case messages.Held():
                    self._host.hold(self._cut)
                case messages.AttemptFinish():
                    self._child.send(messages.Amended(await self._host.apply_after_attempt(message.finish)))
                case messages.Committing():
                    self._host.committing(message.finish, message.result)
                case messages.Committed():
                    self._host.committed(message.finish, message.result)
                case messages.LetGo():
                    self._host.end_block(message.doubtful)
                case _:
                    pass

    async def _next(self) -> object:
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

    # --- stopping it --------------------------------------------------------------------------------------------------

    def _on_abort(self) -> None:
        with suppress(RuntimeError):  # The loop is closed, and the child gone.
            self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        reason = self._attempt.abort.reason
        if self._heard_out or self._killed or reason is None:
            return
        self._child.send(messages.Abort(reason))
        if reason is not AbortReason.TIMEOUT:
            self._killer = self._loop.call_later(_REPORTED, self._kill, reason)

    def _out_of_time(self) -> None:
        self._host.abort(AbortReason.TIMEOUT)
        self._kill(AbortReason.TIMEOUT)

    def _kill(self, reason: AbortReason) -> None:
        if not self.over and not self._killed:
            self._killed = True
            self._child.kill()
            self._host.killed(reason)

    def _cut(self) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._child.send, messages.Cut())


def _exception(message: messages.Raised) -> BaseException:
    if message.exception is not None:
        with suppress(Exception):
            found = pickle.loads(message.exception)
            if isinstance(found, BaseException):
                return found
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
