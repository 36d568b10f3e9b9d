# Generated from queuert/client/async_listing.py, do not edit: see scripts/unasync.py
"""Lists and counts in a sync client. ``sync_listing.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, cast

from queuert.activity import Activity, Period
from queuert.attributes import GivenAttributes, attribute_filter
from queuert.client.arguments import (
    activity_filter,
    checked_time,
    decoded_blockers,
    decoded_jobs,
    known_statuses,
    type_filter,
)
from queuert.client.connections import ConnectionLike
from queuert.client.schedules import JobTypeReference
from queuert.client.sync_base import ClientBase
from queuert.client.sync_chain import Chain, ChainClient
from queuert.errors import ConfigurationError, JobNotFoundError
from queuert.jobs import Blocker, ChainStatus, Job, JobStatus, JobStep
from queuert.new_chain import ChainReference, chain_ids
from queuert.payloads import check_text
from queuert.state.paging import ChainFilter, JobFilter, Page, PageRequest
from queuert.state.types import COUNTED_DEMAND, TypeCount, TypeDemand
from queuert.steps import shown_steps
from queuert.workers import WorkerRecord

MAX_COUNTED = 100_000
"""The highest ``counted_up_to`` of ``get_demand``."""


class ClientListing(ClientBase):
    """Lists and counts chains, jobs and workers, and what workers did.

    Lists are returned in pages. The cost of a page depends on its entries and the number of job types, not on the
    number of jobs. Entries that are added or deleted meanwhile shift no page.

    Example::

        cursor = None
        while True:
            page = client.list_chains(statuses=[ChainStatus.FAILED], limit=200, cursor=cursor)
            client.retry_chains(page)
            cursor = page.next_cursor
            if cursor is None:
                break
    """

    # --- chains and jobs ----------------------------------------------------------------------------------------------

    def list_chains(
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
        connection: ConnectionLike | None = None,
    ) -> Page[Chain[Any]]:
        """Return a page of chains by the time of their start, the newest first.

        Args:
            job_types: only chains whose first jobs have these job types, or names, registered or not.
            statuses: only chains of these statuses; ``[ChainStatus.FAILED]`` lists the dead letters.
            attributes: only chains that have all of these: ``{"user": 17, "tags": ["a", "b"]}`` finds those of user 17
                with both tags, and perhaps others. Numbers match the same text.
            since: only chains that were started at this time or later.
            before: only chains that were started before this time.
            limit: the most entries of the page, between 1 and 1,000.
            cursor: the ``next_cursor`` of the previous page, with the same other arguments.
            oldest_first: return the oldest chain first.
            connection: a connection of yours, in whose transaction the page is read, see :meth:`get_chain`.

        Raises:
            InvalidCursorError: the cursor does not belong to this listing.
            ConfigurationError: the limit is out of range, a status does not exist, a time has no time zone, or an
                attribute is of the wrong type or has no value.
            InvalidIdentifierError: the name of a job type or an attribute is not valid.
        """
        filter = ChainFilter(
            types=type_filter(job_types),
            statuses=known_statuses(ChainStatus, statuses),
            attributes=attribute_filter(attributes),
            since=checked_time(since, name="since"),
            before=checked_time(before, name="before"),
        )
        request = PageRequest(limit, cursor, oldest_first)
        page = (self._open_store()).list_chains(filter, request, connection=connection)
        client = cast("ChainClient", self)
        return Page(tuple(Chain(client, record) for record in page), page.next_cursor)

    def list_jobs(
        self,
        *,
        job_types: Iterable[JobTypeReference] | None = None,
        statuses: Iterable[JobStatus | str] | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        limit: int = 50,
        cursor: str | None = None,
        oldest_first: bool = False,
        connection: ConnectionLike | None = None,
    ) -> Page[Job]:
        """Return a page of jobs, also continuations, by the time of their creation, the newest first.

        Arguments and errors are those of :meth:`list_chains`, except that ``statuses`` are those of jobs. A scheduled
        job that has become due is shown as READY, but listed among the SCHEDULED ones until it is claimed.
        """
        filter = JobFilter(
            types=type_filter(job_types),
            statuses=known_statuses(JobStatus, statuses),
            since=checked_time(since, name="since"),
            before=checked_time(before, name="before"),
        )
        request = PageRequest(limit, cursor, oldest_first)
        page = (self._open_store()).list_jobs(filter, request, connection=connection)
        return decoded_jobs(self.job_types, page)

    # --- around a chain -----------------------------------------------------------------------------------------------

    def list_chain_jobs(
        self,
        chain: ChainReference,
        *,
        limit: int = 50,
        cursor: str | None = None,
        oldest_first: bool = True,
        connection: ConnectionLike | None = None,
    ) -> Page[Job]:
        """Return a page of the jobs of one chain, in order; an empty one if the chain does not exist.

        Args:
            chain: its id, or a handle.
            limit: the most entries of the page, between 1 and 1,000.
            cursor: the ``next_cursor`` of the previous page.
            oldest_first: set it to False to get the last job first.
            connection: a connection of yours, in whose transaction the page is read, see :meth:`get_chain`.

        Raises:
            InvalidCursorError: the cursor does not belong to this listing.
            ConfigurationError: the limit is out of range.
            InvalidIdentifierError: the id is not valid.
        """
        [id] = chain_ids([chain])
        request = PageRequest(limit, cursor, oldest_first)
        page = (self._open_store()).list_chain_jobs(id, request, connection=connection)
        return decoded_jobs(self.job_types, page)

    def list_dependents(
        self,
        chain: ChainReference,
        *,
        limit: int = 50,
        cursor: str | None = None,
        oldest_first: bool = True,
        connection: ConnectionLike | None = None,
    ) -> Page[Job]:
        """Return a page of the jobs that wait for a chain, or waited for it, in the order of their ids.

        Arguments and errors are those of :meth:`list_chain_jobs`. Generated ids are in the order of their creation.
        """
        [id] = chain_ids([chain])
        request = PageRequest(limit, cursor, oldest_first)
        page = (self._open_store()).list_dependents(id, request, connection=connection)
        return decoded_jobs(self.job_types, page)

    def get_blockers(self, job_id: str, *, connection: ConnectionLike | None = None) -> list[Blocker]:
        """Return the chains that a job waits for, or waited for, in the order in which they were passed.

        Outputs are in the model of the job type that completed the chain, or plain JSON if that is not registered with
        this client. The list is empty for a job that does not exist.

        Raises:
            PayloadDecodeError: an output is not valid for its model.
            InvalidIdentifierError: the id is not valid.
        """
        id = check_text(job_id, what="job id")
        records = (self._open_store()).get_blockers(id, connection=connection)
        return decoded_blockers(self.job_types, records)

    def get_steps(self, job_id: str) -> list[JobStep]:
        """Return the steps of a job that its attempts have recorded, in order.

        Results are plain JSON, decoded by the format of the job type if that is registered with this client.

        Raises:
            JobNotFoundError: the job was never committed, or it was deleted.
            InvalidIdentifierError: the id is not valid.
        """
        store, id = self._open_store(), check_text(job_id, what="job id")
        [job], records = store.get_jobs([id]), store.get_steps(id)
        if job is None:
            raise JobNotFoundError(id)
        return shown_steps(self.job_types.get(job.type), records)

    # --- counts -------------------------------------------------------------------------------------------------------

    def count_jobs(self, job_types: Iterable[JobTypeReference] | None = None) -> list[TypeCount]:
        """Count jobs by type and status, with the age of the oldest; a type and status without jobs is left out.

        Up to 10,000 jobs of a type and status the number is exact; above, it may be the planner's estimate, and is
        marked as one.

        Args:
            job_types: job types, or names; by default all that have jobs.

        Raises:
            InvalidIdentifierError: the name of a job type is not valid.
        """
        names = type_filter(job_types)
        return (self._open_store()).count_jobs(names)

    def get_demand(
        self, job_types: Iterable[JobTypeReference] | None = None, *, counted_up_to: int = COUNTED_DEMAND
    ) -> list[TypeDemand]:
        """Count the jobs that workers could run now, by type, for an autoscaler; types without any are left out.

        Jobs that limits or a pause of their type hold back are counted apart. The limits are those that the last
        worker with a handler of the type recorded, which are kept when no worker is alive.

        Args:
            job_types: job types, or names; by default all that have jobs.
            counted_up_to: number at which counting ends, of each type and status, and of limit keys; 1 to 100,000.

        Raises:
            ConfigurationError: ``counted_up_to`` is not within its bounds.
            InvalidIdentifierError: the name of a job type is not valid.

        Example::

            for demand in client.get_demand():
                print(demand.type, demand.wanted)
        """
        if type(counted_up_to) is not int or not 1 <= counted_up_to <= MAX_COUNTED:
            raise ConfigurationError(
                f"counted_up_to must be an integer between 1 and {MAX_COUNTED:,}, got {counted_up_to!r}"
            )
        return (self._open_store()).get_demand(type_filter(job_types), counted_up_to=counted_up_to)

    # --- workers ------------------------------------------------------------------------------------------------------

    def list_workers(self) -> list[WorkerRecord]:
        """Return the workers with a heartbeat in the last minute, the longest running first.

        A worker writes a heartbeat every 20 seconds, and deletes it when it stops; one that was killed is listed for up
        to a minute more. This is informational: only leases decide whether a job is taken over.

        Example::

            for worker in client.list_workers():
                print(worker.id, worker.state, worker.running, "of", worker.concurrency)
        """
        return (self._open_store()).list_workers()

    def get_activity(
        self,
        job_types: Iterable[JobTypeReference] | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        by: Period = "minute",
        per_worker: bool = False,
    ) -> list[Activity]:
        """Return what workers did, by minute or hour and job type: counts of attempts, how long they waited and ran.

        Workers report with their heartbeats, so the last 20 seconds are incomplete. What a worker counted since its
        last heartbeat is lost if it is killed. Minutes and types in which nothing happened are left out.

        Minutes are kept until their hour is over for six hours. Before that only hours are there, which are returned
        with ``by="minute"`` too: look at ``seconds``. Hours are kept for 30 days.

        Args:
            job_types: job types, or names; by default all.
            since: only minutes and hours that end after this time; by default an hour ago, or with ``by="hour"`` a day
                ago, by the clock of this machine.
            until: only minutes and hours that begin before this time.
            by: ``"minute"`` or ``"hour"``.
            per_worker: return what each worker did apart, as far as minutes are kept; by default the sum over all.

        Returns:
            One entry for each time and job type, by time and then type. Times are UTC, by the store's clock.

        Raises:
            ConfigurationError: a time has no time zone, or ``by`` is neither.
            InvalidIdentifierError: the name of a job type is not valid.

        Example::

            for minute in client.get_activity([resize]):
                print(minute.begins_at, minute.completed, minute.failed, minute.run.quantile(0.95))
        """
        filter = activity_filter(job_types, since, until, by, per_worker)
        return (self._open_store()).get_activity(filter)
