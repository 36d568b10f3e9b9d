"""The operations of a store that list. ``sync_listing.py`` is generated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from queuert.jobs import ChainRecord, Job
from queuert.state.adapter import BlockerRecord, TypeCount
from queuert.state.paging import ChainFilter, JobFilter, Page, PageRequest


class AsyncListingStore(Protocol):
    """Read pages. A page costs as much as its entries and the types it looks through, not as much as the table.

    All raise InvalidCursorError for a cursor that is not of this listing.
    """

    async def list_chains(self, filter: ChainFilter, page: PageRequest) -> Page[ChainRecord]:
        """Chains by the time they were started."""
        ...

    async def list_jobs(self, filter: JobFilter, page: PageRequest) -> Page[Job]:
        """Jobs by the time they were created."""
        ...

    async def list_chain_jobs(self, chain_id: str, page: PageRequest) -> Page[Job]:
        """The jobs of one chain in their order; the last first unless ``oldest_first``."""
        ...

    async def list_blocked_jobs(self, chain_id: str, page: PageRequest) -> Page[Job]:
        """The jobs that have this chain among their blockers, by id, whatever their status."""
        ...

    async def get_blockers(self, job_id: str) -> list[BlockerRecord]:
        """The chains that a job waits for or waited for, in the order in which they were given."""
        ...

    async def counts(self, types: Sequence[str] | None = None, *, exact_up_to: int = 10_000) -> list[TypeCount]:
        """Jobs by type and status, of all types or of some; numbers above ``exact_up_to`` may be estimates."""
        ...
