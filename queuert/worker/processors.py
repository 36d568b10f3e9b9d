"""The handlers of a worker, each with the settings of its job type."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from typing_extensions import TypeVar as TypeVarWithDefault

from queuert.client.schedules import JobTypeReference, checked_owner, checked_schedules, type_names
from queuert.errors import ConfigurationError, DefinitionError, DuplicateJobTypeError
from queuert.job_types import JobType, JobTypes, calling_module, not_registered
from queuert.limits import Limits
from queuert.outcomes import Outcome
from queuert.policies import LeasePolicy, Retention, RetryPolicy
from queuert.schedules import RecurringSchedule
from queuert.worker import executors
from queuert.worker.after_attempt import AfterAttempt
from queuert.worker.after_attempt import checked as checked_hook
from queuert.worker.attempt import Attempt
from queuert.worker.executors import Executor
from queuert.worker.handler_signature import check_handler, name_of
from queuert.worker.lifespan import GroupLifespan, Lifespan, checked_lifespan
from queuert.worker.middleware import Middleware, check_middlewares, check_required, checked_middlewares

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")
S = TypeVarWithDefault("S", default=Any)

Handler: TypeAlias = Callable[[Attempt[I, R, S]], Awaitable[Outcome[R]] | Outcome[R]]
"""``async def`` runs in the event loop, a plain ``def`` in a thread."""

BatchHandler: TypeAlias = Callable[[Sequence[Attempt[I, R, S]]], Awaitable[Sequence[Outcome[R]]] | Sequence[Outcome[R]]]
"""As ``Handler``, for several attempts at once: it returns an outcome for each, in their order."""


@dataclass(frozen=True, slots=True)
class Processor:
    """A handler with the settings of one job type."""

    job_type: JobType[Any, Any]
    handler: Handler[Any, Any]
    retry: RetryPolicy
    lease: LeasePolicy
    middlewares: tuple[Middleware, ...]
    is_coroutine: bool
    executor: Executor = Executor.COROUTINE
    timeout: float | None = None
    """Seconds."""
    hard_timeout: float | None = None
    """Seconds."""
    limits: Limits | None = None
    runs_on_blocker_failure: bool = False
    """Whether the handler runs if a blocker was not completed."""
    batch_size: int | None = None
    """The most attempts of one call of the handler; None if it takes one attempt."""
    retention: Retention = field(default_factory=Retention)
    after_attempt: AfterAttempt | None = None
    lifespan: GroupLifespan | None = None

    @property
    def child_parts(self) -> tuple[Any, ...]:
        """What a child process needs to run the handler. It is pickled."""
        return self.handler, self.job_type, self.retry, self.lifespan


class Processors(Generic[S]):
    """The handlers of a worker.

    Args:
        job_types: the job types that handlers may be registered for, and that they may continue with.
        middlewares: wrap every attempt of these processors, the first one outermost; coroutine functions, or instances
            of :class:`~queuert.AttemptMiddleware`.
        retry: the retry policy of handlers without one of their own.
        lease: the lease policy of handlers without one of their own.
        retention: which closed chains are kept, for handlers without one of their own. By default completed and
            cancelled ones for 14 days, failed ones until somebody acts; ``Retention.forever()`` keeps all.
        after_attempt: called before an attempt is written that completed its job or failed for good, see
            :class:`~queuert.worker.after_attempt.EndedAttempt`; for handlers without one of their own.
        lifespan: a function without arguments, decorated with ``@asynccontextmanager`` or ``@contextmanager``. Each
            worker enters it once before its first claim, and leaves it after its last finish. Handlers get what it
            yields as ``attempt.resources``.
        schedules: recurring schedules of these job types. A worker stores them when it starts, and removes those of
            their owner that are not here any more.
        schedule_owner: to whom they belong, so that nobody else's are replaced or removed; by default the name of the
            module that makes the processors. Applications that share a store need different owners.

    Raises:
        DefinitionError: ``job_types`` is not a JobTypes, ``after_attempt`` or a middleware cannot be called so, or
            ``lifespan`` takes arguments or lacks its decorator.
        ConfigurationError: ``retention`` is not a Retention, or two schedules have the same name.
        UnknownJobTypeError: a schedule's job type is not among ``job_types``.
        InvalidIdentifierError: the owner cannot be stored.

    Example::

        processors = Processors(job_types, retry=RetryPolicy(max_attempts=5))

        @processors.handles(resize, lease=LeasePolicy(seconds=120))
        async def resize_image(attempt: Attempt[Resize, Published]) -> Outcome[Published]:
            key = await fetch(attempt.input.url)
            return attempt.continue_with(publish, Thumbnail(key=key))
    """

    def __init__(
        self,
        job_types: JobTypes,
        *,
        middlewares: Sequence[Middleware] = (),
        retry: RetryPolicy | None = None,
        lease: LeasePolicy | None = None,
        retention: Retention | None = None,
        after_attempt: AfterAttempt | None = None,
        lifespan: Lifespan[S] | None = None,
        schedules: Sequence[RecurringSchedule] = (),
        schedule_owner: str | None = None,
    ) -> None:
        if not isinstance(job_types, JobTypes):
            raise DefinitionError(f"job_types must be a JobTypes, got {job_types!r}: use Processors(JobTypes(...))")
        self.job_types = job_types
        self._middlewares = checked_middlewares("the processors", middlewares)
        self._retry = retry or RetryPolicy()
        self._lease = lease or LeasePolicy()
        self._retention = _checked_retention(retention) or Retention()
        self._after_attempt = checked_hook(after_attempt)
        self._lifespan = checked_lifespan(lifespan)
        self.schedules = checked_schedules(schedules)
        for schedule in self.schedules:
            if schedule.job_type not in job_types:
                raise not_registered(schedule.job_type, job_types)
        self.schedule_owner = checked_owner(schedule_owner) or calling_module("typing", __name__)
        self._by_name: dict[str, Processor] = {}

    def handles(
        self,
        job_type: JobType[I, R],
        *,
        retry: RetryPolicy | None = None,
        lease: LeasePolicy | None = None,
        middlewares: Sequence[Middleware] = (),
        timeout: float | timedelta | None = None,
        executor: Literal["process"] | None = None,
        hard_timeout: float | timedelta | None = None,
        limits: Limits | None = None,
        on_blocker_failure: Literal["fail", "run"] = "fail",
        retention: Retention | None = None,
        after_attempt: AfterAttempt | None = None,
        replace: bool = False,
    ) -> Callable[[Handler[I, R, S]], Handler[I, R, S]]:
        """Register the decorated function as the handler of ``job_type``, and return it unchanged.

        ``middlewares`` run inside those of the processors.

        After ``timeout`` seconds the attempt is aborted (a coroutine is cancelled), and has failed. A plain function
        cannot be cancelled: it keeps its slot until it returns.

        ``executor="process"`` runs a plain function in a child process, for work that keeps a processor busy or may
        crash. The child imports it, so it must be at the top of a module, and ``attempt.complete()`` connects from
        there. After ``hard_timeout`` seconds that process is killed, and the attempt has failed.

        ``limits`` bound how many attempts all workers together run or begin. ``retention`` says which closed chains
        that began with this job type are kept; workers delete the others, within minutes.

        When a blocker has failed or was cancelled, the job fails, and the handler is not run. With
        ``on_blocker_failure="run"`` it is run, and finds the failures in ``attempt.failed_blockers``.

        ``after_attempt`` is called before an attempt is written that completed its job or failed for good, in the
        worker's process; it may change the output, the error and the TTL. If its changes cannot be written, the attempt
        is written without them. It may be called again for a job whose attempt is repeated. It is not called when the
        job continues, waits or is cancelled, or after the death of its worker.

        With ``replace=True`` the function takes the place of a handler that the job type has already, for a cell of a
        notebook that is run again. Workers that were made before keep the handler that they have.

        Raises:
            UnknownJobTypeError: the job type is not among ``job_types``.
            DuplicateJobTypeError: the job type has a handler already, or ``job_types`` has another job type of its
                name.
            HandlerSignatureError: the function cannot be the handler: it is a class or a generator, does not take one
                argument, or its annotations contradict the job type.
            DefinitionError: ``job_type`` is not a JobType, or one that clients complete; the function cannot be called
                in another process; or a middleware is not valid, or would not be entered in the handler's transactions.
            ConfigurationError: a setting is out of range.
        """
        return self._registering(
            job_type,
            retry,
            lease,
            middlewares,
            executor=executor,
            replace=replace,
            timeout=timeout,
            hard_timeout=hard_timeout,
            limits=limits,
            on_blocker_failure=on_blocker_failure,
            retention=retention,
            after_attempt=after_attempt,
        )

    def handles_batch(
        self,
        job_type: JobType[I, R],
        *,
        size: int,
        retry: RetryPolicy | None = None,
        lease: LeasePolicy | None = None,
        middlewares: Sequence[Middleware] = (),
        timeout: float | timedelta | None = None,
        limits: Limits | None = None,
        on_blocker_failure: Literal["fail", "run"] = "fail",
        retention: Retention | None = None,
        after_attempt: AfterAttempt | None = None,
        replace: bool = False,
    ) -> Callable[[BatchHandler[I, R, S]], BatchHandler[I, R, S]]:
        """Register a handler that takes a list of attempts and returns their outcomes, one each, in their order.

        The attempts of one claim share a call, up to ``size`` of them; none waits for a batch to fill. So a worker's
        concurrency should be at least ``size``. Each attempt keeps its own lease, abort signal, middlewares and
        outcome; an exception fails all of them. The settings are those of :meth:`handles`.

        Raises:
            ConfigurationError: ``size`` is below 1, or a setting is out of range.
            DefinitionError: as for :meth:`handles`.

        Example::

            @processors.handles_batch(publish, size=100)
            async def publish_many(attempts: Sequence[Attempt[Thumbnail, Published]]) -> list[Outcome[Published]]:
                return [Published(address=attempt.input.key) for attempt in attempts]
        """
        if type(size) is not int or size < 1:
            raise ConfigurationError(f"size must be a whole number of at least 1, got {size!r}")
        return self._registering(
            job_type,
            retry,
            lease,
            middlewares,
            batch_size=size,
            replace=replace,
            timeout=timeout,
            limits=limits,
            on_blocker_failure=on_blocker_failure,
            retention=retention,
            after_attempt=after_attempt,
        )

    def _registering(
        self,
        job_type: object,
        retry: RetryPolicy | None,
        lease: LeasePolicy | None,
        middlewares: Sequence[Middleware],
        *,
        timeout: float | timedelta | None,
        limits: Limits | None,
        on_blocker_failure: Literal["fail", "run"],
        retention: Retention | None,
        after_attempt: AfterAttempt | None,
        replace: bool,
        executor: str | None = None,
        hard_timeout: float | timedelta | None = None,
        batch_size: int | None = None,
    ) -> Callable[[Any], Any]:
        """Check the settings, and return the decorator that registers a handler with them."""
        if not isinstance(job_type, JobType):
            raise DefinitionError(f"job_type must be a JobType, got {job_type!r}: use @processors.handles(job_type)")
        settings = {
            "retry": retry or self._retry,
            "lease": lease or self._lease,
            "middlewares": (*self._middlewares, *checked_middlewares(f"job type {job_type.name!r}", middlewares)),
            "timeout": executors.checked_timeout("timeout", timeout),
            "hard_timeout": executors.checked_timeout("hard_timeout", hard_timeout),
            "limits": _checked_limits(limits),
            "runs_on_blocker_failure": _runs(on_blocker_failure),
            "retention": _checked_retention(retention) or self._retention,
            "after_attempt": checked_hook(after_attempt) or self._after_attempt,
            "batch_size": batch_size,
            "lifespan": self._lifespan,
        }

        def register(handler: Any) -> Any:
            self._add(job_type, handler, executor, settings, replace=replace)
            return handler

        return register

    def _add(
        self,
        job_type: JobType[Any, Any],
        handler: Any,
        executor: str | None,
        settings: dict[str, Any],
        *,
        replace: bool,
    ) -> None:
        if job_type not in self.job_types:
            raise not_registered(job_type, self.job_types)
        if job_type.completed_by == "client":
            raise DefinitionError(
                f"a handler must be of a job type that workers complete, got {name_of(handler)} for {job_type.name!r}, "
                "whose jobs a client completes: remove the handler, or completed_by='client'"
            )
        check_handler(job_type, handler, self.job_types, batch=settings["batch_size"] is not None)
        if (other := self._by_name.get(job_type.name)) is not None and not replace:
            raise DuplicateJobTypeError(
                f"job type {job_type.name!r} has the handler {name_of(other.handler)} already, got "
                f"{name_of(handler)}: remove one, or use handles(..., replace=True) where a cell is run again"
            )
        is_coroutine = _is_coroutine_function(handler)
        chosen = executors.chosen(job_type.name, handler, executor, is_coroutine=is_coroutine)
        executors.check_hard_timeout(job_type.name, chosen, settings["timeout"], settings["hard_timeout"])
        check_middlewares(job_type.name, settings["middlewares"], chosen)
        self._by_name[job_type.name] = Processor(
            job_type=job_type, handler=handler, is_coroutine=is_coroutine, executor=chosen, **settings
        )

    def with_lifespan(self, lifespan: Lifespan[S]) -> Processors[S]:
        """Return processors with the same handlers and another lifespan: in tests, one that yields fakes.

        Handlers that are registered afterwards are those of one of the two only.

        Args:
            lifespan: as for ``Processors``; at the top of a module if a handler has ``executor="process"``.

        Raises:
            DefinitionError: it takes arguments, or is not decorated.

        Example::

            processors.with_lifespan(lambda: contextlib.nullcontext(App(http=FakeClient())))
        """
        other = copy.copy(self)
        other._lifespan = checked_lifespan(lifespan)
        other._by_name = {}
        for name, processor in self._by_name.items():
            other._by_name[name] = replace(processor, lifespan=other._lifespan)
        return other

    def check_required(self, middlewares: Sequence[Middleware]) -> None:
        """Raise DefinitionError unless these middlewares, the same objects, wrap all handlers, in this order."""
        check_required(self, self._middlewares, middlewares)

    def __getitem__(self, name: str) -> Processor:
        return self._by_name[name]

    def __iter__(self) -> Iterator[Processor]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def __repr__(self) -> str:
        return f"Processors({', '.join(self._by_name)})"


def _is_coroutine_function(handler: Any) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004


def _checked_limits(limits: object) -> Limits | None:
    if not isinstance(limits, Limits | None):
        raise ConfigurationError(f"limits must be a Limits, got {limits!r}")
    return limits


def _checked_retention(retention: object) -> Retention | None:
    if not isinstance(retention, Retention | None):
        raise ConfigurationError(f"retention must be a Retention, got {retention!r}")
    return retention


def _runs(on_blocker_failure: str) -> bool:
    if on_blocker_failure not in ("fail", "run"):
        raise ConfigurationError(f"on_blocker_failure must be 'fail' or 'run', got {on_blocker_failure!r}")
    return on_blocker_failure == "run"


def groups_of(processors: Processors | Sequence[Processors]) -> list[Processors]:
    """Return one or several groups as a list."""
    return list(processors) if isinstance(processors, Sequence) else [processors]


def selected(
    processors: Mapping[str, Processor], types: Iterable[JobTypeReference] | None, without: Iterable[JobTypeReference]
) -> dict[str, Processor]:
    """Return the processors of some job types: of ``types``, or of all, less those of ``without``.

    Raises:
        DefinitionError: a job type has no handler, or none is left.
    """
    chosen, excluded = None if types is None else type_names(types), type_names(without)
    for name in (*(chosen or ()), *excluded):
        if name not in processors:
            raise DefinitionError(
                f"the job types of a worker must have handlers, got {name!r}; those with handlers: "
                f"{', '.join(map(repr, processors))}"
            )
    left = {
        name: one for name, one in processors.items() if (chosen is None or name in chosen) and name not in excluded
    }
    if not left:
        raise DefinitionError("a worker needs at least one handler, and types= and exclude_types= leave none")
    return left


def merged(
    processors: Processors | Sequence[Processors], required_middlewares: Sequence[Middleware] = ()
) -> dict[str, Processor]:
    """Return the processors of one or several groups by job type.

    Raises:
        DuplicateJobTypeError: two groups have a handler of the same job type.
        DefinitionError: there is no handler; one with ``executor="process"`` cannot be imported in another process; or
            a group lacks a required middleware.
    """
    by_name: dict[str, Processor] = {}
    for group in groups_of(processors):
        if not isinstance(group, Processors):
            raise DefinitionError(f"processors must be a Processors or several of them, got {group!r}")
        group.check_required(required_middlewares)
        for processor in group:
            if processor.job_type.name in by_name:
                other = by_name[processor.job_type.name]
                raise DuplicateJobTypeError(
                    f"job type {processor.job_type.name!r} has two handlers, {name_of(other.handler)} and "
                    f"{name_of(processor.handler)}: remove one"
                )
            by_name[processor.job_type.name] = processor
    if not by_name:
        raise DefinitionError("a worker needs at least one handler: use @processors.handles(job_type)")
    for processor in by_name.values():
        if processor.executor is Executor.PROCESS:
            # Not earlier: the name of a decorated function is set in its module after the decorator returns.
            executors.pickled(processor.job_type.name, *processor.child_parts)
    return by_name
