# Generated from queuert/state/async_outside.py, do not edit: see scripts/unasync.py
"""The operations of a store on chains from outside of their handlers. ``sync_outside.py`` is generated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from queuert.state.outside import DeleteResult, Intervention, OutsideCompletion, SweepResult, TriggeredJob


class OutsideStore(Protocol):
    """Complete, cancel, retry, trigger and delete, many at a time.

    All are all-or-nothing. With ``connection`` they are part of the caller's transaction, and the store sends the hints
    (jobs that became due, chains that closed, leases that were taken away) when it commits; otherwise the caller sends
    them from the results. Rows that others have locked are waited for. A running job loses its lease with its status:
    its holder's ending is refused.
    """

    def complete_chains(
        self, completions: Sequence[OutsideCompletion], *, connection: Any = None
    ) -> list[Intervention]:
        """End the last job of each chain with an output or a continuation, whatever it was waiting for.

        If one of the chains has closed, or has gone on to another last job than ``tail_id``, nothing is written for any
        of them: the results say how each was met, ``written`` false.

        Raises:
            ChainNotFoundError: one of them, or a continuation's blocker, does not exist.
            JobIdConflictError: the chosen id of a continuation exists.
        """
        ...

    def cancel_chains(self, ids: Sequence[str], *, reason: str, connection: Any = None) -> list[Intervention]:
        """Close open chains as cancelled, with an error of kind ``cancel``; closed ones stay as they are.

        Jobs that waited for them are released.

        Raises:
            ChainNotFoundError: one of them does not exist.
        """
        ...

    def retry_chains(self, ids: Sequence[str], *, connection: Any = None) -> list[Intervention]:
        """Open failed and cancelled chains again: their last job is due at once, with all its attempts before it.

        Its attempts so far do not count any more. Where chains that it waited for are open again, it waits again.

        Raises:
            ChainNotFoundError: one of them does not exist.
            ChainNotRetriableError: one of them is open or completed.
        """
        ...

    def trigger_jobs(self, ids: Sequence[str], *, connection: Any = None) -> list[TriggeredJob]:
        """Make scheduled jobs due now, results in the order asked. Ready ones stay as they are.

        Raises:
            JobNotFoundError: one of them does not exist.
            JobNotTriggerableError: one of them is blocked, running, or has ended.
        """
        ...

    def delete_chains(self, ids: Sequence[str], *, cascade: bool = False, connection: Any = None) -> DeleteResult:
        """Delete chains with all their jobs, whatever their status; those that do not exist are passed over.

        With ``cascade`` the chains that any of their jobs waited for go with them, and so on down.

        Raises:
            BlockerReferenceError: a job that is not deleted with them has one of them as its blocker.
        """
        ...

    def sweep(self, *, cursor: str | None = None, limit: int = 500) -> SweepResult:
        """Release blocked jobs all of whose blockers have closed: what a bug or a statement by hand left behind.

        Looks at up to ``limit`` blocked jobs, from ``cursor`` on; passes over rows that others have locked.
        """
        ...
