# Generated from queuert/state/postgres/async_listing.py, do not edit: see scripts/unasync.py
"""Pages, blockers and counts on Postgres. ``sync_listing.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Sequence

from queuert.jobs import ChainRecord, Job
from queuert.state.adapter import BlockerRecord, TypeCount
from queuert.state.listing import ChainFilter, JobFilter, Page, PageRequest
from queuert.state.postgres import rows
from queuert.state.postgres.sync_base import PostgresBase


class PostgresListing(PostgresBase):
    """Pages, blockers and counts."""

    def list_chains(self, filter: ChainFilter, page: PageRequest) -> Page[ChainRecord]:
        """Chains by the time they were started."""
        raise NotImplementedError

    def list_jobs(self, filter: JobFilter, page: PageRequest) -> Page[Job]:
        """Jobs by the time they were created."""
        raise NotImplementedError

    def list_chain_jobs(self, chain_id: str, page: PageRequest) -> Page[Job]:
        """The jobs of one chain in their order; the last first unless ``oldest_first``."""
        raise NotImplementedError

    def list_blocked_jobs(self, chain_id: str, page: PageRequest) -> Page[Job]:
        """The jobs that have this chain among their blockers, by id, whatever their status."""
        raise NotImplementedError

    def get_blockers(self, job_id: str) -> list[BlockerRecord]:
        """The chains that a job waits for, in order."""
        return [rows.blocker(row) for row in self._fetch(self._sql.get_blockers, {"id": job_id})]

    def counts(self, types: Sequence[str] | None = None, *, exact_up_to: int = 10_000) -> list[TypeCount]:
        """Jobs by type and status."""
        asked = {"types": None if types is None else list(types)}
        return [rows.type_count(row) for row in self._fetch(self._sql.counts, asked)]
