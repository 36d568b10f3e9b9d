# Generated from queuert/state/redis/async_listing.py, do not edit: see scripts/unasync.py
"""Lists, lookups and counts on Redis. ``sync_listing.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from queuert.jobs import ChainRecord, ChainStatus, Job
from queuert.state.paging import CLOSED_PORTION, ChainFilter, JobFilter, Page, PageRequest, Position, page_of
from queuert.state.redis import decode, encode
from queuert.state.redis.sync_base import RedisBase
from queuert.state.types import COUNTED_DEMAND, COUNTED_WAIT, BlockerRecord, TypeCount, TypeDemand, WaitFacts

_SCAN = 2_000
"""The largest number of entries that one script reads, since other clients wait meanwhile."""


class RedisListing(RedisBase):
    """Lists, lookups and counts."""

    def get_jobs(self, ids: Sequence[str]) -> list[Job | None]:
        """Read jobs in the order of the ids."""
        if not ids:
            return []
        now, *found = self._run("get_jobs", encode.plain(list(ids)))
        return [decode.job(one, int(now)) for one in found]

    def get_chains(self, ids: Sequence[str]) -> list[ChainRecord | None]:
        """Read chains in the order of the ids."""
        if not ids:
            return []
        return [decode.chain(one) for one in self._run("get_chains", encode.plain({"ids": list(ids)}))]

    def closed_chains(
        self, ids: Sequence[str], *, portion: int = CLOSED_PORTION
    ) -> list[ChainRecord | ChainStatus | None]:
        """Read closed chains up to a portion of bytes; for the others only the status."""
        if not ids:
            return []
        found = self._run("get_chains", encode.plain({"ids": list(ids), "portion": portion}))
        return [decode.closed_chain(one) for one in found]

    def get_blockers(self, job_id: str) -> list[BlockerRecord]:
        """Return the chains that a job waits for or waited for, in order."""
        return [decode.blocker(one) for one in self._run("get_blockers", encode.plain([job_id]))]

    def count_jobs(self, types: Sequence[str] | None = None, *, exact_up_to: int = 10_000) -> list[TypeCount]:
        """Count jobs by type and status. The numbers are kept by all scripts, so they are exact."""
        if types is not None and not types:
            return []
        return [decode.type_count(one) for one in self._run("count_jobs", encode.plain(list(types or ())))]

    def get_demand(
        self, types: Sequence[str] | None = None, *, counted_up_to: int = COUNTED_DEMAND
    ) -> list[TypeDemand]:
        """Jobs that could be claimed now, and those that run, by type."""
        if types is not None and not types:
            return []
        params = {"types": list(types or ()), "most": counted_up_to}
        return [decode.type_demand(one) for one in self._run("demand", encode.plain(params))]

    def get_wait_facts(self, job_id: str) -> WaitFacts | None:
        """Read what decides whether a job can be claimed now."""
        params = {"id": job_id, "most": COUNTED_WAIT}
        return decode.wait_facts(self._run("wait_facts", encode.plain(params)))

    def list_chains(self, filter: ChainFilter, page: PageRequest) -> Page[ChainRecord]:
        """List chains by the time of their start."""
        positions = self._positions(filter, page)
        if not positions:
            return page_of((), page.limit)
        params = {"ids": [position.id for position in positions], "expired": True}
        records = map(decode.chain, self._run("get_chains", encode.plain(params)))
        found = zip(records, positions, strict=True)
        return page_of(((chain, position) for chain, position in found if chain is not None), page.limit)

    def list_jobs(self, filter: JobFilter, page: PageRequest) -> Page[Job]:
        """List jobs by the time of their creation."""
        return self._jobs(self._positions(filter, page), page)

    def list_chain_jobs(self, chain_id: str, page: PageRequest) -> Page[Job]:
        """List the jobs of one chain in order."""
        after = None if page.cursor is None else Position.decode_index(page.cursor)
        return self._jobs(self._members(chain_id, page, after), page)

    def list_dependents(self, chain_id: str, page: PageRequest) -> Page[Job]:
        """List the jobs that have a chain among their blockers."""
        after = None if page.cursor is None else Position.decode_id(page.cursor)
        return self._jobs(self._members(chain_id, page, after, blocked=True), page)

    def _positions(self, filter: ChainFilter | JobFilter, page: PageRequest) -> list[Position]:
        """Return the times and ids of the entries of a page, and of one more. Entries that do not match the filter are
        skipped."""
        after = None
        if page.cursor is not None:
            at, id = Position.decode_time(page.cursor)
            after = encode.microseconds(at), id
        found: list[Position] = []
        while True:
            wanted = page.limit + 1 - len(found)
            params = encode.page(filter, after=after, oldest_first=page.oldest_first, limit=wanted, scan=_SCAN)
            stopped, positions = self._run("list_by_time", params)
            found += [Position.at_time(decode.moment(one[0]), decode.text(one[1])) for one in positions]
            if not stopped:
                return found
            after = int(stopped[0]), decode.text(stopped[1])

    def _members(
        self, chain_id: str, page: PageRequest, after: int | str | None, *, blocked: bool = False
    ) -> list[Position]:
        params: dict[str, Any] = {"chain": chain_id, "limit": page.limit + 1}
        params.update({"blocked": True} if blocked else {})
        params.update({"oldest_first": True} if page.oldest_first else {})
        params.update({"after": after} if after is not None else {})
        answer = self._run("list_members", encode.plain(params))
        return [Position(decode.text(one[0]), decode.text(one[1])) for one in answer]

    def _jobs(self, positions: Sequence[Position], page: PageRequest) -> Page[Job]:
        found = zip(self.get_jobs([position.id for position in positions]), positions, strict=True)
        return page_of(((job, position) for job, position in found if job is not None), page.limit)
