# Generated from queuert/client/async_listing.py, do not edit: see scripts/unasync.py
"""Lists and counts in a sync client. ``sync_listing.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, cast

from queuert.activity import Activity, Period
from queuert.attributes import GivenAttributes, attribute_filter
from queuert.chain_trees import MAX_CHAINS, MAX_DEPTH, ChainTree, Growing
from queuert.client.arguments import (
    activity_filter,
    checked_time,
    decoded_blockers,
    decoded_job,
    decoded_jobs,
    decoded_state,
    known_client_types,
    known_statuses,
    type_filter,
)
from queuert.client.connections import ConnectionLike
from queuert.client.schedules import JobTypeReference
from queuert.client.sync_base import ClientBase
from queuert.client.sync_chain import Chain, ChainClient
from queuert.errors import ChainNotFoundError, ConfigurationError, JobNotFoundError
from queuert.jobs import Blocker, ChainState, ChainStatus, Job, JobStatus, JobStep
from queuert.limits import ClientType, client_types
from queuert.new_chain import ChainReference, chain_ids
from queuert.phases import JobPhase, phases_of
from queuert.state.paging import ChainFilter, JobFilter, Page, PageRequest
from queuert.state.types import COUNTED_DEMAND, TypeCount, TypeDemand
from queuert.steps import shown_steps
from queuert.texts import check_text
from queuert.workers import WorkerRecord

_PARENTS = 100
"""How many chains are asked for their blockers in one statement."""

MAX_COUNTED = 100_000
"""The highest bound of a count."""

COUNTED_JOBS = 10_000
"""Number at which ``count_jobs`` ends to count, of each type and status."""


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
        job that has become due is READY. ``oldest_first`` is by creation: a job that was retried, or scheduled for
        later, may stand before one that has been ready for longer, and of running ones ``started_at`` says since when.
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

    def get_chain_states(self, chains: Iterable[ChainReference]) -> list[ChainState]:
        """Return where chains are: the status of each, and its last job, without inputs and outputs, in one statement.

        Those that do not exist are left out.

        Raises:
            InvalidIdentifierError: an id is not valid.

        Example::

            for state in client.get_chain_states([chain]):
                print(state.id, state)
        """
        states = (self._open_store()).get_chain_states(chain_ids(chains))
        return [decoded_state(self.job_types, state) for state in states if state is not None]

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

    def get_chain_tree(
        self,
        chain: ChainReference,
        *,
        max_depth: int = 10,
        max_chains: int = 1_000,
        connection: ConnectionLike | None = None,
    ) -> ChainTree[Chain[Any]]:
        """Return a chain with the chains that its jobs wait for or waited for, with theirs, and so on to the leaves.

        It reads two statements for each level, or for a hundred chains of a level. A chain for which several wait is
        read once. Blockers that were deleted are left out. The reads are not one snapshot, unless you pass a connection
        whose transaction has one.

        Args:
            chain: its id, or a handle.
            max_depth: how many levels below the chain are read, between 0 and 100.
            max_chains: how many chains are read, with their inputs and outputs, between 1 and 10,000: those nearest to
                the top.
            connection: a connection of yours, in whose transaction they are read, see :meth:`get_chain`.

        Raises:
            ChainNotFoundError: the chain was never committed, or it was deleted.
            ConfigurationError: a bound is out of range.
            InvalidIdentifierError: the id is not valid.

        Example::

            tree = client.get_chain_tree(order)
            print(tree)
            failed = [one.chain for one in tree.walk() if one.chain.status is ChainStatus.FAILED]
        """
        for name, value, low, high in (
            ("max_depth", max_depth, 0, MAX_DEPTH),
            ("max_chains", max_chains, 1, MAX_CHAINS),
        ):
            if type(value) is not int or not low <= value <= high:
                raise ConfigurationError(f"{name} must be an integer between {low} and {high:,}, got {value!r}")
        [id] = chain_ids([chain])
        store = self._open_store()
        [record] = store.get_chains([id], connection=connection)
        if record is None:
            raise ChainNotFoundError(id)
        client = cast("ChainClient", self)
        top = Growing(Chain[Any](client, record))
        known: dict[str, Growing] = {id: top}
        level = [top]
        for _ in range(max_depth):
            above, level = level, []
            for begin in range(0, len(above), _PARENTS):
                parents = {one.chain.id: one for one in above[begin : begin + _PARENTS]}
                links = store.get_blocker_links(list(parents), limit=max_chains + 1, connection=connection)
                new = list(dict.fromkeys(link.blocker_id for link in links if link.blocker_id not in known))
                room = max_chains - len(known)
                left_out = set(new[room:])
                records = store.get_chains(new[:room], connection=connection)
                found = {one.id: Growing(Chain[Any](client, one)) for one in records if one is not None}
                level += found.values()
                for link in links:
                    parent = parents[link.chain_id]
                    if link.blocker_id in left_out:
                        parent.incomplete = True
                    elif link.blocker_id in found:
                        node = known[link.blocker_id] = found.pop(link.blocker_id)
                        node.waiting_job_id = link.job_id
                        parent.blockers.append(node)
                    elif link.blocker_id in known:
                        again = known[link.blocker_id].chain
                        parent.blockers.append(Growing(again, link.job_id, repeated=True))
        for begin in range(0, len(level), _PARENTS):
            bottom = {one.chain.id: one for one in level[begin : begin + _PARENTS]}
            for link in store.get_blocker_links(list(bottom), limit=1, connection=connection):
                bottom[link.chain_id].incomplete = True
        return top.tree()

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

    def get_phases(self, job_id: str) -> list[JobPhase]:
        """Return the phases of a job: those that its job type declares, in order, and where each is.

        Results and messages are decoded as by :meth:`get_steps` and :meth:`get_job`. If the job type is not registered
        with this client, only the phases that were begun are known. The list is empty for a job without phases. The job
        and its steps are read one after the other.

        Raises:
            JobNotFoundError: the job was never committed, or it was deleted.
            InvalidIdentifierError: the id is not valid.

        Example::

            for phase in client.get_phases(chain.id):
                print(f"{phase.number}. {phase.name}: {phase.status}")
        """
        store, id = self._open_store(), check_text(job_id, what="job id")
        [job], records = store.get_jobs([id]), store.get_steps(id)
        if job is None:
            raise JobNotFoundError(id)
        job_type = self.job_types.get(job.type)
        declared = () if job_type is None else tuple(job_type.phases)
        return phases_of(declared, decoded_job(self.job_types, job), shown_steps(job_type, records))

    # --- counts -------------------------------------------------------------------------------------------------------

    def count_jobs(
        self, job_types: Iterable[JobTypeReference] | None = None, *, exact_up_to: int = COUNTED_JOBS
    ) -> list[TypeCount]:
        """Count jobs by type and status, with the age of the oldest; a type and status without jobs is left out.

        Up to ``exact_up_to`` jobs of a type and status the number is exact; above, it may be the planner's estimate,
        and is marked as one. What it costs grows with that bound.

        Args:
            job_types: job types, or names; by default all that have jobs.
            exact_up_to: number at which counting ends, of each type and status; 1 to 100,000.

        Raises:
            ConfigurationError: ``exact_up_to`` is not within its bounds.
            InvalidIdentifierError: the name of a job type is not valid.
        """
        _check_count("exact_up_to", exact_up_to)
        return (self._open_store()).count_jobs(type_filter(job_types), exact_up_to=exact_up_to)

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
        _check_count("counted_up_to", counted_up_to)
        return (self._open_store()).get_demand(type_filter(job_types), counted_up_to=counted_up_to)

    # --- workers ------------------------------------------------------------------------------------------------------

    def list_client_types(self) -> list[ClientType]:
        """Return the job types that clients complete, by name, with the seconds after which their jobs are overdue.

        Each worker records those that its ``JobTypes`` has (``completed_by="client"``); they stay when it is gone.
        Those of this client are among them in any case.

        Example::

            for one in client.list_client_types():
                page = client.list_jobs(job_types=[one.type], statuses=["ready"])
        """
        return known_client_types(self.job_types, client_types((self._open_store()).list_type_traits()))

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
        per_type: bool = True,
        workers: Iterable[str] | None = None,
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
            per_type: with false, return the sum over all types, whose ``type`` is empty.
            workers: only what the workers of these ids did, as far as minutes are kept; by default all.

        Returns:
            One entry for each time and job type, by time and then type. Times are UTC, by the store's clock.

        Raises:
            ConfigurationError: a time has no time zone, ``by`` is neither, or ``workers`` is a string.
            InvalidIdentifierError: the name of a job type is not valid.

        Example::

            for minute in client.get_activity([resize]):
                print(minute.begins_at, minute.completed, minute.failed, minute.run.quantile(0.95))
        """
        filter = activity_filter(job_types, since, until, by, per_worker, per_type, workers)
        return (self._open_store()).get_activity(filter)


def _check_count(name: str, value: int) -> None:
    if type(value) is not int or not 1 <= value <= MAX_COUNTED:
        raise ConfigurationError(f"{name} must be an integer between 1 and {MAX_COUNTED:,}, got {value!r}")
