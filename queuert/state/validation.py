"""What every store refuses before it looks at anything: batches that no state of it could take."""

from __future__ import annotations

from collections.abc import Sequence

from queuert.errors import InvalidIdentifierError, JobIdConflictError
from queuert.state.types import Finish, WorkerlessCompletion


def check_finishes(finishes: Sequence[Finish]) -> None:
    """Check finishes that are to be written together.

    Raises:
        JobIdConflictError: a continuation has the id of its chain, which is that of the first job.
    """
    own = [one.job.chain_id for one in finishes if one.continuation and one.continuation.id == one.job.chain_id]
    if own:
        raise JobIdConflictError(own)


def check_completions(completions: Sequence[WorkerlessCompletion]) -> None:
    """Check completions from outside that are to be written together.

    Raises:
        InvalidIdentifierError: two completions are of one chain.
        JobIdConflictError: a continuation has the id of its chain, which is that of the first job.
    """
    ids = [one.chain_id for one in completions]
    if len(set(ids)) < len(ids):
        twice = next(id for id in ids if ids.count(id) > 1)
        raise InvalidIdentifierError(f"the chain {twice!r} is to be completed twice in one batch")
    own = [one.chain_id for one in completions if one.continuation is not None and one.continuation.id == one.chain_id]
    if own:
        raise JobIdConflictError(own)
