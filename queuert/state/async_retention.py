"""The operations of a store on chains that need not be kept. ``sync_retention.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from queuert.jobs import TtlUpdate
from queuert.state.retention import RetireRequest, RetireResult, StagingUpkeep


class AsyncRetentionStore(Protocol):
    """Ends of closed chains, many at a time.

    A chain that closes with a ``result_ttl`` expires so many seconds later, by the store's clock. From then on it is
    gone for ``get_chains``, for ``update_result_ttl`` and for starts, whether its rows are there or not.
    """

    async def update_result_ttl(self, ids: Sequence[str], seconds: float) -> list[TtlUpdate]:
        """Let closed chains expire ``seconds`` from now instead, results in the order asked.

        Open chains keep the TTL that they were started with, and so does a closed one for when it is retried.

        Raises:
            ConfigurationError: ``seconds`` is not above 0, or more than a hundred years.
        """
        ...

    async def retire(self, request: RetireRequest) -> RetireResult:
        """Delete closed chains that have expired, or that the retention of their type does not keep.

        With a chain go all its jobs, and its entries among the blockers of jobs that have ended. One that a job which
        has not ended has as a blocker stays until that job has. Chains that others hold are passed over, never waited
        for.

        Raises:
            InvalidCursorError: the cursor is not one of this operation.
        """
        ...

    async def tend_staging(self) -> StagingUpkeep:
        """Remove what bulk writes have staged whose drivers died, and forget those that nobody can ask for any more.

        A staging table that is being loaded stays, and so does one that another role made.
        """
        ...
