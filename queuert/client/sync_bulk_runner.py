# Generated from queuert/client/async_bulk_runner.py, do not edit: see scripts/unasync.py
"""Carries out the batches of bulk operations. ``sync_bulk_runner.py`` is generated from this module."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from enum import Enum, auto
from typing import Any

from queuert.bulk_operations import (
    BATCH,
    BULK_OPERATION_TYPE,
    BulkAction,
    BulkProgress,
    BulkRequest,
    decode_batch,
    encode_batch,
    encoded_counts,
)
from queuert.client.management import CANCELLED_BY_CLIENT, chain_closed
from queuert.client.sync_cascades import cancel_closing, closed_blockers, held_by_others
from queuert.errors import (
    BlockerReferenceError,
    ChainNotFoundError,
    ChainNotRetriableError,
    ConfigurationError,
    LeaseLostError,
    QueuertError,
    StateUnavailableError,
)
from queuert.ids import new_id, new_token
from queuert.job_types import JobType
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
)

LEASE = 15.0
"""Seconds after which a batch whose process died is done again."""

MAX_AHEAD = 2_500
"""The most chains of a page, and blockers of them that are retried ahead of their own pages."""

LOCK_TIMEOUT = 2.0
"""Seconds that a batch waits for rows which others have locked. It holds all rows of its other chains meanwhile."""

_RETRY = RetryPolicy(max_attempts=100, max_crashes=100, initial_delay=1.0, max_delay=30.0)
"""Of batches whose process died: operators may kill it often."""


class BulkRunner:
    """Does batches of bulk operations: claims a job of theirs, changes up to 500 chains, and continues with the next.

    On a store with transactions the changes commit together with the finish of the job, which the lease fences: a batch
    is done once. On Redis a batch whose process died is repeated, and skips the chains that it has changed.

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
        page = self._store.list_chains(open_operations, PageRequest(1))
        return bool(list(page))

    def run_batch(self) -> bool:
        """Do one batch of an open operation. Return False if there is none to claim."""
        claimed = self._store.claim(ClaimRequest({BULK_OPERATION_TYPE: LEASE}, 1, self._holder, new_token()))
        if not claimed:
            return False
        [job] = claimed
        try:
            # A lost lease: the operation was cancelled, or another process does the batch.
            with suppress(LeaseLostError):
                self._do(job)
        except StateUnavailableError:
            raise
        except QueuertError as error:
            failure = JobError("store", str(error), type(error).__qualname__)
            [result] = self._store.finish([Finish(job, FinishKind.FAIL, error=failure)])
            if result.written:
                self._report_end(job, ChainStatus.FAILED, result)
        return True

    def _do(self, job: ClaimedJob) -> None:
        batch = _AsyncBatch(self._store, job, self._job_types)
        if self._transactional:
            with self._store.transaction(job) as transaction:
                self._store.bound_lock_waits(LOCK_TIMEOUT, connection=transaction.connection)
                finish = batch.change(transaction.connection)
                result = transaction.finish(finish, last=True)
        else:
            finish = batch.change(None)
            [result] = self._store.finish([finish])
            for topic, keys in batch.notifications.items():
                self._notify.publish(topic, keys)
            if result.lost is not None:
                raise LeaseLostError(job.id, result.lost)
        for event in batch.events:
            self._observers.emit(event)
        if finish.kind is FinishKind.COMPLETE:
            self._report_end(job, ChainStatus.COMPLETED, result)

    def _report_end(self, job: ClaimedJob, status: ChainStatus, result: FinishResult) -> None:
        # Jobs may wait for an operation, as for any chain.
        self._notify.publish(Topic.JOBS, result.due_types)
        self._notify.publish(Topic.CHAINS, [job.chain_id])
        self._observers.emit(ChainClosed(chain_id=job.chain_id, type=job.chain_type, status=status, duration=None))


class _Waits(Enum):
    """Whether a batch still waits for the locks of others."""

    YES = auto()
    TOO_LONG = auto()
    NO = auto()


class _AsyncBatch:
    """One batch: what it changes, and what is to be told of it when it is committed."""

    def __init__(self, store: Store, job: ClaimedJob, job_types: Sequence[JobType[Any, Any]]) -> None:
        self._store = store
        self._job = job
        self._job_types = job_types
        self.notifications: Notifications = {}
        """For the caller to send, on a store without transactions; the others send them with the commit."""
        self.events: list[BaseEvent] = []

    def change(self, connection: Any) -> Finish:
        """Change the chains of the next page; return the finish of the job."""
        value = json_value(self._job.input)
        request, before = decode_batch(value)
        self._check_allowed(connection)
        started_at = before.started_at or self._job.created_at
        listing = PageRequest(BATCH, before.cursor, oldest_first=True)
        page = self._store.list_chains(request.of_batch(started_at), listing, connection=connection)
        passed = _decoded_ahead(value)
        # What was retried ahead of its page, and is listed again since it has failed again, was counted then.
        seen = [chain for chain in page if request.selects(chain) and chain.id not in passed]
        fitting = [chain for chain in seen if request.fits(chain, started_at)]
        ahead = passed
        if request.action is BulkAction.RETRY and page.next_cursor is not None:
            end = page.items[-1].created_at
            ahead = {id: created_at for id, created_at in passed.items() if created_at >= end}
            known = {chain.id for chain in page} | ahead.keys()
            added = self._ahead(request, fitting, started_at, end, known, connection)
            ahead.update({chain.id: chain.created_at for chain in added})
            seen, fitting = seen + added, fitting + added
        changed = self._write(request, [chain.id for chain in fitting], connection)
        progress = BulkProgress(
            started_at,
            page.next_cursor,
            before.seen + len(seen),
            before.changed + changed,
            before.skipped + len(seen) - changed,
        )
        if page.next_cursor is None:
            return Finish(self._job, FinishKind.COMPLETE, output=json.dumps(encoded_counts(progress)))
        input = _with_ahead(encode_batch(request, progress), ahead)
        following = NewJob(new_id(), BULK_OPERATION_TYPE, input, self._job.priority)
        return Finish(self._job, FinishKind.CONTINUE, continuation=following)

    def _ahead(
        self,
        request: BulkRequest,
        chains: Sequence[ChainRecord],
        started_at: datetime,
        end: datetime,
        known: Collection[str],
        connection: Any,
    ) -> list[ChainRecord]:
        """Return the blockers of chains that are about to be retried, and theirs, which later pages have.

        A job does not wait for a blocker that has failed: retried before it, it would run, and fail again, at once.
        """
        filter, statuses = request.of_batch(started_at), request.filter.statuses or (ChainStatus.FAILED,)
        found: dict[str, ChainRecord] = {}
        following = chains
        while following:
            blockers = closed_blockers(self._store, following, statuses, connection)
            following = [
                chain
                for chain in blockers
                if chain.id not in known
                and chain.id not in found
                and chain.created_at >= end
                and filter.matches(chain)
                and request.selects(chain)
                and request.fits(chain, started_at)
            ][: max(MAX_AHEAD - len(known) - len(found), 0)]
            found.update({chain.id: chain for chain in following})
        return list(found.values())

    def _check_allowed(self, connection: Any) -> None:
        """Refuse a job that was written by somebody who may start chains, and not manage them.

        Raises:
            ConfigurationError: the operation was not started by ``start_bulk_operation``.
        """
        job = self._job
        is_of_chain = job.chain_index > 0 or job.id == job.chain_id
        if not (is_of_chain and self._store.is_bulk_operation(job.chain_id, connection=connection)):
            raise ConfigurationError("a bulk operation must be started by start_bulk_operation(): start it again")

    def _write(self, request: BulkRequest, ids: Sequence[str], connection: Any) -> int:
        """Change those of the chains that can be changed; return how many were.

        The store changes all or none, and names all that it refuses for one cause: these are left out, and the others
        are tried again. So are those that others have locked for longer than the lock timeout.
        """
        left, waits = list(ids), _Waits.YES
        while left:
            refused: set[str]
            try:
                if waits is not _Waits.TOO_LONG:
                    return self._write_all(request, left, connection)
                refused, waits = self._held(request, left, connection), _Waits.NO
            except StateUnavailableError:
                # Others hold rows of some chains. When these are left out, all rows of the others are locked.
                if connection is None or waits is not _Waits.YES:
                    raise
                refused, waits = set(), _Waits.TOO_LONG
            except ChainNotRetriableError as error:
                refused = set(error.chain_ids)
            except BlockerReferenceError as error:
                refused = set(error.chain_ids)
            except ChainNotFoundError as error:
                refused = set(error.ids)
            left = [id for id in left if id not in refused]
        return 0

    def _held(self, request: BulkRequest, ids: Sequence[str], connection: Any) -> set[str]:
        """Return the chains that cannot be changed since others hold their rows."""
        if request.action is BulkAction.CANCEL:
            return held_by_others(self._store, ids, connection, self._job_types)
        is_retry = request.action is BulkAction.RETRY
        held = self._store.held_chains(ids, blockers=is_retry, dependents=is_retry, connection=connection)
        return set(held)

    def _write_all(self, request: BulkRequest, ids: Sequence[str], connection: Any) -> int:
        if request.action is BulkAction.DELETE:
            deleted = self._store.delete_chains(ids, connection=connection)
            self.notifications = delete_notifications(deleted)
            self.events = [ChainsDeleted(count=len(deleted.chain_ids), in_callers_transaction=False)]
            return len(deleted.chain_ids)
        if request.action is BulkAction.RETRY:
            results = self._store.retry_chains(ids, connection=connection)
        elif request.action is BulkAction.CANCEL:
            reason = request.reason or CANCELLED_BY_CLIENT
            results = cancel_closing(self._store, ids, reason, connection, self._job_types)
        else:
            results = self._store.change_waiting_jobs(
                ids, run_at=request.run_at, priority=request.priority, connection=connection
            )
        self.notifications = update_notifications(results)
        written = [result for result in results if result.written]
        if request.action in (BulkAction.RETRY, BulkAction.CANCEL):
            self.events = [_event(result) for result in written]
        return len({one.chain_id for one in written}.intersection(ids))


def _decoded_ahead(value: Any) -> dict[str, datetime]:
    """Return the chains that earlier batches have retried ahead of their pages, with their times of start.

    Raises:
        ConfigurationError: it is not what :func:`_with_ahead` wrote.
    """
    try:
        return {id: datetime.fromisoformat(text) for id, text in value.get("ahead", {}).items()}
    except (TypeError, ValueError, AttributeError):
        raise ConfigurationError("the input of a bulk operation was changed: start it again") from None


def _with_ahead(input: str, ahead: Mapping[str, datetime]) -> str:
    """Return the input of a batch with the chains that were retried ahead of their pages."""
    if not ahead:
        return input
    return json.dumps({**json.loads(input), "ahead": {id: moment.isoformat() for id, moment in ahead.items()}})


def _event(result: ChainUpdate) -> BaseEvent:
    if result.status is ChainStatus.OPEN:
        return ChainRetried(chain_id=result.chain_id, type=result.chain_type, in_callers_transaction=False)
    return chain_closed(result)
