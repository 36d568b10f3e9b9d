# Generated from queuert/state/postgres/async_listing.py, do not edit: see scripts/unasync.py
"""Jobs and chains by id, pages, blockers and counts on Postgres. ``sync_listing.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from queuert.jobs import ChainRecord, ChainState, ChainStatus, Job, JobStatus
from queuert.state import records
from queuert.state.paging import CLOSED_PORTION, ChainFilter, JobFilter, Page, PageRequest
from queuert.state.postgres import listing
from queuert.state.postgres.sync_base import PostgresBase
from queuert.state.postgres.sync_statements import fetch
from queuert.state.types import (
    COUNTED_DEMAND,
    COUNTED_WAIT,
    NAMED_HOLDERS,
    BlockerLink,
    BlockerRecord,
    TypeCount,
    TypeDemand,
    WaitFacts,
)

_ID, _STATUS, _INPUT = records.places(records.CHAIN, "id", "status", "input")


class PostgresListing(PostgresBase):
    """Jobs and chains by id, pages, blockers and counts."""

    def get_jobs(self, ids: Sequence[str], *, connection: Any = None) -> list[Job | None]:
        """Read jobs in the order of the ids."""
        rows = self._read(connection, self._sql.get_jobs, {"ids": list(ids)})
        found = {job.id: job for job in map(records.job, rows)}
        return [found.get(one) for one in ids]

    def get_chains(
        self, ids: Sequence[str], *, payloads: bool = True, connection: Any = None
    ) -> list[ChainRecord | None]:
        """Read chains in the order of the ids."""
        rows = self._read(connection, self._sql.get_chains, {"ids": list(ids), "payloads": payloads})
        found = {chain.id: chain for chain in map(records.chain, rows)}
        return [found.get(one) for one in ids]

    def get_chain_states(self, ids: Sequence[str]) -> list[ChainState | None]:
        """Read where chains are, in the order of the ids."""
        rows = self._fetch(self._sql.get_chain_states, {"ids": list(ids)})
        found = {state.id: state for state in map(records.chain_state, rows)}
        return [found.get(one) for one in ids]

    def closed_chains(
        self, ids: Sequence[str], *, portion: int = CLOSED_PORTION
    ) -> list[ChainRecord | ChainStatus | None]:
        """Read closed chains up to a portion of bytes; for the others only the status."""
        params = {"ids": list(ids), "portion": portion}
        found: dict[str, ChainRecord | ChainStatus] = {}
        for row in self._fetch(self._sql.closed_chains, params):
            # Without an input, where the chain is open or its turn has not come.
            found[row[_ID]] = ChainStatus(row[_STATUS]) if row[_INPUT] is None else records.chain(row)
        return [found.get(one) for one in ids]

    def list_chains(
        self, filter: ChainFilter, page: PageRequest, *, payloads: bool = True, connection: Any = None
    ) -> Page[ChainRecord]:
        """List chains by the time of their start."""
        sql, params = self._sql, {**listing.by_time(filter, page), "payloads": payloads}
        if filter.attributes:
            params |= listing.attribute_pairs(filter)
            statement = (
                sql.list_chains_by_attributes_oldest_first if page.oldest_first else sql.list_chains_by_attributes
            )
        else:
            statement = sql.list_chains_oldest_first if page.oldest_first else sql.list_chains
        return listing.chains(self._read(connection, statement, params), page.limit)

    def list_jobs(self, filter: JobFilter, page: PageRequest, *, connection: Any = None) -> Page[Job]:
        """List jobs by the time of their creation."""
        statement = self._sql.list_jobs_oldest_first if page.oldest_first else self._sql.list_jobs
        return listing.jobs(self._read(connection, statement, listing.by_time(filter, page)), page.limit)

    def chains_of_key(
        self, type: str, key: str, *, only_open: bool = True, limit: int = 100, connection: Any = None
    ) -> list[str]:
        """Return the ids of the chains of a deduplication key, the newest first."""
        params = {"type": type, "key": key, "only_open": only_open, "limit": limit}
        return [id for (id,) in self._read(connection, self._sql.chains_of_key, params)]

    def list_chain_jobs(self, chain_id: str, page: PageRequest, *, connection: Any = None) -> Page[Job]:
        """List the jobs of one chain in order, the last first unless ``oldest_first``."""
        statement = self._sql.list_chain_jobs_oldest_first if page.oldest_first else self._sql.list_chain_jobs
        return listing.chain_jobs(self._read(connection, statement, listing.by_index(chain_id, page)), page.limit)

    def list_dependents(self, chain_id: str, page: PageRequest, *, connection: Any = None) -> Page[Job]:
        """List the jobs that have this chain among their blockers, by id, whatever their status."""
        statement = self._sql.list_dependents_oldest_first if page.oldest_first else self._sql.list_dependents
        return listing.blocked_jobs(self._read(connection, statement, listing.by_id(chain_id, page)), page.limit)

    def get_blockers(self, job_id: str, *, outputs: bool = True, connection: Any = None) -> list[BlockerRecord]:
        """Return the chains that a job waits for or waited for, in order."""
        params = {"id": job_id, "outputs": outputs}
        return [records.blocker(row) for row in self._read(connection, self._sql.get_blockers, params)]

    def get_blocker_links(self, chain_ids: Sequence[str], *, limit: int, connection: Any = None) -> list[BlockerLink]:
        """Return which chains the jobs of chains wait for or waited for."""
        params = {"chains": list(dict.fromkeys(chain_ids)), "limit": limit}
        return [BlockerLink(*row) for row in self._read(connection, self._sql.get_blocker_links, params)]

    def get_dependent_links(
        self,
        chain_ids: Sequence[str],
        *,
        statuses: Collection[JobStatus],
        limit: int,
        excluding: Collection[str] = (),
        connection: Any = None,
    ) -> list[BlockerLink]:
        """Return which jobs of some statuses wait for chains or waited for them."""
        params = {
            "chains": list(dict.fromkeys(chain_ids)),
            "statuses": [status.value for status in statuses],
            "excluding": list(excluding),
            "limit": limit,
        }
        return [BlockerLink(*row) for row in self._read(connection, self._sql.get_dependent_links, params)]

    def count_jobs(self, types: Sequence[str] | None = None, *, exact_up_to: int = 10_000) -> list[TypeCount]:
        """Count jobs by type and status."""
        with self._connections.connection() as connection:
            found = fetch(connection, self._sql.count_jobs, listing.count_parameters(types, exact_up_to))
            counted = [listing.counted(row) for row in found]
            estimates: dict[listing.Stored, int] = {}
            too_many = list(listing.too_many(counted, exact_up_to))
            for first in range(0, len(too_many), listing.AT_ONCE):
                some = too_many[first : first + listing.AT_ONCE]
                [row] = fetch(connection, *listing.estimates(self._sql.estimate, some))
                estimates |= listing.estimated_rows(row, some)
        return listing.type_counts(counted, estimates, exact_up_to)

    def get_demand(
        self, types: Sequence[str] | None = None, *, counted_up_to: int = COUNTED_DEMAND
    ) -> list[TypeDemand]:
        """Jobs that could be claimed now, and those that run, by type."""
        params = {"types": None if types is None else list(types), "counted_up_to": counted_up_to}
        return [TypeDemand(*row) for row in self._fetch(self._sql.demand, params)]

    def get_wait_facts(self, job_id: str) -> WaitFacts | None:
        """Read what decides whether a job can be claimed now."""
        rows = self._fetch(self._sql.wait_facts, {"id": job_id, "most": COUNTED_WAIT, "named": NAMED_HOLDERS})
        return listing.wait_facts(rows[0]) if rows else None
