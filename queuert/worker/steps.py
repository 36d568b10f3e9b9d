"""Durable steps of an attempt: each is recorded with its result, and later attempts of the job get that result.

The methods of the attempt, their replay of what earlier attempts recorded, and the rules of names and order.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    TypeVarTuple,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from queuert.errors import (
    CapabilityMissingError,
    ConfigurationError,
    DefinitionError,
    EventTimeoutError,
    PayloadError,
    StepLimitError,
    StepMismatchError,
    StepMisuseError,
    UnsupportedConnectionError,
)
from queuert.job_types import JobType
from queuert.outcomes import Snooze, pause_until
from queuert.payloads import PayloadCodec
from queuert.policies import checked_ttl
from queuert.run_at import RunAt
from queuert.state.steps import EventWait, NewStep, StepRecord
from queuert.state.types import ClaimedJob
from queuert.steps import step_codec
from queuert.texts import check_step_name, check_text
from queuert.worker import forks
from queuert.worker.modes import TwoModes
from queuert.worker.phases import PhaseTracker
from queuert.worker.transaction_blocks import BlockHost, BlockTracker, GuardedBlock, GuardedTransaction

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from queuert.state import AsyncStoreTransaction, StoreTransaction

MAX_STEPS = 1_000
"""The most steps of a job."""

MAX_STEP_BYTES = 16 * 1024 * 1024
"""The most characters that the results of all steps of a job may have together: the next attempt reads all of them."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


_Kind: TypeAlias = Literal["a function", "a phase", "a sleep", "a wait"]


class AttemptSleeping(BaseException):
    """Ends an attempt that sleeps or waits for an event: the worker snoozes the job. Do not catch it."""

    def __init__(self, seconds: float, wait: tuple[str, datetime] | None = None) -> None:
        super().__init__(f"the attempt sleeps for {seconds:g} more seconds: the worker ends it, and runs the job then")
        self.seconds = seconds
        """Seconds until the sleep ends, or until the wait times out."""
        self.wait = wait
        """Of a wait for an event: its name, and when the wait times out."""

    @property
    def outcome(self) -> Snooze:
        """The outcome of the attempt."""
        if self.wait is not None:
            event, timeout_at = self.wait
            return Snooze(RunAt(moment=timeout_at), waits_for_event=event)
        return Snooze(RunAt(delay=self.seconds))

    def __reduce__(self) -> tuple[Any, ...]:
        return AttemptSleeping, (self.seconds, self.wait)


def sleeping_in(error: BaseException) -> AttemptSleeping | None:
    """Return the end of an attempt that sleeps, also out of the group that a task group raises for it alone."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, AttemptSleeping) else None


class AttemptSteps(TwoModes):
    """The methods of :class:`~queuert.Attempt` for durable steps, those that are declared as phases among them."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def _steps(self) -> StepTracker: ...

    @overload
    def step(
        self,
        name: str,
        function: Callable[[*Ts], Awaitable[T]],
        /,
        *args: *Ts,
        key: str | int | None = None,
        returns: TypeForm[Any] | None = None,
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(
        self,
        name: str,
        function: Callable[[*Ts], T],
        /,
        *args: *Ts,
        key: str | int | None = None,
        returns: TypeForm[Any] | None = None,
    ) -> Coroutine[Any, Any, T]: ...
    def step(
        self,
        name: str,
        function: Callable[[*Ts], Any],
        /,
        *args: *Ts,
        key: str | int | None = None,
        returns: TypeForm[Any] | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Call a function, record its result, and return it; or return the result that an earlier attempt recorded.

        The result is written under the lease before this returns, so later attempts of the job do not call the
        function again. What it raises is raised here and not recorded. If the worker dies after the call and before the
        record, the next attempt calls it again: pass on an idempotency key, such as the job's id and the name::

            async def charge(order: str, idempotency_key: str) -> str:
                return f"receipt of {order}"

            receipt = await attempt.step("charge", charge, "order 17", f"{attempt.job_id}/charge")

        Args:
            name: 1 to 128 characters of ``A-Z a-z 0-9 _ . : / -``, beginning with a letter or ``_``; in each attempt
                the same steps in the same order. Use a name once, or with keys.
            function: a coroutine function, or a plain one, which is called in the event loop and must not block.
            args: its arguments, by position.
            key: distinguishes steps of the same name, as in a loop: text of at most 512 characters, or a number.
            returns: the type of the result, of the kinds that job types take. By default the return annotation.

        Raises:
            LeaseLostError: the lease is lost; the result was not recorded. Do not catch it.
            StepMismatchError: an earlier attempt has recorded another step here; the function was not called.
            StepMisuseError: the name was used before, or it is called inside another step or a block; or in a plain
                function, which calls ``step_sync``.
            StepLimitError: the job has 1,000 steps, or 16 MiB of results.
            PayloadError: the result is not valid for its type, or exceeds the limits of the job type.
            DefinitionError: the type of the result is not known: annotate the function, or pass ``returns``.
            StateUnavailableError: the store cannot be reached. The attempt is repeated.
        """
        return self._to_await("step", name, self._steps.run, name, key, function, args, returns)

    def step_sync(
        self,
        name: str,
        function: Callable[[*Ts], T],
        /,
        *args: *Ts,
        key: str | int | None = None,
        returns: TypeForm[Any] | None = None,
    ) -> T:
        """``step`` for plain functions, also in a child process."""
        self._check_in_thread("step")
        result: T = self._steps.run_in_thread(name, key, function, args, returns)
        return result

    @overload
    def step_transaction(
        self,
        name: str,
        function: Callable[[GuardedTransaction, *Ts], Awaitable[T]],
        /,
        *args: *Ts,
        key: str | int | None = None,
        returns: TypeForm[Any] | None = None,
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step_transaction(
        self,
        name: str,
        function: Callable[[GuardedTransaction, *Ts], T],
        /,
        *args: *Ts,
        key: str | int | None = None,
        returns: TypeForm[Any] | None = None,
    ) -> Coroutine[Any, Any, T]: ...
    def step_transaction(
        self,
        name: str,
        function: Callable[[GuardedTransaction, *Ts], Any],
        /,
        *args: *Ts,
        key: str | int | None = None,
        returns: TypeForm[Any] | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """``step`` whose function writes on ``tx.connection``: its writes and its result commit together, exactly once.

        The function gets the transaction before its other arguments. The transaction is that of ``transaction()``::

            async def count_views(tx, views: int) -> None:
                await tx.connection.execute("update pages set views = views + %s", [views])

            await attempt.step_transaction("count", count_views, 17)

        Arguments and errors are those of ``step``, and:

        Raises:
            CapabilityMissingError: the store is Redis, which has no transactions for writes of a handler.
            CompletionMisuseError: it is called inside a block, or the job has its finish.
            StateError: a statement failed, and its error was caught: nothing was written.
            StateUnavailableError: the connection broke; it may have been committed. The attempt is repeated, and finds
                out.
        """
        run = self._steps.run_transaction
        return self._to_await("step_transaction", name, run, name, key, function, args, returns)

    def step_transaction_sync(
        self,
        name: str,
        function: Callable[[GuardedTransaction, *Ts], T],
        /,
        *args: *Ts,
        key: str | int | None = None,
        returns: TypeForm[Any] | None = None,
    ) -> T:
        """``step_transaction`` for plain functions, also in a child process."""
        self._check_in_thread("step_transaction")
        result: T = self._steps.run_transaction_in_thread(name, key, function, args, returns)
        return result

    @overload
    def phase(
        self,
        name: str,
        function: Callable[[*Ts], Awaitable[T]],
        /,
        *args: *Ts,
        weight: float | None = None,
        returns: TypeForm[Any] | None = None,
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def phase(
        self,
        name: str,
        function: Callable[[*Ts], T],
        /,
        *args: *Ts,
        weight: float | None = None,
        returns: TypeForm[Any] | None = None,
    ) -> Coroutine[Any, Any, T]: ...
    def phase(
        self,
        name: str,
        function: Callable[[*Ts], Any],
        /,
        *args: *Ts,
        weight: float | None = None,
        returns: TypeForm[Any] | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Run a phase that the job type declares: a step that is shown with its status, its times and its progress.

        As by ``step``, the result is recorded, and later attempts get it instead of calling the function: a retry
        begins with the phase that failed, and phases that were completed pass their results on to it. Inside the
        function ``record_progress`` says how far the phase is; the progress of the job follows from the weights of its
        phases, and never decreases. With ``JobType(..., phases={"download": 3, "upload": 1})`` the handler calls
        ``file = await attempt.phase("download", download, attempt.input)``, and then
        ``await attempt.phase("upload", upload, file)``.

        Args:
            name: a name of ``JobType(phases=...)``. Phases run in the order in which they are declared; those that are
                left out are shown as skipped.
            function: a coroutine function, or a plain one, which is called in the event loop and must not block.
            args: its arguments, by position.
            weight: its share of the work beside the other phases, instead of the one that is declared.
            returns: the type of the result, as of ``step``.

        Raises:
            LeaseLostError: the lease is lost. Do not catch it.
            StepMismatchError: an earlier attempt has recorded another step here; the function was not called.
            StepMisuseError: the job type does not declare the phase, or a later one was begun before; or the errors of
                ``step``.
            StepLimitError: the job has 1,000 steps, or 16 MiB of results.
            PayloadError: the result is not valid for its type, or exceeds the limits of the job type.
            ConfigurationError: the weight is not a finite number above 0.
            DefinitionError: the type of the result is not known: annotate the function, or pass ``returns``.
            StateUnavailableError: the store cannot be reached. The attempt is repeated.
        """
        return self._to_await("phase", name, self._steps.run_phase, name, weight, function, args, returns)

    def phase_sync(
        self,
        name: str,
        function: Callable[[*Ts], T],
        /,
        *args: *Ts,
        weight: float | None = None,
        returns: TypeForm[Any] | None = None,
    ) -> T:
        """``phase`` for plain functions, also in a child process."""
        self._check_in_thread("phase")
        result: T = self._steps.run_phase_in_thread(name, weight, function, args, returns)
        return result

    def sleep(
        self,
        name: str,
        seconds: float | timedelta | None = None,
        /,
        *,
        until: datetime | None = None,
        key: str | int | None = None,
    ) -> Coroutine[Any, Any, None]:
        """Let the job rest until a time, as a step: the attempt ends here, and one that begins later passes this point.

        The end of the sleep is recorded by the clock of the store; later attempts sleep for the rest of it. The slot is
        free meanwhile. The attempt does not count, and is no failure. It ends the attempt by raising
        ``AttemptSleeping``, which is no ``Exception``: ``finally`` clauses run, and context managers are left::

            await attempt.sleep("cool-down", 3600)

        Args:
            name: as of ``step``.
            seconds: how long, in seconds or as a timedelta.
            until: or when it ends: a datetime with a time zone.
            key: as of ``step``.

        Raises:
            ConfigurationError: both or none of ``seconds`` and ``until`` were passed, or one out of range.
            LeaseLostError: the lease is lost. Do not catch it.
            StepMismatchError: an earlier attempt has recorded another step here.
            StepMisuseError: the name was used before, or it is called inside a step or a block, or by a batched
                handler.
            StepLimitError: the job has 1,000 steps.
            StateUnavailableError: the store cannot be reached. The attempt is repeated.
        """
        return self._to_await("sleep", name, self._steps.sleep, name, key, pause_until(seconds, until))

    def sleep_sync(
        self,
        name: str,
        seconds: float | timedelta | None = None,
        /,
        *,
        until: datetime | None = None,
        key: str | int | None = None,
    ) -> None:
        """``sleep`` for plain functions, also in a child process."""
        self._check_in_thread("sleep")
        self._steps.sleep_in_thread(name, key, pause_until(seconds, until))

    @overload
    def wait_for_event(
        self, name: str, model: type[T], /, timeout: float | timedelta, *, key: str | int | None = None
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def wait_for_event(
        self, name: str, model: Any, /, timeout: float | timedelta, *, key: str | int | None = None
    ) -> Coroutine[Any, Any, Any]: ...
    def wait_for_event(
        self, name: str, model: Any, /, timeout: float | timedelta, *, key: str | int | None = None
    ) -> Coroutine[Any, Any, Any]:
        """Return the payload of an event that a client sends to the chain with ``send_event``, as a step.

        An event that was sent before is taken at once. Otherwise the attempt ends here, as by ``sleep``, and one that
        begins when an event is sent, or after the timeout, passes this point. The event that was sent first is taken,
        by one step only, and its payload is the recorded result of the step. So is a timeout::

            answer = await attempt.wait_for_event("approved", dict[str, str], timeout=86_400)

        Args:
            name: the name of the event, and of the step: as of ``step``.
            model: the type of the payload, of the kinds that job types take.
            timeout: seconds or a timedelta, above 0, from when the wait is first recorded.
            key: as of ``step``, to wait for several events of the name.

        Raises:
            EventTimeoutError: no event was sent in time; later attempts raise it here as well. Catch it.
            PayloadError: the payload is not valid for the type. The event is taken, and later attempts raise it here
                as well. Catch it to wait for another event, with another key.
            ConfigurationError: the timeout is out of range.
            LeaseLostError: the lease is lost. Do not catch it.
            StepMismatchError: an earlier attempt has recorded another step here.
            StepMisuseError: the name was used before, or it is called inside a step or a block, or by a batched
                handler.
            StepLimitError: the job has 1,000 steps, or 16 MiB of results.
            DefinitionError: pydantic has no schema for the type.
            StateUnavailableError: the store cannot be reached. The attempt is repeated.
        """
        seconds = checked_ttl("timeout", timeout)
        return self._to_await("wait_for_event", name, self._steps.wait_for_event, name, key, model, seconds)

    @overload
    def wait_for_event_sync(
        self, name: str, model: type[T], /, timeout: float | timedelta, *, key: str | int | None = None
    ) -> T: ...
    @overload
    def wait_for_event_sync(
        self, name: str, model: Any, /, timeout: float | timedelta, *, key: str | int | None = None
    ) -> Any: ...
    def wait_for_event_sync(
        self, name: str, model: Any, /, timeout: float | timedelta, *, key: str | int | None = None
    ) -> Any:
        """``wait_for_event`` for plain functions, also in a child process."""
        self._check_in_thread("wait_for_event")
        return self._steps.wait_for_event_in_thread(name, key, model, checked_ttl("timeout", timeout))


class StepTracker:
    """The steps of one attempt: which ones earlier attempts have recorded, and which one is next.

    Coroutine and thread have a method each; what they share are the plain methods.
    """

    __slots__ = (
        "_blocks", "_characters", "_host", "_job", "_job_type", "_loaded_at", "_names", "_next", "_open", "_pending",
        "_recorded", "phases",
    )  # fmt: skip

    def __init__(self, job: ClaimedJob, job_type: JobType[Any, Any], host: BlockHost, blocks: BlockTracker) -> None:
        self._job = job
        self._job_type = job_type
        self._host = host
        self._blocks = blocks
        # The first attempt of a job has nothing to read.
        self._recorded: list[StepRecord] | None = [] if job.attempt == 1 else None
        self._loaded_at = 0.0
        self._characters = 0
        self._next = 1
        self._names: set[str] = set()
        self._open: str | None = None
        self._pending: str | None = None
        """The next step, if it was called and has raised: only the same one may be called again."""
        self.phases = PhaseTracker(job, job_type)

    # --- in a coroutine -----------------------------------------------------------------------------------------------

    async def run(
        self, name: str, key: object, function: Callable[..., Any], args: tuple[Any, ...], returns: Any
    ) -> Any:
        """Replay a step, or call its function and record the result."""
        with self._opened(name, key) as full_name:
            self._host.check_event_loop()
            codec = self._codec(function, returns)
            record = await self._next_record(full_name, "a function")
            if record is None:
                result = codec.encode(await _awaited(function, *args))
                record = await self._record(self._new(full_name, result))
                self._keep(record)
            return _result(record, codec)

    async def run_transaction(
        self, name: str, key: object, function: Callable[..., Any], args: tuple[Any, ...], returns: Any
    ) -> Any:
        """Replay a step, or call its function in a transaction that records the result."""
        with self._opened(name, key) as full_name:
            self._host.check_event_loop()
            codec = self._codec(function, returns)
            record = await self._next_record(full_name, "a function")
            if record is None:
                with self._unknown_until_kept():
                    async with self._block() as tx:
                        _check_connection(tx)
                        result = codec.encode(await _awaited(function, tx, *args))
                        record = await cast("AsyncStoreTransaction", tx._transaction).record_step(
                            self._new(full_name, result)
                        )
                    self._keep(record)
            return _result(record, codec)

    async def run_phase(
        self, name: str, weight: float | None, function: Callable[..., Any], args: tuple[Any, ...], returns: Any
    ) -> Any:
        """Replay a phase, or begin it, call its function and record the result."""
        with self._opened(name, None) as name:
            self._host.check_event_loop()
            codec = self._codec(function, returns)
            self.phases.check(name, weight)
            record = await self._next_record(name, "a phase")
            if record is not None:
                self.phases.replay(name)
                return _result(record, codec)
            if not self.phases.knows_progress:
                self.phases.continue_from(await self._host.get_progress())
            started_at = await self._host.begin_phase(self.phases.begin(name))
            with self.phases.running(self._host.report_phase):
                result = codec.encode(await _awaited(function, *args))
            record = await self._record(self._new(name, result, phase=(started_at, self.phases.complete())))
            self._keep(record)
            self._host.report_phase(self.phases.completed())
            return _result(record, codec)

    async def sleep(self, name: str, key: object, wake_at: RunAt) -> None:
        """Pass a sleep that has ended, or record it, and end the attempt if it has not ended."""
        with self._opened(name, key) as full_name:
            self._host.check_event_loop()
            self._host.check_sleep()
            record = await self._next_record(full_name, "a sleep")
            if record is None:
                record = await self._record(self._new(full_name, None, wake_at))
                self._keep(record)
            self._wait_for_end(record)

    async def wait_for_event(self, name: str, key: object, model: Any, timeout: float) -> Any:
        """Return the payload of an event that was taken, or take one; end the attempt if there is none yet."""
        with self._opened(name, key) as full_name:
            self._host.check_event_loop()
            self._host.check_sleep()
            codec = step_codec(self._job_type, model)
            record = await self._next_record(full_name, "a wait")
            if record is None:
                with self._unknown_until_kept():
                    record = await self._host.wait_for_event(self._new_wait(full_name, name, timeout))
                self._keep_answered(record)
            return _answer(record, codec)

    async def _next_record(self, name: str, kind: _Kind) -> StepRecord | None:
        """Return the recorded step that is next, which must be this one; None if there is none."""
        if self._recorded is None:
            self._load(await self._host.get_steps())
        return self._replayed(name, kind)

    async def _record(self, step: NewStep) -> StepRecord:
        with self._unknown_until_kept():
            return await self._host.record_step(step)

    # --- in a thread --------------------------------------------------------------------------------------------------

    def run_in_thread(
        self, name: str, key: object, function: Callable[..., Any], args: tuple[Any, ...], returns: Any
    ) -> Any:
        """``run`` for a thread."""
        with self._opened(name, key) as full_name:
            codec = self._codec(function, returns)
            record = self._next_record_in_thread(full_name, "a function")
            if record is None:
                result = codec.encode(_not_awaitable(full_name, forks.call(function, *args)))
                record = self._record_in_thread(self._new(full_name, result))
                self._keep(record)
            return _result(record, codec)

    def run_transaction_in_thread(
        self, name: str, key: object, function: Callable[..., Any], args: tuple[Any, ...], returns: Any
    ) -> Any:
        """``run_transaction`` for a thread."""
        with self._opened(name, key) as full_name:
            codec = self._codec(function, returns)
            record = self._next_record_in_thread(full_name, "a function")
            if record is None:
                with self._unknown_until_kept():
                    with self._block() as tx:
                        _check_connection(tx)
                        result = codec.encode(_not_awaitable(full_name, forks.call(function, tx, *args)))
                        record = cast("StoreTransaction", tx._transaction).record_step(self._new(full_name, result))
                    self._keep(record)
            return _result(record, codec)

    def run_phase_in_thread(
        self, name: str, weight: float | None, function: Callable[..., Any], args: tuple[Any, ...], returns: Any
    ) -> Any:
        """``run_phase`` for a thread."""
        with self._opened(name, None) as name:
            codec = self._codec(function, returns)
            self.phases.check(name, weight)
            record = self._next_record_in_thread(name, "a phase")
            if record is not None:
                self.phases.replay(name)
                return _result(record, codec)
            if not self.phases.knows_progress:
                self.phases.continue_from(self._host.get_progress_in_thread())
            started_at = self._host.begin_phase_in_thread(self.phases.begin(name))
            with self.phases.running(self._host.report_phase):
                result = codec.encode(_not_awaitable(name, forks.call(function, *args)))
            record = self._record_in_thread(self._new(name, result, phase=(started_at, self.phases.complete())))
            self._keep(record)
            self._host.report_phase(self.phases.completed())
            return _result(record, codec)

    def sleep_in_thread(self, name: str, key: object, wake_at: RunAt) -> None:
        """``sleep`` for a thread."""
        with self._opened(name, key) as full_name:
            self._host.check_sleep()
            record = self._next_record_in_thread(full_name, "a sleep")
            if record is None:
                record = self._record_in_thread(self._new(full_name, None, wake_at))
                self._keep(record)
            self._wait_for_end(record)

    def wait_for_event_in_thread(self, name: str, key: object, model: Any, timeout: float) -> Any:
        """``wait_for_event`` for a thread."""
        with self._opened(name, key) as full_name:
            self._host.check_sleep()
            codec = step_codec(self._job_type, model)
            record = self._next_record_in_thread(full_name, "a wait")
            if record is None:
                with self._unknown_until_kept():
                    record = self._host.wait_for_event_in_thread(self._new_wait(full_name, name, timeout))
                self._keep_answered(record)
            return _answer(record, codec)

    def _next_record_in_thread(self, name: str, kind: _Kind) -> StepRecord | None:
        """``_next_record`` for a thread."""
        if self._recorded is None:
            self._load(self._host.get_steps_in_thread())
        return self._replayed(name, kind)

    def _record_in_thread(self, step: NewStep) -> StepRecord:
        with self._unknown_until_kept():
            return self._host.record_step_in_thread(step)

    # --- shared -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _opened(self, name: str, key: object) -> Iterator[str]:
        """Check that a step may be called here, and yield its name with its key."""
        full_name = _full_name(name, key)
        self._host.check_process()
        if self._open is not None:
            raise StepMisuseError(
                f"step {full_name!r} was called while step {self._open!r} ran: one step at a time; "
                "start chains for work side by side"
            )
        self._blocks.check_no_block(f"step {full_name!r}")
        if full_name in self._names:
            raise StepMisuseError(f"step {full_name!r} was called twice in an attempt: pass another key=, as in a loop")
        if self._pending is not None and self._pending != full_name:
            raise StepMisuseError(
                f"step {self._pending!r} raised, and its error was caught: call it again, or let the error pass, got "
                f"{full_name!r}. A function that may fail as expected returns a value that says so"
            )
        self._open = full_name
        try:
            yield full_name
        except PayloadError as error:
            if error.field != "step":
                raise
            # The codec is shared by all steps whose results have this type.
            raise type(error)(
                job_type=error.job_type, field=f"step {full_name!r}", path=error.path, reason=error.reason
            ) from error.__cause__
        finally:
            self._open = None

    @contextmanager
    def _unknown_until_kept(self) -> Iterator[None]:
        """If the block raises, it is not known what was recorded: the next step reads all steps again."""
        try:
            yield
        except BaseException:
            self._recorded = None
            raise

    def _block(self) -> GuardedBlock[GuardedTransaction]:
        return GuardedBlock("step_transaction", self._host, self._blocks, GuardedTransaction)

    def _load(self, records: list[StepRecord]) -> None:
        self._loaded_at = time.monotonic()
        self._characters = sum(len(record.result or "") for record in records)
        self._recorded = records

    def _replayed(self, name: str, kind: _Kind) -> StepRecord | None:
        """Return the recorded step that is next; None if there is none, or if it is a wait that has no answer yet."""
        recorded, number = self._recorded or [], self._next
        record = recorded[number - 1] if number <= len(recorded) else None
        if record is None and number > MAX_STEPS:
            raise StepLimitError(
                f"job {self._job.id!r} must have at most {MAX_STEPS:,} steps, got one more, {name!r}: continue the "
                "chain with another job"
            )
        if record is not None:
            if record.name != name:
                raise StepMismatchError(self._job.id, number, record.name, name)
            if (found := _kind(record)) != kind:
                raise StepMismatchError(self._job.id, number, f"{name} ({found})", f"{name} ({kind})")
            if not record.waits:
                self._pass(name)
                return record
            # It is the last one: nothing is recorded behind it.
            recorded.pop()
        self._pending = name
        return None

    def _new(
        self,
        name: str,
        result: str | None,
        wake_at: RunAt | None = None,
        *,
        phase: tuple[datetime | None, str | None] = (None, None),
    ) -> NewStep:
        self._check_room(name, len(result or ""))
        return NewStep(self._next, name, self._job.attempt, result, wake_at, *phase)

    def _new_wait(self, name: str, event: str, timeout: float) -> EventWait:
        # It is not known how long the payload of the event is.
        self._check_room(name, 1)
        return EventWait(self._next, name, self._job.attempt, event, timeout)

    def _check_room(self, name: str, characters: int) -> None:
        size = self._characters + characters
        if size > MAX_STEP_BYTES:
            raise StepLimitError(
                f"the results of the steps of job {self._job.id!r} must have at most {MAX_STEP_BYTES:,} characters "
                f"together, got {size:,} with {name!r}: keep large data elsewhere, or continue the chain"
            )

    def _keep_answered(self, record: StepRecord) -> None:
        """A wait was recorded. Without an answer it stays pending, so that no other step can be called behind it."""
        if not record.waits:
            self._keep(record)

    def _keep(self, record: StepRecord) -> None:
        """A step is recorded."""
        assert self._recorded is not None
        self._loaded_at = time.monotonic()
        self._characters += len(record.result or "")
        self._recorded.append(record)
        self._pass(record.name)

    def _pass(self, name: str) -> None:
        self._names.add(name)
        self._next += 1
        self._pending = None

    def _wait_for_end(self, record: StepRecord) -> None:
        """Raise AttemptSleeping if a sleep has not ended, by the store's clock."""
        left = record.seconds_left - (time.monotonic() - self._loaded_at)
        if left > 0:
            raise AttemptSleeping(left)

    def _codec(self, function: Callable[..., Any], returns: Any) -> PayloadCodec:
        return step_codec(self._job_type, _returned_type(function) if returns is None else returns)


def _kind(record: StepRecord) -> _Kind:
    if record.event is not None:
        return "a wait"
    if record.started_at is not None:
        return "a phase"
    return "a function" if record.wake_at is None else "a sleep"


def _result(record: StepRecord, codec: PayloadCodec) -> Any:
    """Return the result of a step as each later attempt gets it: a store may keep JSON in another order of keys."""
    return codec.decode(record.result or "null")


def _answer(record: StepRecord, codec: PayloadCodec) -> Any:
    """Return the payload of the event that a wait has taken.

    Raises:
        AttemptSleeping: it has none yet.
        EventTimeoutError: it has timed out.
        PayloadError: the payload is not valid.
    """
    if record.waits:
        assert record.event is not None
        assert record.wake_at is not None
        raise AttemptSleeping(record.seconds_left, (record.event, record.wake_at))
    if record.result is None:
        assert record.event is not None
        raise EventTimeoutError(record.event)
    return codec.decode(record.result)


def _full_name(name: object, key: object) -> str:
    name = check_step_name(name, what="a step")
    if key is None:
        return name
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise ConfigurationError(f"key of step {name!r} must be a string or an integer, got {type(key).__name__}")
    return f"{name}[{check_text(str(key), what=f'key of step {name!r}')}]"


async def _awaited(function: Callable[..., Any], /, *args: Any) -> Any:
    """Call the function of a step, and return what it returns. A child that it forks ends there."""
    with forks.no_way_back():
        value = function(*args)
        return await value if inspect.isawaitable(value) else value


def _not_awaitable(name: str, value: Any) -> Any:
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise StepMisuseError(f"step {name!r} of a plain handler must call a plain function, got a coroutine function")
    return value


def _check_connection(tx: GuardedTransaction) -> None:
    """Raise CapabilityMissingError, before the function is called, if the store has no connection for its writes."""
    try:
        tx.connection  # noqa: B018
    except UnsupportedConnectionError as error:
        advice = "attempt.step() works on each store, step transactions on Postgres and SQLite"
        raise CapabilityMissingError("user_transactions", advice) from error


def _returned_type(function: Callable[..., Any]) -> Any:
    """Return the annotation of what a function returns; of one that is awaited, that of the result.

    Raises:
        DefinitionError: it has none, or one that cannot be resolved.
    """
    inner: Any = function
    while isinstance(inner, partial):
        inner = inner.func
    if not (inspect.isroutine(inner) or inspect.isclass(inner)):
        inner = type(inner).__call__
    if inspect.isclass(inner):
        return inner
    try:
        returned = get_type_hints(inner, include_extras=True)["return"]
    except Exception as error:
        name = getattr(inner, "__qualname__", repr(inner))
        raise DefinitionError(
            f"the function of a step must have a return annotation, or returns= must be the type of its result: {name}"
        ) from error
    # A plain function that returns a coroutine, as the methods of an attempt do, is annotated with the coroutine.
    awaited = get_args(returned) if get_origin(returned) in (Awaitable, Coroutine) else ()
    return awaited[-1] if awaited else returned
