"""Bulk operations in an async client. ``sync_bulk_operations.py`` is generated from this module."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from queuert.attributes import GivenAttributes
from queuert.bulk_operations import (
    CLIENT_HOLDER,
    BulkAction,
    BulkOperation,
    BulkPreview,
    BulkProgress,
    bulk_operation,
    bulk_operations,
    encode_batch,
    preview_of,
)
from queuert.client.arguments import known_statuses
from queuert.client.async_base import AsyncClientBase
from queuert.client.async_bulk_runner import AsyncBulkRunner
from queuert.client.bulk_operations import COUNTED_CHAINS, BulkArguments, checked_bound, known_actions
from queuert.client.schedules import JobTypeReference
from queuert.errors import ChainNotFoundError, JobIdConflictError
from queuert.ids import new_id
from queuert.job_types import BULK_OPERATION_TYPE
from queuert.jobs import ChainStatus
from queuert.new_chain import ChainReference, chain_ids
from queuert.notify.adapter import Topic
from queuert.observability.events import ChainStarted
from queuert.run_at import RunAt
from queuert.state.adapter import Capability
from queuert.state.paging import MAX_PAGE, ChainFilter, Page, PageRequest, Position
from queuert.state.types import NewJob
from queuert.texts import check_text


class AsyncClientBulkOperations(AsyncClientBase):
    """Changes all chains of a filter, in batches of 500, by a durable operation that workers carry out.

    An operation is a chain of the type ``queuert.bulk_operation``: it is listed, explained, cancelled, retried and
    deleted as others are. Any worker runs its batches, and so does :meth:`run_bulk_operations`. On Postgres and SQLite
    each batch commits together with its counts; on Redis a batch whose process died is repeated, and counts the chains
    that it had changed as skipped.
    """

    async def preview_bulk_operation(
        self,
        action: BulkAction | str,
        *,
        job_types: Iterable[JobTypeReference] | None = None,
        statuses: Iterable[ChainStatus | str] | None = None,
        attributes: GivenAttributes | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        error: str | None = None,
        counted_up_to: int = COUNTED_CHAINS,
    ) -> BulkPreview:
        """Count the chains that :meth:`start_bulk_operation` would concern, with the same arguments.

        Counting ends when it has looked at ``counted_up_to`` chains; the result then has ``more`` set.

        Raises:
            ConfigurationError: as for :meth:`start_bulk_operation`, or ``counted_up_to`` is below 1.
            InvalidIdentifierError: the name of a job type, an attribute, or the error is not valid.
        """
        checked_bound("counted_up_to", counted_up_to)
        request = BulkArguments(action, job_types, statuses, attributes, since, before, error).counted()
        # Those of the library's own types are not even looked at: there may be more of them than are counted.
        types = await self._types_meant(request.filter.types)
        if not types:
            return BulkPreview(0, False)
        filter = replace(request.filter, types=types)
        store, seen, cursor = await self._open_store(), 0, None
        groups = Counter[tuple[str, ChainStatus]]()
        while seen < counted_up_to:
            limit = min(MAX_PAGE, counted_up_to - seen)
            listing = PageRequest(limit, cursor, oldest_first=True)
            page = await store.list_chains(filter, listing, payloads=False)
            seen += len(page.items)
            groups.update((chain.type, chain.status) for chain in page if request.selects(chain))
            cursor = page.next_cursor
            if cursor is None:
                return preview_of(groups, more=False)
        return preview_of(groups, more=True)

    async def start_bulk_operation(
        self,
        action: BulkAction | str,
        *,
        requested_by: str,
        job_types: Iterable[JobTypeReference] | None = None,
        statuses: Iterable[ChainStatus | str] | None = None,
        attributes: GivenAttributes | None = None,
        since: datetime | None = None,
        before: datetime | None = None,
        error: str | None = None,
        reason: str | None = None,
        run_at: RunAt | None = None,
        priority: int | None = None,
        id: str | None = None,
    ) -> BulkOperation:
        """Start an operation on all chains that match now; workers carry it out, 500 chains at a time.

        Chains that are started later are not concerned. Chains that somebody else changes meanwhile are skipped, and
        counted.

        Args:
            action: ``retry`` failed chains, ``cancel`` open ones, ``delete`` closed ones, or ``reschedule`` or
                ``reprioritize`` what open ones wait with.
            requested_by: who asked for it; kept with the operation. 1 to 512 characters.
            job_types: only chains whose first jobs have these job types, or names, registered or not. Without it all
                but the library's own, whose names begin with ``queuert.``: these must be named.
            statuses: only chains of these statuses. By default failed ones to retry, and all closed ones to delete.
            attributes: only chains that have all of these, as for :meth:`list_chains`.
            since: only chains that were started at this time or later.
            before: only chains that were started before this time.
            error: only chains whose error has this :attr:`~queuert.jobs.JobError.summary`, as it is or with what is not
                printable escaped, as ``queuert chains list`` shows it.
            reason: of ``cancel``: the message of the chains' error, shortened to 2,000 characters.
            run_at: of ``reschedule``: when the jobs may run, ``after(minutes=5)`` or ``at(moment)``. A pause begins
                when a batch is done.
            priority: of ``reprioritize``: the priority of the jobs.
            id: an id of your own. A call that is repeated with it returns the operation of the first one, whatever its
                other arguments, and starts none.

        Raises:
            ConfigurationError: the action does not exist, cannot change chains of one of the statuses, or has not the
                arguments that it needs; a time has no time zone; the priority is out of range.
            InvalidIdentifierError: ``requested_by``, ``id``, ``error``, or the name of a job type or an attribute, is
                not valid.
            JobTypeMismatchError: a chain of another type has the id.
            JobIdConflictError: a job that does not begin a chain has the id.
        """
        arguments = BulkArguments(action, job_types, statuses, attributes, since, before, error)
        request = arguments.request(requested_by, reason=reason, run_at=run_at, priority=priority)
        chosen = new_id() if id is None else check_text(id, what="id")
        job = NewJob(chosen, BULK_OPERATION_TYPE, encode_batch(request, BulkProgress()), id_chosen=id is not None)
        try:
            started = await (await self._open_store()).start_bulk_operation(job)
        except JobIdConflictError:
            with suppress(ChainNotFoundError):
                return await self.get_bulk_operation(chosen)
            raise
        self.notify.publish(Topic.BULK_OPERATIONS, [started.id])
        self.observers.emit(ChainStarted(chain_id=started.id, type=started.type, in_callers_transaction=False))
        return await self.get_bulk_operation(started.id)

    async def get_bulk_operation(self, operation: ChainReference) -> BulkOperation:
        """Return an operation, with what it has done so far.

        Raises:
            ChainNotFoundError: no chain has this id.
            JobTypeMismatchError: the chain is not a bulk operation.
            ConfigurationError: it has an input that ``start_bulk_operation`` has not written.
        """
        [id] = chain_ids([operation])
        store = await self._open_store()
        [chain] = await store.get_chains([id])
        if chain is None:
            raise ChainNotFoundError(id)
        [last_job] = await store.get_jobs([chain.tail_id])
        return bulk_operation(chain, last_job)

    async def list_bulk_operations(
        self,
        *,
        actions: Iterable[BulkAction | str] | None = None,
        statuses: Iterable[ChainStatus | str] | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[BulkOperation]:
        """Return a page of the operations, open and closed, the newest first.

        Args:
            actions: only operations of these actions; by default all.
            statuses: only operations of these statuses; by default all.
            limit: the most entries of the page, between 1 and 1,000.
            cursor: the ``next_cursor`` of the previous page.

        Raises:
            InvalidCursorError: the cursor does not belong to this listing.
            ConfigurationError: the limit is out of range, or an action or a status does not exist.
        """
        wanted = known_actions(actions)
        filter = ChainFilter(types=(BULK_OPERATION_TYPE,), statuses=known_statuses(ChainStatus, statuses))
        request, found = PageRequest(limit, cursor), list[BulkOperation]()
        if wanted is not None:
            if not wanted:
                return Page((), None)
            # There may be many of other actions between two that are wanted.
            request = replace(request, limit=MAX_PAGE)
        store = await self._open_store()
        while True:
            page = await store.list_chains(filter, request)
            last_jobs = await store.get_jobs([chain.tail_id for chain in page])
            operations = bulk_operations(page, last_jobs)
            if wanted is None:
                return Page(operations, page.next_cursor)
            # The action is in the input: pages are read until there are enough of those that are wanted.
            found += [one for one in operations if one.action in wanted]
            if len(found) > limit or (len(found) == limit and page.next_cursor is not None):
                last = found[limit - 1]
                return Page(tuple(found[:limit]), Position.at_time(last.created_at, last.id).encode())
            if page.next_cursor is None:
                return Page(tuple(found), None)
            request = replace(request, cursor=page.next_cursor)

    async def run_bulk_operations(self, *, batches: int | None = None) -> int:
        """Do batches of open operations in this process, beside workers, until there is none to claim.

        A batch whose process died can be claimed after 15 seconds. Use it where no worker runs, or to be done sooner.

        Args:
            batches: the most batches to do; by default no limit. With 0 it only returns batches whose process died to
                the queue.

        Returns:
            How many batches this call did.

        Raises:
            ConfigurationError: ``batches`` is no integer, or below 0.
        """
        most = None if batches is None else checked_bound("batches", batches, at_least=0)
        store = await self._open_store()
        runner = AsyncBulkRunner(
            store,
            self.notify,
            self.observers,
            self.job_types,
            transactional=Capability.USER_TRANSACTIONS in self.state.capabilities,
            holder=f"{CLIENT_HOLDER}{os.getpid()}-{new_id()[-12:]}",
        )
        await runner.reap()
        done = 0
        while (most is None or done < most) and await runner.run_batch():
            done += 1
        return done
