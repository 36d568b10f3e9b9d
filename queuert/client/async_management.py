"""Chains from outside of their handlers, asynchronously. ``sync_outside.py`` is generated from this module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from queuert.client.async_base import AsyncClientBase
from queuert.client.commits import tell_committed
from queuert.client.management import WorkerlessContinuation, expected_tail, job_ids
from queuert.errors import ChainAlreadyClosedError, ChainNotFoundError, NotInStatusError
from queuert.job_types import JobType
from queuert.jobs import ChainRecord, ChainStatus, TtlUpdate
from queuert.new_chain import ChainReference, chain_ids
from queuert.observability.events import ChainClosed, ChainContinued, ChainRetried, ChainsDeleted, JobsTriggered
from queuert.payloads import safe_text
from queuert.policies import checked_ttl
from queuert.run_at import RunAt
from queuert.state.notifications import Notifications, delete_notifications, trigger_notifications, update_notifications
from queuert.state.types import ChainUpdate, WorkerlessCompletion

I = TypeVar("I")  # noqa: E741

_ROUNDS = 5
"""How often a chain is read anew that goes on while it is being completed."""

_MAX_REASON = 2_000


class AsyncClientManagement(AsyncClientBase):
    """Completing, cancelling, retrying, triggering and deleting.

    All take ids or handles, and many at a time; all or nothing is done. With ``connection`` they are written in the
    caller's transaction, and stand when it commits; chains are looked up outside of it, so that one which was started
    in the same transaction is not found by ``complete_chain`` and ``continue_chain``.

    A job that is running loses its lease: its handler is told within moments (``attempt.abort.reason``), at the
    latest when its lease is renewed, and what it would commit is refused. A handler that is inside ``complete()`` just
    then is waited for, and its finish counts.
    """

    # --- complete -----------------------------------------------------------------------------------------------------

    async def complete_chain(
        self,
        chain: ChainReference,
        output: Any,
        *,
        expecting: JobType[Any, Any] | None = None,
        connection: Any = None,
    ) -> None:
        """Complete a chain with an output, over the head of its last job: an approval, or a result known early.

        Whatever that job waits for (other chains, its time, a worker, its handler), it has ended then. What waited for
        the chain is released.

        Args:
            chain: its id, or a handle.
            output: the output, of the job type of the chain's last job.
            expecting: the job type that its last job must be of, so that nothing is approved before its turn.
            connection: a connection of yours, see :meth:`start_chain`.

        Raises:
            PayloadError: the output does not fit that job type, or the type has none.
            UnknownJobTypeError: that job type is not registered with this client.
            JobTypeMismatchError: the last job is of another type than ``expecting``.
            ChainNotFoundError: the chain does not exist.
            ChainAlreadyClosedError: the chain has closed before.
            NotInStatusError: the chain went on again and again while it was to be completed. Try again.
        """
        id = _only_id(chain)
        store = await self._opened()
        for _ in range(_ROUNDS):
            record = await self._open_record(id)
            text = expected_tail(self.job_types, record, expecting).encode_output(output)
            completion = WorkerlessCompletion(id, record.tail_id, output=text)
            [result] = await store.complete_chains([completion], connection=connection)
            if result.written:
                self._tell_closed([result], connection)
                return
        raise _contention_error(id)

    async def continue_chain(
        self,
        chain: ChainReference,
        job_type: JobType[I, Any],
        input: I,
        *,
        expecting: JobType[Any, Any] | None = None,
        id: str | None = None,
        run_at: RunAt | None = None,
        priority: int | None = None,
        blockers: Iterable[ChainReference] = (),
        limit_key: str | None = None,
        connection: Any = None,
    ) -> str:
        """End a chain's last job by a continuation, from a client: an approval that leads to the next job.

        Args:
            chain: its id, or a handle.
            job_type: the type of the next job, one that the last job's type declares in ``continues_with``.
            input: the next job's input.
            expecting: the job type that the chain's last job must be of.
            id: an id of your own choice for the next job.
            run_at: when it may run first: ``after(minutes=5)`` or ``at(moment)``; by default at once.
            priority: higher is claimed sooner; by default that of the job before it.
            blockers: chains that must close before it may run.
            limit_key: what the per-key limits of its job type count it under.
            connection: a connection of yours, see :meth:`start_chain`.

        Returns:
            The id of the next job.

        Raises:
            UndeclaredContinuationError: the last job's type does not declare to continue so.
            PayloadError: the input cannot be stored; the path and the reason are named.
            UnknownJobTypeError: one of the two job types is not registered with this client.
            InvalidIdentifierError: an id cannot be stored.
            JobIdConflictError: the id exists.
            ConfigurationError: the priority is out of range, or the job would wait for its own chain.
            JobTypeMismatchError: the last job is of another type than ``expecting``.
            ChainNotFoundError: the chain, or a blocker, does not exist.
            ChainAlreadyClosedError: the chain has closed before.
            NotInStatusError: the chain went on again and again while it was to be continued. Try again.
        """
        chain_id = _only_id(chain)
        following = WorkerlessContinuation(
            self.job_types,
            job_type,
            input,
            id=id,
            run_at=run_at,
            priority=priority,
            blockers=blockers,
            limit_key=limit_key,
        )
        store = await self._opened()
        for _ in range(_ROUNDS):
            record = await self._open_record(chain_id)
            last_type = expected_tail(self.job_types, record, expecting)
            [last] = await store.get_jobs([record.tail_id])
            job = following.after(chain_id, last_type, 0 if last is None else last.priority)
            completion = WorkerlessCompletion(chain_id, record.tail_id, continuation=job)
            [result] = await store.complete_chains([completion], connection=connection)
            if result.written:
                self._tell_continued(result, job.type, job.id, connection)
                return job.id
        raise _contention_error(chain_id)

    async def _open_record(self, chain_id: str) -> ChainRecord:
        [record] = await (await self._opened()).get_chains([chain_id])
        if record is None:
            raise ChainNotFoundError(chain_id)
        if record.status is not ChainStatus.OPEN:
            raise ChainAlreadyClosedError(chain_id, record.status)
        return record

    # --- cancel and retry ---------------------------------------------------------------------------------------------

    async def cancel_chain(
        self, chain: ChainReference, *, reason: str = "cancelled by the client", connection: Any = None
    ) -> bool:
        """Cancel one chain: see :meth:`cancel_chains`. True if this call closed it."""
        return (await self.cancel_chains([chain], reason=reason, connection=connection))[0]

    async def cancel_chains(
        self, chains: Iterable[ChainReference], *, reason: str = "cancelled by the client", connection: Any = None
    ) -> list[bool]:
        """Close open chains as cancelled, whatever their last jobs are at; what waited for them is released.

        Args:
            chains: ids or handles.
            reason: what the chains' error says, the first 2,000 characters of it.
            connection: a connection of yours, see :meth:`start_chain`.

        Returns:
            For each chain, in order and each once, True if this call closed it, False if it had closed before.

        Raises:
            ChainNotFoundError: one of them does not exist; none was cancelled.
        """
        store, ids = await self._opened(), chain_ids(chains)
        results = await store.cancel_chains(ids, reason=safe_text(reason, _MAX_REASON), connection=connection)
        self._tell_closed([result for result in results if result.written], connection)
        return [result.written for result in results]

    async def retry_chain(self, chain: ChainReference, *, connection: Any = None) -> None:
        """Open one failed or cancelled chain again: see :meth:`retry_chains`."""
        await self.retry_chains([chain], connection=connection)

    async def retry_chains(self, chains: Iterable[ChainReference], *, connection: Any = None) -> None:
        """Open failed and cancelled chains again: their last jobs are due at once, with all their attempts before them.

        Earlier jobs of a chain are not repeated. A job that waited for other chains waits again where they are open,
        be it by this call. Jobs that were released when one of these chains closed stay as they are.

        Args:
            chains: ids or handles.
            connection: a connection of yours, see :meth:`start_chain`.

        Raises:
            ChainNotFoundError: one of them does not exist; none was retried.
            ChainNotRetriableError: one of them is open or completed; none was retried.
        """
        store, ids = await self._opened(), chain_ids(chains)
        results = await store.retry_chains(ids, connection=connection)
        self._publish(update_notifications(results), connection)
        inside = connection is not None
        retried = [
            ChainRetried(chain_id=one.chain_id, type=one.chain_type, in_callers_transaction=inside) for one in results
        ]
        tell_committed(self.observers, retried, connection)

    # --- trigger and delete -------------------------------------------------------------------------------------------

    async def trigger_job(self, job_id: str, *, connection: Any = None) -> None:
        """Make one scheduled job due now: see :meth:`trigger_jobs`."""
        await self.trigger_jobs([job_id], connection=connection)

    async def trigger_jobs(self, jobs: Iterable[str], *, connection: Any = None) -> None:
        """Make scheduled jobs due now, those that pause before a retry too. Ready ones stay as they are.

        Args:
            jobs: ids of jobs; a chain's id is that of its first job.
            connection: a connection of yours, see :meth:`start_chain`.

        Raises:
            JobNotFoundError: one of them does not exist; none was triggered.
            JobNotTriggerableError: one of them is blocked, running, or has ended; none was triggered.
        """
        store, ids = await self._opened(), job_ids(jobs)
        triggered = await store.trigger_jobs(ids, connection=connection)
        if not triggered:
            return
        self._publish(trigger_notifications(triggered), connection)
        event = JobsTriggered(count=len(triggered), in_callers_transaction=connection is not None)
        tell_committed(self.observers, [event], connection)

    async def delete_chain(self, chain: ChainReference, *, cascade: bool = False, connection: Any = None) -> bool:
        """Delete one chain: see :meth:`delete_chains`. False if it did not exist."""
        [id] = chain_ids([chain])
        return id in await self.delete_chains([id], cascade=cascade, connection=connection)

    async def delete_chains(
        self, chains: Iterable[ChainReference], *, cascade: bool = False, connection: Any = None
    ) -> list[str]:
        """Delete chains with all their jobs, open or closed. Those that do not exist are passed over.

        Args:
            chains: ids or handles.
            cascade: delete the chains that any of their jobs waited for as well, and so on down.
            connection: a connection of yours, see :meth:`start_chain`.

        Returns:
            The ids of the chains that are gone, in the order given, then those of the cascade.

        Raises:
            BlockerReferenceError: a job that would stay has one of them as a blocker; none was deleted.
        """
        store, ids = await self._opened(), chain_ids(chains)
        result = await store.delete_chains(ids, cascade=cascade, connection=connection)
        if not result.chain_ids:
            return []
        self._publish(delete_notifications(result), connection)
        event = ChainsDeleted(count=len(result.chain_ids), in_callers_transaction=connection is not None)
        tell_committed(self.observers, [event], connection)
        return list(result.chain_ids)

    # --- keep ---------------------------------------------------------------------------------------------------------

    async def update_result_ttl(self, chains: Iterable[ChainReference], seconds: float | timedelta) -> list[TtlUpdate]:
        """Keep closed chains for ``seconds`` from now, instead of what they were started with.

        Args:
            chains: ids or handles, each once.
            seconds: above 0, or a timedelta.

        Returns:
            For each chain whether it was done, or why not: it is open, or there is none.

        Raises:
            ConfigurationError: the seconds are out of range.
        """
        ids, ttl = chain_ids(chains), checked_ttl("result_ttl", seconds)
        return await (await self._opened()).update_result_ttl(ids, ttl)

    # --- tell ---------------------------------------------------------------------------------------------------------

    def _publish(self, notifications: Notifications, connection: Any) -> None:
        """Those of a caller's transaction are sent by the store, with the commit."""
        if connection is None:
            for topic, keys in notifications.items():
                self.notify.publish(topic, keys)

    def _tell_closed(self, results: Sequence[ChainUpdate], connection: Any) -> None:
        self._publish(update_notifications(results), connection)
        closed = [
            ChainClosed(
                chain_id=one.chain_id,
                type=one.chain_type,
                status=one.status,
                duration=None,
                in_callers_transaction=connection is not None,
            )
            for one in results
        ]
        tell_committed(self.observers, closed, connection)

    def _tell_continued(self, result: ChainUpdate, next_type: str, next_id: str, connection: Any) -> None:
        self._publish(update_notifications([result]), connection)
        event = ChainContinued(
            chain_id=result.chain_id,
            type=result.chain_type,
            next_type=next_type,
            next_job_id=next_id,
            in_callers_transaction=connection is not None,
        )
        tell_committed(self.observers, [event], connection)


def _only_id(chain: ChainReference) -> str:
    return chain_ids([chain])[0]


def _contention_error(chain_id: str) -> NotInStatusError:
    return NotInStatusError(f"chain {chain_id!r} went on {_ROUNDS} times while it was read: try again")
