# Generated from queuert/client/async_bulk_runner.py, do not edit: see scripts/unasync.py
"""Carries out the batches of bulk operations. ``sync_bulk_runner.py`` is generated from this module."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from graphlib import CycleError, TopologicalSorter
from time import monotonic
from typing import Any

from queuert.bulk_operations import (
    BATCH,
    BulkAction,
    BulkProgress,
    BulkRequest,
    decode_batch,
    encode_batch,
    encoded_counts,
)
from queuert.client.management import CANCELLED_BY_CLIENT, TooManyChainsError, chain_closed
from queuert.client.renewing import RenewedLease, sync_renewed
from queuert.client.sync_cascades import blockers_of, cancel_closing, cancel_unheld
from queuert.errors import (
    BlockerReferenceError,
    ChainNotFoundError,
    ChainNotRetriableError,
    ConfigurationError,
    LeaseLostError,
    NotInStatusError,
    QueuertError,
    StateUnavailableError,
)
from queuert.ids import new_id, new_token
from queuert.job_types import BULK_OPERATION_TYPE, JobType
from queuert.jobs import ChainRecord, ChainStatus, JobError
from queuert.notify.adapter import NotifyAdapter, Topic
from queuert.notify.results import Notifications, delete_notifications, update_notifications
from queuert.observability.adapter import Observers
from queuert.observability.events import BaseEvent, ChainClosed, ChainRetried, ChainsDeleted
from queuert.policies import RetryPolicy
from queuert.state.paging import ChainFilter, PageRequest
from queuert.state.records import json_value
from queuert.state.sync_store import Store
from queuert.state.types import (
    ChainUpdate,
    ClaimedJob,
    ClaimRequest,
    Finish,
    FinishKind,
    FinishResult,
    NewJob,
    ReapRequest,
    was_locked,
)

LEASE = 15.0
"""Seconds after which a batch whose process died is done again. A transaction locks the job meanwhile, so that nobody
reaps it, however long the batch takes; without one the lease is renewed."""

MAX_AHEAD = 2_000
"""The most chains that a batch of retries reads besides its page: blockers of what it retries."""

LOCK_TIMEOUT = 0.5
"""Seconds that a write waits for a row which others have locked. It holds all rows of its other chains meanwhile: it
gives up before Postgres looks for a deadlock (``deadlock_timeout``, 1 s) and ends the transaction of somebody else."""

SHORT_LOCK_TIMEOUT = 0.1
"""The same for each part of a write that has met such a row."""

MAX_TIMEOUTS = 30
"""How often a batch tries without result before it leaves out what it has not written yet."""

_RETRY = RetryPolicy(max_attempts=100, max_crashes=100, initial_delay=1.0, max_delay=30.0)
"""Of batches whose process died: operators may kill it often."""


class BulkRunner:
    """Does batches of bulk operations: claims a job of theirs, changes up to 500 chains, and continues with the next.

    On a store with transactions the changes commit together with the finish of the job, which the lease fences: a batch
    is done once. On Redis a batch whose process died is repeated, and skips the chains that it has changed. One that
    has lost its lease writes no more.

    Args:
        job_types: those of this program, besides what workers have recorded of types.
        transactional: whether the store has transactions of the caller's.
        holder: who holds the leases, for those who look.
    """

    def __init__(
        self,
        store: Store,
        notify: NotifyAdapter,
        observers: Observers,
        job_types: Iterable[JobType[Any, Any]],
        *,
        transactional: bool,
        holder: str,
    ) -> None:
        self._store = store
        self._job_types = tuple(job_types)
        self._notify = notify
        self._observers = observers
        self._transactional = transactional
        self._holder = holder

    def reap(self) -> None:
        """Return jobs whose process died to the queue."""
        self._store.reap(ReapRequest({BULK_OPERATION_TYPE: _RETRY}))

    def is_any_open(self) -> bool:
        """Return whether an operation is open, whoever does its batches."""
        open_operations = ChainFilter(types=(BULK_OPERATION_TYPE,), statuses=(ChainStatus.OPEN,))
        page = self._store.list_chains(open_operations, PageRequest(1), payloads=False)
        return bool(list(page))

    def run_batch(self) -> bool:
        """Do one batch of an open operation. Return False if there is none to claim."""
        claimed_at = monotonic()
        claimed = self._store.claim(ClaimRequest({BULK_OPERATION_TYPE: LEASE}, 1, self._holder, new_token()))
        if not claimed:
            return False
        [job] = claimed
        try:
            # A lost lease: the operation was cancelled, or another process does the batch.
            with suppress(LeaseLostError):
                self._do(job, claimed_at)
        except StateUnavailableError:
            raise
        except QueuertError as error:
            failure = JobError("store", str(error), type(error).__qualname__)
            [result] = self._store.finish([Finish(job, FinishKind.FAIL, error=failure)])
            if result.written:
                self._report_end(job, ChainStatus.FAILED, result)
        return True

    def _do(self, job: ClaimedJob, claimed_at: float) -> None:
        batch = _AsyncBatch(self._store, job, self._job_types)
        if self._transactional:
            with self._store.transaction(job) as transaction:
                finish = batch.change(transaction.connection)
                result = transaction.finish(finish, last=True)
            self._emit(batch.events)
        else:
            try:
                with sync_renewed(self._store, job, claimed_at) as lease:
                    finish = batch.change(None, lease)
                    [result] = self._store.finish([finish])
            finally:
                # What was written stays, however the batch ended.
                for topic, keys in batch.notifications.items():
                    self._notify.publish(topic, keys)
                self._emit(batch.events)
            if result.lost is not None:
                raise LeaseLostError(job.id, result.lost)
        if finish.kind is FinishKind.COMPLETE:
            self._report_end(job, ChainStatus.COMPLETED, result)

    def _emit(self, events: Iterable[BaseEvent]) -> None:
        for event in events:
            self._observers.emit(event)

    def _report_end(self, job: ClaimedJob, status: ChainStatus, result: FinishResult) -> None:
        # Jobs may wait for an operation, as for any chain.
        self._notify.publish(Topic.JOBS, result.due_types)
        self._notify.publish(Topic.CHAINS, [job.chain_id])
        self._observers.emit(ChainClosed(chain_id=job.chain_id, type=job.chain_type, status=status, duration=None))


class _AsyncBatch:
    """One batch: what it changes, and what is to be told of it when it is committed."""

    def __init__(self, store: Store, job: ClaimedJob, job_types: Sequence[JobType[Any, Any]]) -> None:
        self._store = store
        self._job = job
        self._job_types = job_types
        self._lease: RenewedLease | None = None
        self.notifications: dict[Topic, list[str]] = {}
        """For the caller to send, on a store without transactions; the others send them with the commit."""
        self.events: list[BaseEvent] = []

    def change(self, connection: Any, lease: RenewedLease | None = None) -> Finish:
        """Change the chains of the next page; return the finish of the job.

        Raises:
            LeaseLostError: the lease, which is given where no transaction fences the writes, was lost meanwhile.
        """
        self._lease = lease
        request, before = decode_batch(json_value(self._job.input))
        self._check_allowed(connection)
        started_at = before.started_at or self._job.created_at
        listing = PageRequest(BATCH, before.cursor, oldest_first=True)
        page = self._store.list_chains(request.of_batch(started_at), listing, payloads=False, connection=connection)
        seen = [chain for chain in page if request.selects(chain)]
        fitting = [chain for chain in seen if request.fits(chain, started_at)]
        ids, waits_for = [chain.id for chain in fitting], dict[str, set[str]]()
        if request.action is BulkAction.RETRY:
            waits_for = self._blockers(request, fitting, {chain.id for chain in page}, started_at, connection)
            ids = _blockers_first(waits_for)
        written = self._write(request, ids, waits_for, connection) if ids else set()
        # Blockers of other pages are counted if they are changed; otherwise their own page counts them.
        ahead = written.difference(chain.id for chain in seen)
        progress = BulkProgress(
            started_at,
            page.next_cursor,
            before.seen + len(seen) + len(ahead),
            before.changed + len(written),
            before.skipped + len(seen) + len(ahead) - len(written),
        )
        if page.next_cursor is None:
            return Finish(self._job, FinishKind.COMPLETE, output=json.dumps(encoded_counts(progress)))
        following = NewJob(new_id(), BULK_OPERATION_TYPE, encode_batch(request, progress), self._job.priority)
        return Finish(self._job, FinishKind.CONTINUE, continuation=following)

    def _blockers(
        self,
        request: BulkRequest,
        chains: Sequence[ChainRecord],
        page: Collection[str],
        started_at: datetime,
        connection: Any,
    ) -> dict[str, set[str]]:
        """Return the chains that are to be retried, each with its blockers among them.

        These are the given ones, and the blockers of their last jobs, and theirs, that the filter has on other pages. A
        job does not wait for a blocker that has failed: retried before it, it would run, and fail again, at once.
        """
        filter, statuses = request.of_batch(started_at), request.filter.statuses or (ChainStatus.FAILED,)
        waits_for: dict[str, set[str]] = {chain.id: set() for chain in chains}
        looked_at = {*page, *waits_for}
        tails = {chain.id: chain.tail_id for chain in chains}
        while tails:
            found: dict[str, ChainRecord] = {}
            for id, blockers in (blockers_of(self._store, tails, connection)).items():
                waiting = [
                    one
                    for one in blockers
                    if one.status in statuses and (filter.types is None or one.type in filter.types)
                ]
                waits_for[id] = {one.id for one in waiting}
                found.update({one.id: one for one in waiting})
            left = MAX_AHEAD + len(page) - len(looked_at)
            others = sorted(found.keys() - looked_at)[:left]
            looked_at.update(others)
            tails = {
                id: found[id].tail_id
                for id in others
                if filter.matches(found[id]) and request.selects(found[id]) and request.fits(found[id], started_at)
            }
            waits_for.update({id: set() for id in tails})
        return {id: blockers.intersection(waits_for) for id, blockers in waits_for.items()}

    def _check_allowed(self, connection: Any) -> None:
        """Refuse a job that was written by somebody who may start chains, and not manage them.

        Raises:
            ConfigurationError: the operation was not started by ``start_bulk_operation``.
        """
        job = self._job
        is_of_chain = job.chain_index > 0 or job.id == job.chain_id
        if not (is_of_chain and self._store.is_bulk_operation(job.chain_id, connection=connection)):
            raise ConfigurationError("a bulk operation must be started by start_bulk_operation(): start it again")

    def _write(
        self, request: BulkRequest, ids: Sequence[str], waits_for: Mapping[str, Collection[str]], connection: Any
    ) -> set[str]:
        """Change those of the chains that can be changed; return which were.

        What others hold is left out at once. Of the rest the store changes all or none, and names all that it refuses
        for one cause: these are left out, and the others are tried again. If it still meets the lock of somebody else,
        such as one of a row of theirs that refers to a job, its error does not say of which chain. Then the chains are
        changed in halves, and in halves of these, and single ones that cannot be changed are left out.

        Args:
            waits_for: the blockers of chains. A chain is left out with one of them that somebody holds.
        """
        left_out = _with_dependents(self._held(request, ids, connection), waits_for)
        written: set[str] = set()
        parts, lock_timeout, unwritten = [list(ids)], LOCK_TIMEOUT, 0
        while parts:
            part = [id for id in parts.pop() if id not in left_out]
            if not part:
                continue
            try:
                written |= self._write_all(request, part, lock_timeout, connection)
                continue
            except (ChainNotRetriableError, BlockerReferenceError) as error:
                left_out.update(error.chain_ids)
            except ChainNotFoundError as error:
                left_out.update(error.ids)
            except TooManyChainsError:
                # Too many chains close with them for one write.
                if len(part) == 1:
                    left_out.update(part)
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
                continue
            except (NotInStatusError, StateUnavailableError) as error:
                if isinstance(error, StateUnavailableError) and not _was_held(request, error):
                    raise
                unwritten += 1
                if unwritten > MAX_TIMEOUTS:
                    break
                if len(part) == 1:
                    left_out = _with_dependents({*left_out, *part}, waits_for)
                lock_timeout = SHORT_LOCK_TIMEOUT
                if connection is not None and unwritten == 1:
                    self._store.bound_lock_waits(lock_timeout, connection=connection)
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
                continue
            parts.append(part)
        if connection is not None:
            # The finish of the job may wait for others: they hold jobs that wait for the operation.
            self._store.bound_lock_waits(None, connection=connection)
        return written.intersection(ids)

    def _held(self, request: BulkRequest, ids: Sequence[str], connection: Any) -> set[str]:
        """Return the chains that cannot be changed now since others hold rows of theirs. A cancel looks by itself."""
        if connection is None or request.action is BulkAction.CANCEL:
            return set()
        is_retry = request.action is BulkAction.RETRY
        held = self._store.held_chains(
            ids,
            lock_timeout=LOCK_TIMEOUT,
            blockers=is_retry,
            dependents=is_retry,
            members=request.action is BulkAction.DELETE,
            connection=connection,
        )
        return set(held)

    def _write_all(self, request: BulkRequest, ids: Sequence[str], lock_timeout: float, connection: Any) -> set[str]:
        """Change all of the chains or none, but of a cancel those that nobody holds; return which were changed."""
        if self._lease is not None:
            self._lease.check()
        if request.action is BulkAction.DELETE:
            deleted = self._store.delete_chains(ids, connection=connection)
            self._add(delete_notifications(deleted))
            self.events.append(ChainsDeleted(count=len(deleted.chain_ids), in_callers_transaction=False))
            return set(deleted.chain_ids)
        if request.action is BulkAction.RETRY:
            results = self._store.retry_chains(ids, connection=connection)
        elif request.action is BulkAction.CANCEL:
            reason = request.reason or CANCELLED_BY_CLIENT
            if connection is None:
                check = None if self._lease is None else self._lease.check
                results = cancel_closing(self._store, ids, reason, None, self._job_types, before_write=check)
            else:
                results = cancel_unheld(
                    self._store, ids, reason, connection, self._job_types, lock_timeout=lock_timeout
                )
        else:
            results = self._store.change_waiting_jobs(
                ids, run_at=request.run_at, priority=request.priority, connection=connection
            )
        self._add(update_notifications(results))
        written = {result.chain_id: result for result in results if result.written}
        if request.action in (BulkAction.RETRY, BulkAction.CANCEL):
            self.events += map(_event, written.values())
        return set(written)

    def _add(self, notifications: Notifications) -> None:
        for topic, keys in notifications.items():
            self.notifications[topic] = [*self.notifications.get(topic, ()), *keys]


def _was_held(request: BulkRequest, error: StateUnavailableError) -> bool:
    """Whether a write had to give up since others hold what it changes. It has a savepoint, unlike the reads of a
    cancellation, which says itself what its write has met."""
    return request.action is not BulkAction.CANCEL and was_locked(error)


def _blockers_first(waits_for: Mapping[str, Collection[str]]) -> list[str]:
    """Return the chains, blockers before those that wait for them."""
    try:
        return list(TopologicalSorter(waits_for).static_order())
    except CycleError:
        return list(waits_for)


def _with_dependents(ids: Collection[str], waits_for: Mapping[str, Collection[str]]) -> set[str]:
    """Return the chains, those that wait for them, and those that wait for these."""
    found = set(ids)
    while more := {id for id, blockers in waits_for.items() if id not in found and not found.isdisjoint(blockers)}:
        found |= more
    return found


def _event(result: ChainUpdate) -> BaseEvent:
    if result.status is ChainStatus.OPEN:
        return ChainRetried(chain_id=result.chain_id, type=result.chain_type, in_callers_transaction=False)
    return chain_closed(result)
