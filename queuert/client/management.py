"""Validates the arguments of management operations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, Protocol, TypeVar

from queuert.client.arguments import known_statuses
from queuert.envelope import is_envelope
from queuert.errors import ConfigurationError, InvalidIdentifierError, JobTypeMismatchError, UndeclaredContinuationError
from queuert.job_types import JobType, JobTypes, not_a_job_type
from queuert.jobs import ChainState, ChainStatus, Job
from queuert.new_chain import ChainReference, NewChain, checked_priority, listed, new_job
from queuert.observability.events import ChainClosed
from queuert.outcomes import checked_inherit
from queuert.policies import Keep, Kept, Retention
from queuert.run_at import RunAt, not_a_run_at
from queuert.state.types import ChainUpdate, NewJob
from queuert.texts import check_text

O = TypeVar("O", contravariant=True)  # noqa: E741


class TooManyChainsError(ConfigurationError):
    """A call would change more chains than one write may. A bulk operation changes them in parts."""


class Completable(Protocol[O]):
    """A handle of a chain that may result in an ``O``. With it a type checker rejects another output."""

    @property
    def id(self) -> str:
        """The chain's id."""
        ...

    def complete(self, output: O, /) -> Any:
        """Complete the chain."""
        ...


class HasResult(Protocol[O]):
    """A job type whose chains may result in an ``O``."""

    def _results_in(self, result: O, /) -> None: ...


CANCELLED_BY_CLIENT = "cancelled by the client"
"""The reason of a cancellation without one."""


def expected_last_type(
    job_types: JobTypes, state: ChainState, expecting: JobType[Any, Any] | None
) -> JobType[Any, Any]:
    """Return the job type of a chain's last job.

    Raises:
        DefinitionError: what is expected is no JobType.
        JobTypeMismatchError: it is not the expected one.
        UnknownJobTypeError: it is not registered with the client.
    """
    if expecting is not None and not isinstance(expecting, JobType):
        raise not_a_job_type(expecting, "expecting")
    if expecting is not None and expecting.name != state.job_type:
        raise JobTypeMismatchError(state.id, expecting.name, state.job_type, of_last_job=True)
    return job_types[state.job_type]


def closed_with(chain_id: str, how: Literal["completed", "continued"]) -> str:
    """Return the message of chains that are cancelled as a client has completed or continued the one they were for."""
    # The first line is the same for all of them, as chains are found by it: see ``JobError.summary``.
    return f"cancelled with the chain that waited for it, which a client has {how}.\nIt is chain {chain_id!r}"


def chain_closed(result: ChainUpdate, *, in_callers_transaction: bool = False) -> ChainClosed:
    """Return the event of a chain that a client or a schedule has closed."""
    return ChainClosed(
        chain_id=result.chain_id,
        type=result.chain_type,
        status=result.status,
        duration=result.chain_seconds,
        in_callers_transaction=in_callers_transaction,
    )


def job_ids(ids: Iterable[str]) -> tuple[str, ...]:
    """Return the ids of jobs, each once, in order.

    Raises:
        InvalidIdentifierError: an id cannot be one of a job, or ``ids`` is a string.
        ConfigurationError: ``ids`` is one object.
    """
    if isinstance(ids, str):
        raise InvalidIdentifierError("jobs must be a sequence of ids, got a string; write [id]")
    given = listed(ids, "jobs must be a sequence of ids")
    return tuple(dict.fromkeys(check_text(id, what="job id") for id in given))


def pruning(older_than: float, statuses: Iterable[ChainStatus | str] | None) -> Retention:
    """Return the retention that keeps chains of these statuses for so many seconds, and all others.

    Raises:
        ConfigurationError: a status does not exist, or is ``open``.
    """
    chosen = known_statuses(ChainStatus, statuses)
    if chosen is not None and ChainStatus.OPEN in chosen:
        raise ConfigurationError("statuses must be completed, failed or cancelled, got open: cancel open chains first")
    bounds: list[Kept] = [
        Keep(age=older_than) if chosen is None or status in chosen else "forever"
        for status in (ChainStatus.COMPLETED, ChainStatus.FAILED, ChainStatus.CANCELLED)
    ]
    completed, failed, cancelled = bounds
    return Retention(completed, failed, cancelled)


def checked_run_at(run_at: RunAt) -> RunAt:
    """Return the time.

    Raises:
        ConfigurationError: it is not one.
    """
    if not isinstance(run_at, RunAt):
        raise not_a_run_at(run_at)
    return run_at


def edited_input(job_types: JobTypes, type: str, stored: object, input: object) -> str:
    """Return a new input of a stored job as JSON text.

    Raises:
        PayloadError: the input is not valid for the job type, or cannot be stored.
        UnknownJobTypeError: the job type is not registered, and the stored input is in a format of its own.
    """
    job_type = job_types[type] if is_envelope(stored) else job_types.get(type)
    return (JobType(type, input=Any, output=Any) if job_type is None else job_type).encode_input(input)


class WorkerlessContinuation:
    """The next job of a chain, checked and encoded once, before the job that it continues is known."""

    def __init__(
        self,
        job_types: JobTypes,
        job_type: JobType[Any, Any],
        input: Any,
        *,
        id: str | None,
        run_at: RunAt | None,
        priority: int | None,
        blockers: Iterable[ChainReference],
        limit_key: str | None,
        inherit: Iterable[str],
    ) -> None:
        start = NewChain(job_type, input, id=id, run_at=run_at, blockers=blockers, limit_key=limit_key)
        self._job = new_job(job_types, start)
        self._priority = None if priority is None else checked_priority(priority)
        self._inherits_key = bool(checked_inherit(inherit, ("limit_key",))) and limit_key is None

    def after(self, chain_id: str, last: JobType[Any, Any], job: Job | None) -> NewJob:
        """Return the job that continues a last job of this type; None if that was deleted meanwhile.

        Raises:
            UndeclaredContinuationError: that type does not declare this continuation.
            ConfigurationError: the job would wait for its own chain.
        """
        if chain_id in self._job.blockers:
            raise ConfigurationError(f"blockers of a job must not contain its own chain, got {chain_id!r}")
        if self._job.type not in last.continuations:
            allowed = ", ".join(map(repr, last.continuations)) or "nothing"
            raise UndeclaredContinuationError(
                f"job type {last.name!r} continues with {allowed}, got {self._job.type!r}: add it to continues_with"
            )
        priority = self._priority
        if priority is None:
            priority = 0 if job is None else job.priority
        key = self._job.limit_key if job is None or not self._inherits_key else job.limit_key
        return replace(self._job, priority=priority, limit_key=key)
