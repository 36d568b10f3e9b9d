"""Lists and counts, asynchronously. ``sync_listing.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from queuert.attributes import GivenAttributes, attribute_filter
from queuert.client.arguments import checked_time, decoded_blockers, known_statuses, shown_page, type_filter
from queuert.client.async_base import AsyncClientBase
from queuert.client.async_chain import AsyncChain
from queuert.client.schedules import JobTypeReference
from queuert.jobs import Blocker, ChainStatus, Job, JobStatus
from queuert.new_chain import ChainReference, chain_ids
from queuert.payloads import check_text
from queuert.state.paging import ChainFilter, JobFilter, Page, PageRequest
from queuert.state.types import TypeCount
from queuert.workers import WorkerRecord

if TYPE_CHECKING:
    from queuert.client.async_client import AsyncClient


class AsyncClientListing(AsyncClientBase):
    """Lists and counts.

    Lists come in pages. A page costs as much as its entries and the job types it looks through, however many jobs
    there are. Entries that are added or deleted while pages are read shift nothing.

    Example::

        cursor = None
        while True:
            page = await client.list_chains(statuses=[ChainStatus.FAILED], limit=200, cursor=cursor)
            await client.retry_chains(page)
            cursor = page.next_cursor
            if cursor is None:
                break
    """

    # --- chains and jobs ----------------------------------------------------------------------------------------------

    async def list_chains(
        self,
        *,
        job_types: Iterable[JobTypeReference] | None = None,
        statuses: Iterable[ChainStatus | str] | None = None,
        attributes: GivenAttributes | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
        oldest_first: bool = False,
    ) -> Page[AsyncChain[Any]]:
        """A page of chains by the time they were started, the newest first.

        Args:
            job_types: of their first jobs: job types, or names, also such as are not registered (any more).
            statuses: how they stand; ``[ChainStatus.FAILED]`` are the dead letters.
            attributes: all of which they were started with: ``{"user": 17, "tags": ["a", "b"]}`` finds those of user 17
                that have both tags, and perhaps others. Numbers are looked for as the text that they are.
            since: started then or later.
            before: started earlier.
            limit: entries of the page at most, from 1 to 1,000.
            cursor: the ``next_cursor`` of the page before, which was asked for with the same other arguments.
            oldest_first: the oldest first.

        Raises:
            InvalidCursorError: the cursor is not one of such a list.
            ConfigurationError: the limit is out of range, a status does not exist, a time has no time zone, or an
                attribute is of the wrong kind or names no value.
            InvalidIdentifierError: a name is none that a job type, or an attribute, can have.
        """
        filter = ChainFilter(
            types=type_filter(job_types),
            statuses=known_statuses(ChainStatus, statuses),
            attributes=attribute_filter(attributes),
            since=checked_time(since, name="since"),
            before=checked_time(before, name="before"),
        )
        request = PageRequest(limit, cursor, oldest_first)
        page = await (await self._opened()).list_chains(filter, request)
        client = cast("AsyncClient", self)
        return Page(tuple(AsyncChain(client, one.id, one.type, one) for one in page), page.next_cursor)

    async def list_jobs(
        self,
        *,
        job_types: Iterable[JobTypeReference] | None = None,
        statuses: Iterable[JobStatus | str] | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
        oldest_first: bool = False,
    ) -> Page[Job]:
        """A page of jobs, first ones and continuations, by the time they were created, the newest first.

        Arguments and errors are those of :meth:`list_chains`, but for ``statuses``, which are those of jobs. A
        scheduled job whose time has come is shown as READY, and found among the SCHEDULED ones until it is claimed.
        """
        filter = JobFilter(
            types=type_filter(job_types),
            statuses=known_statuses(JobStatus, statuses),
            since=checked_time(since, name="since"),
            before=checked_time(before, name="before"),
        )
        request = PageRequest(limit, cursor, oldest_first)
        return shown_page(self.job_types, await (await self._opened()).list_jobs(filter, request))

    # --- around a chain -----------------------------------------------------------------------------------------------

    async def list_chain_jobs(
        self, chain: ChainReference, *, limit: int = 50, cursor: str | None = None, oldest_first: bool = True
    ) -> Page[Job]:
        """A page of the jobs of one chain, in their order; of none if there is no such chain.

        Args:
            chain: its id, or a handle.
            limit: entries of the page at most, from 1 to 1,000.
            cursor: the ``next_cursor`` of the page before.
            oldest_first: if false, the last job first.

        Raises:
            InvalidCursorError: the cursor is not one of such a list.
            ConfigurationError: the limit is out of range.
            InvalidIdentifierError: no chain can have this id.
        """
        [id] = chain_ids([chain])
        request = PageRequest(limit, cursor, oldest_first)
        return shown_page(self.job_types, await (await self._opened()).list_chain_jobs(id, request))

    async def list_dependents(
        self, chain: ChainReference, *, limit: int = 50, cursor: str | None = None, oldest_first: bool = True
    ) -> Page[Job]:
        """A page of the jobs that wait for a chain, or waited for it, in the order of their ids.

        Arguments and errors are those of :meth:`list_chain_jobs`. Generated ids are in the order of time.
        """
        [id] = chain_ids([chain])
        request = PageRequest(limit, cursor, oldest_first)
        return shown_page(self.job_types, await (await self._opened()).list_dependents(id, request))

    async def get_blockers(self, job_id: str) -> list[Blocker]:
        """The chains that a job waits for, or waited for, in the order in which they were given.

        Outputs are in the model of the job type that completed the chain; plain JSON where it is not registered with
        this client. A job that does not exist has none.

        Raises:
            PayloadDecodeError: an output does not fit its model.
            InvalidIdentifierError: no job can have this id.
        """
        id = check_text(job_id, what="job id")
        return decoded_blockers(self.job_types, await (await self._opened()).get_blockers(id))

    # --- counts -------------------------------------------------------------------------------------------------------

    async def count_jobs(self, job_types: Iterable[JobTypeReference] | None = None) -> list[TypeCount]:
        """How many jobs there are, by type and status, and how old the oldest is; what there is none of is left out.

        Up to 10,000 of a type and status the number is exact; beyond, it may be the planner's estimate, and says so.

        Args:
            job_types: job types, or names; by default all that have jobs.

        Raises:
            InvalidIdentifierError: a name is none that a job type can have.
        """
        names = type_filter(job_types)
        return await (await self._opened()).count_jobs(names)

    # --- workers ------------------------------------------------------------------------------------------------------

    async def list_workers(self) -> list[WorkerRecord]:
        """The workers that told of themselves within the last minute, the longest running first.

        A worker does so every 20 seconds, and takes itself off the list when it has stopped; one that was killed is
        listed for up to a minute more. This is informational: whether a job is lost is decided by its lease alone.

        Example::

            for worker in await client.list_workers():
                print(worker.id, worker.state, worker.running, "of", worker.concurrency)
        """
        return await (await self._opened()).list_workers()
