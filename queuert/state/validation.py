"""Checks of batches that every store makes before it writes them."""

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
    """Check workerless completions that are to be written together.

    Raises:
        InvalidIdentifierError: two completions are of the same chain.
        JobIdConflictError: a continuation has the id of its chain, which is that of the first job.
    """
    ids = [one.chain_id for one in completions]
    if len(set(ids)) < len(ids):
        twice = next(id for id in ids if ids.count(id) > 1)
        raise InvalidIdentifierError(f"chains of a batch of completions must be unique, got {twice!r} twice")
    own = [one.chain_id for one in completions if one.continuation is not None and one.continuation.id == one.chain_id]
    if own:
        raise JobIdConflictError(own)
