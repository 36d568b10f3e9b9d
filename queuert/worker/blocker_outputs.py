"""The blockers of an attempt: their outputs, and the outcome that waits for more chains. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from queuert.errors import (
    BlockerFailedError,
    BlockerMismatchError,
    DefinitionError,
    InvalidIdentifierError,
)
from queuert.job_types import JobType, JobTypes
from queuert.jobs import Blocker, ChainStatus, first_line
from queuert.new_chain import ChainReference, HasTypeNames, NewChain, chain_ids, new_job, referenced_type
from queuert.outcomes import Inherited, WaitFor, _ChainStart, checked_inherit
from queuert.state.types import BlockerRecord, ClaimedJob

R = TypeVar("R")


def decoded(job_types: JobTypes, job_type: JobType[Any, Any], records: Sequence[BlockerRecord]) -> list[Blocker]:
    """Return the blockers of a job, with decoded outputs.

    Raises:
        BlockerMismatchError: they are not those that the job type declares.
        PayloadDecodeError: an output is not valid for its model.
        UnknownJobTypeError: the job type that closed a chain is not registered.
    """
    if job_type.blockers is not None:
        job_type.blockers.check([record.type for record in records])
    return [_decoded(job_types, record) for record in records]


def _decoded(job_types: JobTypes, record: BlockerRecord) -> Blocker:
    output = None if record.output is None else job_types.decode_output(record.tail_type, record.output)
    return Blocker(record.chain_id, record.type, record.status, output, record.error)


def failed(blockers: Sequence[Blocker]) -> list[Blocker]:
    """Return the blockers without an output."""
    return [blocker for blocker in blockers if blocker.status is not ChainStatus.COMPLETED]


def check_not_deleted(records: Sequence[BlockerRecord], count: int) -> None:
    """Check that all blockers of a job still exist. They may be deleted once the job has finished, before a retry.

    Raises:
        BlockerFailedError: some were deleted.
    """
    if len(records) < count:
        raise BlockerFailedError(f"{count - len(records)} of the chains that the job waited for are not kept any more")


def check_completed(blockers: Sequence[Blocker | BlockerRecord]) -> None:
    """Raise BlockerFailedError for the first blocker that was not completed."""
    for blocker in blockers:
        if blocker.status is not ChainStatus.COMPLETED:
            reason = first_line(str(blocker.error)) if blocker.error else "without a reason"
            # The first line is the same for all that failed for one cause: failures are grouped by it.
            raise BlockerFailedError(
                f"a chain of type {blocker.type!r}, which it waited for, {blocker.status}: {reason.rstrip('.')}.\n"
                f"It is chain {blocker.chain_id!r}"
            )


def outputs(blockers: Sequence[Blocker], job_type: JobType[Any, R]) -> list[R]:
    """Return the outputs of the chains that began with a job of this type.

    Raises:
        BlockerFailedError: one of them was not completed.
    """
    of_type = [blocker for blocker in blockers if blocker.type == job_type.name]
    check_completed(of_type)
    return [blocker.output for blocker in of_type]


def only_output(blockers: Sequence[Blocker], job_type: JobType[Any, R]) -> R:
    """Return the output of the only chain that began with a job of this type.

    Raises:
        BlockerMismatchError: there is none, or more than one.
        BlockerFailedError: it was not completed.
    """
    count = sum(blocker.type == job_type.name for blocker in blockers)
    if count != 1:
        raise BlockerMismatchError(f"the job waited for {count} chains of type {job_type.name!r}, not for one")
    return outputs(blockers, job_type)[0]


def wait_outcome(
    job_type: JobType[Any, Any],
    job: ClaimedJob,
    blockers: Sequence[Blocker],
    job_types: HasTypeNames,
    chains: Sequence[NewChain[Any] | ChainReference],
    inherit: Iterable[Inherited],
) -> WaitFor:
    """Return the outcome of an attempt that waits for these chains. It raises what ``Attempt.wait_for`` says."""
    if not chains:
        raise DefinitionError(
            "attempt.wait_for must get at least one chain, got none: return another outcome where there is nothing to "
            "wait for"
        )
    statuses = {blocker.chain_id: blocker.status for blocker in blockers}
    inherited = checked_inherit(inherit, ("attributes", "limit_key", "priority"))
    targets = _without_repeats(
        [(_target(job_types, chain, job.priority, inherited), referenced_type(chain)) for chain in chains]
    )
    if any(_id_of(target) == job.chain_id for target, _ in targets):
        raise DefinitionError("a job cannot wait for its own chain: it would wait for ever")
    new = [(target, type) for target, type in targets if isinstance(target, _ChainStart) or target not in statuses]
    # A chain that failed may have been retried since, so a job may wait for it again.
    if not new and all(statuses[id] is ChainStatus.COMPLETED for id, _ in targets if isinstance(id, str)):
        raise DefinitionError("attempt.wait_for names no chain that is not completed already: it would run in a circle")
    if job_type.blockers is not None:
        job_type.blockers.check([*(blocker.type for blocker in blockers), *(type for _, type in new)])
    return WaitFor(tuple(target for target, _ in targets))


def _target(
    job_types: HasTypeNames, chain: NewChain[Any] | ChainReference, priority: int, inherited: frozenset[str]
) -> _ChainStart | str:
    if not isinstance(chain, NewChain):
        return chain_ids([chain])[0]
    if tuple(chain.blockers) or chain.deduplication is not None or chain.attach:
        raise DefinitionError(
            "a NewChain in attempt.wait_for takes no blockers, deduplication or attach: start it with the client, and "
            "wait for its handle"
        )
    job = new_job(job_types, chain)
    return _ChainStart(
        job_type=job.type,
        input=job.input,
        id=chain.id,
        priority=job.priority or (priority if "priority" in inherited else 0),
        run_at=job.run_at,
        limit_key=job.limit_key,
        result_ttl=job.result_ttl,
        attributes=job.attributes,
        max_attempts=job.max_attempts,
        inherit_limit_key="limit_key" in inherited,
        inherit_attributes="attributes" in inherited,
    )


def _id_of(chain: _ChainStart | str) -> str | None:
    return chain if isinstance(chain, str) else chain.id


def _without_repeats(
    targets: Sequence[tuple[_ChainStart | str, str | None]],
) -> list[tuple[_ChainStart | str, str | None]]:
    """Return the chains, each with its type, without repeated references. The id of a start must not be repeated."""
    seen: dict[str, _ChainStart | str] = {}
    unique = []
    for target, type in targets:
        id = _id_of(target)
        if id is None or id not in seen:
            unique.append((target, type))
        elif isinstance(target, _ChainStart) or isinstance(seen[id], _ChainStart):
            raise InvalidIdentifierError(f"the id {id!r} is given twice in attempt.wait_for")
        if id is not None:
            seen.setdefault(id, target)
    return unique
