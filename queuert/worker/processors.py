"""Which handler runs which job type, and how: the worker's half of a definition."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from queuert.errors import DefinitionError, DuplicateJobTypeError, UnknownJobTypeError
from queuert.job_types import JobType, JobTypes
from queuert.outcomes import Outcome
from queuert.policies import LeasePolicy, RetryPolicy
from queuert.worker.attempt import Attempt
from queuert.worker.middleware import AttemptMiddleware

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")

Handler: TypeAlias = Callable[[Attempt[I, R]], Awaitable[Outcome[R]] | Outcome[R]]
"""``async def`` runs in the event loop, a plain ``def`` in a thread."""


@dataclass(frozen=True, slots=True)
class Processor:
    """A handler with the settings of one job type."""

    job_type: JobType[Any, Any]
    handler: Handler[Any, Any]
    retry: RetryPolicy
    lease: LeasePolicy
    middlewares: tuple[AttemptMiddleware, ...]
    is_coroutine: bool


class Processors:
    """The handlers of a worker.

    Args:
        job_types: the job types that handlers may be registered for, and that they may continue with.
        middlewares: wrap every attempt of these processors, the first one outermost.
        retry: for job types without a policy of their own.
        lease: for job types without a policy of their own.

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
        middlewares: Sequence[AttemptMiddleware] = (),
        retry: RetryPolicy | None = None,
        lease: LeasePolicy | None = None,
    ) -> None:
        self.job_types = job_types
        self._middlewares = tuple(middlewares)
        self._retry = retry or RetryPolicy()
        self._lease = lease or LeasePolicy()
        self._by_name: dict[str, Processor] = {}

    def handles(
        self,
        job_type: JobType[I, R],
        *,
        retry: RetryPolicy | None = None,
        lease: LeasePolicy | None = None,
        middlewares: Sequence[AttemptMiddleware] = (),
    ) -> Callable[[Handler[I, R]], Handler[I, R]]:
        """Register the decorated function as the handler of ``job_type``. The function itself stays as it is.

        ``middlewares`` run inside those of the processors.

        Raises:
            UnknownJobTypeError: the job type is not among ``job_types``.
            DuplicateJobTypeError: it has a handler already.
            DefinitionError: what is decorated cannot be called.
        """

        def register(handler: Handler[I, R]) -> Handler[I, R]:
            self._add(job_type, handler, retry, lease, tuple(middlewares))
            return handler

        return register

    def _add(
        self,
        job_type: JobType[Any, Any],
        handler: Handler[Any, Any],
        retry: RetryPolicy | None,
        lease: LeasePolicy | None,
        middlewares: tuple[AttemptMiddleware, ...],
    ) -> None:
        if job_type not in self.job_types:
            raise UnknownJobTypeError(job_type.name, self.job_types.names)
        if job_type.name in self._by_name:
            raise DuplicateJobTypeError(f"job type {job_type.name!r} has two handlers")
        if not callable(handler):
            raise DefinitionError(f"the handler of job type {job_type.name!r} cannot be called: {handler!r}")
        self._by_name[job_type.name] = Processor(
            job_type=job_type,
            handler=handler,
            retry=retry or self._retry,
            lease=lease or self._lease,
            middlewares=(*self._middlewares, *middlewares),
            is_coroutine=_is_coroutine_function(handler),
        )

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


def merged(given: Processors | Sequence[Processors]) -> dict[str, Processor]:
    """The processors of several groups by job type.

    Raises:
        DuplicateJobTypeError: two groups handle one job type.
        DefinitionError: there is no handler at all.
    """
    groups = [given] if isinstance(given, Processors) else list(given)
    found: dict[str, Processor] = {}
    for group in groups:
        for processor in group:
            if processor.job_type.name in found:
                raise DuplicateJobTypeError(f"job type {processor.job_type.name!r} has two handlers")
            found[processor.job_type.name] = processor
    if not found:
        raise DefinitionError("a worker needs at least one handler: use @processors.handles(job_type)")
    return found
