"""The chains that a job waits for, from its handler's side: pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from queuert.errors import BlockerFailedError, BlockerMismatchError, DefinitionError, InvalidIdentifierError
from queuert.job_types import JobType, JobTypes
from queuert.jobs import Blocker, ChainStatus
from queuert.new_chain import ChainReference, HasTypeNames, NewChain, chain_ids, new_job, referenced_type
from queuert.outcomes import WaitFor, _ChainStart
from queuert.state.types import BlockerRecord, ClaimedJob

R = TypeVar("R")


def decoded(job_types: JobTypes, job_type: JobType[Any, Any], records: Sequence[BlockerRecord]) -> list[Blocker]:
    """Blockers as a handler sees them.

    Raises:
        BlockerMismatchError: they are not those that the job type declares.
        PayloadDecodeError: an output does not fit its model.
        UnknownJobTypeError: the job type that closed a chain is not registered.
    """
    if job_type.blockers is not None:
        job_type.blockers.check([record.type for record in records])
    return [_decoded(job_types, record) for record in records]


def _decoded(job_types: JobTypes, record: BlockerRecord) -> Blocker:
    output = None if record.output is None else job_types.decode_output(record.tail_type, record.output)
    return Blocker(record.chain_id, record.type, record.status, output, record.error)


def failed(blockers: Sequence[Blocker]) -> list[Blocker]:
    """Those without an output."""
    return [one for one in blockers if one.status is not ChainStatus.COMPLETED]


def check_there(records: Sequence[BlockerRecord], count: int) -> None:
    """Refuse a job that has lost chains that it waited for: they need not be kept for one that has ended.

    Raises:
        BlockerFailedError: there are fewer of them than it had.
    """
    if len(records) < count:
        raise BlockerFailedError(f"{count - len(records)} of the chains that the job waited for are not kept any more")


def check_completed(blockers: Sequence[Blocker | BlockerRecord]) -> None:
    """Raise BlockerFailedError for the first that was not completed."""
    for one in blockers:
        if one.status is not ChainStatus.COMPLETED:
            reason = str(one.error) if one.error else "without a reason"
            raise BlockerFailedError(f"chain {one.chain_id!r}, which it waited for, {one.status}: {reason}")


def outputs(blockers: Sequence[Blocker], job_type: JobType[Any, R]) -> list[R]:
    """The outputs of the chains that began with a job of this type.

    Raises:
        BlockerFailedError: one of them was not completed.
    """
    found = [one for one in blockers if one.type == job_type.name]
    check_completed(found)
    return [one.output for one in found]


def only_output(blockers: Sequence[Blocker], job_type: JobType[Any, R]) -> R:
    """The output of the only chain that began with a job of this type.

    Raises:
        BlockerMismatchError: there is none, or more than one.
        BlockerFailedError: it was not completed.
    """
    count = sum(one.type == job_type.name for one in blockers)
    if count != 1:
        raise BlockerMismatchError(f"the job waited for {count} chains of type {job_type.name!r}, not for one")
    return outputs(blockers, job_type)[0]


def waiting(
    job_type: JobType[Any, Any],
    job: ClaimedJob,
    blockers: Sequence[Blocker],
    job_types: HasTypeNames,
    chains: Sequence[NewChain[Any] | ChainReference],
) -> WaitFor:
    """The outcome of an attempt that waits for these chains; what it raises see ``Attempt.wait_for``."""
    had = {one.chain_id: one.status for one in blockers}
    wanted = _once([(_wanted(job_types, one), referenced_type(one)) for one in chains])
    if any(_id_of(one) == job.chain_id for one, _ in wanted):
        raise DefinitionError("a job cannot wait for its own chain: it would wait for ever")
    new = [(one, reported) for one, reported in wanted if isinstance(one, _ChainStart) or one not in had]
    # One that failed may have been retried since, and is worth waiting for again.
    if not new and all(had[one] is ChainStatus.COMPLETED for one, _ in wanted if isinstance(one, str)):
        raise DefinitionError("attempt.wait_for names no chain that is not completed already: it would run in a circle")
    if job_type.blockers is not None:
        job_type.blockers.check([*(one.type for one in blockers), *(reported for _, reported in new)])
    return WaitFor(tuple(one for one, _ in wanted))


def _wanted(job_types: HasTypeNames, chain: NewChain[Any] | ChainReference) -> _ChainStart | str:
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
        priority=job.priority,
        run_at=job.run_at,
        limit_key=job.limit_key,
        result_ttl=job.result_ttl,
    )


def _id_of(chain: _ChainStart | str) -> str | None:
    return chain if isinstance(chain, str) else chain.id


def _once(chains: Sequence[tuple[_ChainStart | str, str | None]]) -> list[tuple[_ChainStart | str, str | None]]:
    """References that are repeated, once; an id that is to be started may not be repeated."""
    seen: dict[str, _ChainStart | str] = {}
    found = []
    for chain, reported in chains:
        id = _id_of(chain)
        if id is None or id not in seen:
            found.append((chain, reported))
        elif isinstance(chain, _ChainStart) or isinstance(seen[id], _ChainStart):
            raise InvalidIdentifierError(f"the id {id!r} is given twice in attempt.wait_for")
        if id is not None:
            seen.setdefault(id, chain)
    return found
