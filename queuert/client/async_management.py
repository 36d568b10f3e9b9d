"""Management of chains in an async client. ``sync_management.py`` is generated from this module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, TypeVar, overload

from queuert.bulk_operations import BulkPreview, preview_of
from queuert.client.arguments import type_filter
from queuert.client.async_base import AsyncClientBase
from queuert.client.async_cascades import (
    ROUNDS,
    Cascade,
    cancel_closing,
    cancel_spared,
    closing_with,
    existing_chains,
    failed_together,
)
from queuert.client.bulk_operations import COUNTED_CHAINS, checked_bound
from queuert.client.commits import emit_committed
from queuert.client.connections import AsyncConnectionLike
from queuert.client.management import (
    CANCELLED_BY_CLIENT,
    Completable,
    HasResult,
    WorkerlessContinuation,
    chain_closed,
    checked_run_at,
    closed_with,
    edited_input,
    expected_last_type,
    job_ids,
    pruning,
)
from queuert.client.schedules import JobTypeReference, type_names
from queuert.errors import (
    ChainAlreadyClosedError,
    ChainNotFoundError,
    ChainNotRetriableError,
    NotInStatusError,
)
from queuert.ids import new_id
from queuert.job_types import JobType
from queuert.jobs import ChainState, ChainStatus, JobStatus, TtlUpdate
from queuert.new_chain import ChainReference, chain_ids, checked_priority
from queuert.notify.results import Notifications, delete_notifications, trigger_notifications, update_notifications
from queuert.observability.events import (
    ChainContinued,
    ChainRetried,
    ChainsDeleted,
    EventSent,
    JobsTriggered,
)
from queuert.observability.tracing import NO_CHANGING, NO_SENDING, Change, Changing, Send, Sending
from queuert.policies import checked_ttl
from queuert.run_at import RunAt
from queuert.state.async_store import AsyncStore
from queuert.state.steps import NewEvent
from queuert.state.types import ChainUpdate, InputEdit, NewJob, PruneRequest, WorkerlessCompletion
from queuert.steps import event_codec
from queuert.texts import check_step_name, check_text, checked_reason

I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741

_OF_KEY = 500
"""Chains of one key that are cancelled in one transaction."""


class AsyncClientManagement(AsyncClientBase):
    """Completes, continues, cancels, retries, triggers and deletes chains.

    The methods take ids or handles. Those that take many do all or nothing. With ``connection`` they write in the
    caller's transaction, and take effect when it commits. ``complete_chain`` and ``continue_chain`` read the chain
    outside of it, so they do not find one that was started in the same transaction.

    A running job loses its lease: its handler is told within moments (``attempt.abort.reason``), at the latest at the
    next renewal, and cannot commit anything. If the handler is inside ``complete()``, the method waits for it, and the
    handler's finish counts.
    """

    # --- complete -----------------------------------------------------------------------------------------------------

    # A handle says what the chain may result in, and so does the expected job type; an id says nothing.
    @overload
    async def complete_chain(
        self,
        chain: Completable[O],
        output: O,
        *,
        expecting: JobType[Any, Any] | None = None,
        connection: AsyncConnectionLike | None = None,
    ) -> None: ...
    @overload
    async def complete_chain(
        self,
        chain: str,
        output: O,
        *,
        expecting: HasResult[O],
        connection: AsyncConnectionLike | None = None,
    ) -> None: ...
    @overload
    async def complete_chain(
        self,
        chain: str,
        output: Any,
        *,
        expecting: None = None,
        connection: AsyncConnectionLike | None = None,
    ) -> None: ...
    async def complete_chain(
        self,
        chain: ChainReference,
        output: Any,
        *,
        expecting: Any = None,
        connection: AsyncConnectionLike | None = None,
    ) -> None:
        """Complete a chain with an output, instead of its last job's handler: an approval, or a result known early.

        The last job is completed in whatever status it is: blocked, scheduled, ready or running. Jobs that waited for
        the chain are released. If it was blocked, the chains that only it waited for go on, except those whose job type
        says ``closes_with_parent``: they are cancelled.

        Args:
            chain: its id, or a handle.
            output: the output, valid for the job type of the chain's last job.
            expecting: the job type that the last job must have, so that nothing is approved too early.
            connection: a connection of yours, see :meth:`start_chain`.

        Raises:
            PayloadError: the output is not valid for that job type, or it declares no output.
            UnknownJobTypeError: that job type is not registered with this client.
            JobTypeMismatchError: the last job is of another type than ``expecting``.
            ChainNotFoundError: the chain does not exist.
            ChainAlreadyClosedError: the chain is closed already.
            ConfigurationError: more than 10,000 chains would close with it.
            NotInStatusError: the chain advanced several times during the operation. Try again.
        """
        id = _only_id(chain)
        store = await self._open_store()
        for _ in range(ROUNDS):
            state = await self._open_state(id)
            text = expected_last_type(self.job_types, state, expecting).encode_output(output)
            completion = WorkerlessCompletion(id, state.job_id, output=text)
            with self._changing("completed", [id], connection) as traced:
                result, *others = await self._complete(store, completion, state, connection)
                traced.changed([result])
            if result.written:
                self._report_closed([result, *others], connection)
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
        inherit: Iterable[Literal["limit_key"]] = (),
        output: Any = None,
        connection: AsyncConnectionLike | None = None,
    ) -> str:
        """Continue a chain with another job, instead of its last job's handler: an approval that leads to the next job.

        Chains that only the last job waited for go on, except those whose job type says ``closes_with_parent``, and
        that the next job does not wait for: they are cancelled.

        Args:
            chain: its id, or a handle.
            job_type: the job type of the next job, which that of the last job declares in ``continues_with``.
            input: the next job's input.
            expecting: the job type that the chain's last job must have.
            id: an id of your own for the next job.
            run_at: when the next job may first run: ``after(minutes=5)`` or ``at(moment)``; by default at once.
            priority: higher priorities are claimed sooner; by default that of the last job.
            blockers: chains that must close before the next job may run.
            limit_key: the key under which the per-key limits of the job type count the next job.
            inherit: ``["limit_key"]`` gives it the limit key of the last job, if ``limit_key`` is None. Attributes,
                ``result_ttl`` and deduplication key are those of the chain.
            output: kept with the job that is continued, such as who decided: of the type that its job type declares as
                ``output``, if it does, else any JSON. ``get_job`` returns it; the output of a chain is its last job's.
            connection: a connection of yours, see :meth:`start_chain`.

        Returns:
            The id of the next job.

        Raises:
            UndeclaredContinuationError: the last job's type does not declare this continuation.
            PayloadError: the input or the output cannot be stored; the error has path and reason.
            UnknownJobTypeError: one of the two job types is not registered with this client.
            InvalidIdentifierError: an id cannot be stored.
            JobIdConflictError: a job with this id exists.
            ConfigurationError: the priority is out of range, ``inherit`` names something else, the job would wait for
                its own chain, or more than 10,000 chains would close with the last job.
            JobTypeMismatchError: the last job is of another type than ``expecting``.
            ChainNotFoundError: the chain or a blocker does not exist.
            ChainAlreadyClosedError: the chain is closed already.
            NotInStatusError: the chain advanced several times during the operation. Try again.
        """
        continuation = WorkerlessContinuation(
            self.job_types,
            job_type,
            input,
            id=id,
            run_at=run_at,
            priority=priority,
            blockers=blockers,
            limit_key=limit_key,
            inherit=inherit,
        )
        return await self._continue(_only_id(chain), continuation, output, expecting, connection)

    async def _continue(
        self,
        chain_id: str,
        continuation: WorkerlessContinuation,
        output: Any,
        expecting: JobType[Any, Any] | None,
        connection: Any,
    ) -> str:
        store = await self._open_store()
        for _ in range(ROUNDS):
            state = await self._open_state(chain_id)
            last_type = expected_last_type(self.job_types, state, expecting)
            [last] = await store.get_jobs([state.job_id])
            job = continuation.after(chain_id, last_type, last)
            kept = None if output is None else last_type.encode_kept_output(output)
            with self._continuing(job, connection) as sending:
                if sending is not None:
                    job = replace(job, trace_context=sending.context(job.type, job.id))
                completion = WorkerlessCompletion(chain_id, state.job_id, output=kept, continuation=job)
                result, *others = await self._complete(store, completion, state, connection)
            if result.written:
                self._report_continued(result, job.type, job.id, connection)
                self._report_closed(others, connection)
                return job.id
        raise _contention_error(chain_id)

    def _continuing(self, job: NewJob, connection: Any) -> AbstractContextManager[Sending | None]:
        if self.tracing is None:
            return NO_SENDING
        return self.tracing.sending(Send((job.type,), 1, in_callers_transaction=connection is not None))

    def _changing(
        self, outcome: Literal["completed", "cancelled", "retried"], ids: Sequence[str], connection: Any
    ) -> AbstractContextManager[Changing]:
        if self.tracing is None:
            return NO_CHANGING
        return self.tracing.changing(Change(outcome, tuple(ids), in_callers_transaction=connection is not None))

    async def _complete(
        self, store: AsyncStore, completion: WorkerlessCompletion, state: ChainState, connection: Any
    ) -> list[ChainUpdate]:
        """Finish the last job of a chain, and cancel the chains that close with it.

        The result of the chain comes first, then those of the others that were open.
        """
        following = completion.continuation
        kept = () if following is None else following.blockers
        reason = closed_with(state.id, "completed" if following is None else "continued")
        for _ in range(ROUNDS):
            # Only a blocked job still has chains that it waits for.
            blocked = state.job_status is JobStatus.BLOCKED
            cascade = Cascade([state.id], set())
            if blocked:
                cascade = await closing_with(store, [state.id], connection, self.job_types, kept)
            _, *closing = cascade.ids
            try:
                result, *others = await store.complete_chains(
                    [completion], cancel=closing, reason=reason, connection=connection
                )
            except ChainNotFoundError as error:
                if not set(error.ids) <= set(closing):
                    raise
                # It was deleted meanwhile: look again.
                continue
            cancelled = [one for one in others if one.written]
            if result.written:
                cancelled += await cancel_spared(store, cascade.spared, reason, connection, self.job_types)
            return [result, *cancelled]
        raise _contention_error(state.id)

    async def _open_state(self, chain_id: str) -> ChainState:
        [state] = await (await self._open_store()).get_chain_states([chain_id])
        if state is None:
            raise ChainNotFoundError(chain_id)
        if state.status is not ChainStatus.OPEN:
            raise ChainAlreadyClosedError(chain_id, state.status)
        return state

    # --- cancel and retry ---------------------------------------------------------------------------------------------

    async def cancel_chain(
        self,
        chain: ChainReference,
        *,
        cascade: bool = False,
        reason: str = CANCELLED_BY_CLIENT,
        connection: AsyncConnectionLike | None = None,
    ) -> bool:
        """Cancel one chain, see :meth:`cancel_chains`. Return whether this call closed it, whatever else it closed."""
        return (await self.cancel_chains([chain], cascade=cascade, reason=reason, connection=connection))[0]

    async def cancel_chains(
        self,
        chains: Iterable[ChainReference],
        *,
        cascade: bool = False,
        reason: str = CANCELLED_BY_CLIENT,
        connection: AsyncConnectionLike | None = None,
    ) -> list[bool]:
        """Cancel open chains, whatever the status of their last jobs, and release the jobs that waited for them.

        Open chains that only these wait for are cancelled with them if their job type says ``closes_with_parent``.
        Nothing closes with a given chain that was closed before: a child of it that is open again stays so.

        Args:
            chains: ids or handles.
            cascade: cancel also the open chains that their last jobs wait for, children among them, and those that
                these wait for, and so on; except those that another job waits for as well. Also those that the last
                job of a chain waited for which was cancelled before, without ``cascade`` or by a call that was
                interrupted, whether it is a given one or in between: so it does the rest of such a call. They are
                read before they are cancelled: one that a job begins to wait for in between is cancelled, and
                releases that job.
            reason: the message of the chains' error, shortened to 2,000 characters.
            connection: a connection of yours, see :meth:`start_chain`.

        Returns:
            For each chain, in order and each once: True if this call closed it, False if it was closed already or,
            on Redis, deleted meanwhile. With ``cascade`` those of the given chains come first.

        Raises:
            ChainNotFoundError: one of them does not exist; none was cancelled.
            ConfigurationError: with ``cascade`` there are more than 10,000 chains, or more than 10,000 others would
                close with the given ones, or the reason is no string; none was cancelled.
            NotInStatusError: chains that would be cancelled with them were deleted again and again meanwhile. Try
                again.
        """
        store, given = await self._open_store(), chain_ids(chains)
        message = checked_reason(reason)
        with self._changing("cancelled", given, connection) as traced:
            results = await cancel_closing(store, given, message, connection, self.job_types, cascade=cascade)
            traced.changed(results)
        closed = {result.chain_id: result for result in results if result.written}
        self._report_closed(list(closed.values()), connection)
        concerned = dict.fromkeys([*given, *(result.chain_id for result in results)]) if cascade else given
        return [id in closed for id in concerned]

    async def cancel_chains_of_key(
        self,
        job_type: JobTypeReference,
        key: str,
        *,
        reason: str = CANCELLED_BY_CLIENT,
        connection: AsyncConnectionLike | None = None,
    ) -> int:
        """Cancel the open chains that were started with a deduplication key, and return how many this call closed.

        Usually there is one at most. A chain whose start has not been committed yet is not found.

        Args:
            job_type: the job type of the chains' first jobs, or its name.
            key: the key of their ``Deduplicate``.
            reason: as for :meth:`cancel_chains`.
            connection: a connection of yours, see :meth:`start_chain`.

        Raises:
            InvalidIdentifierError: the key or the name of the job type is not valid.
            ChainNotFoundError: some of them were deleted during the operation. Try again.
        """
        [name] = type_names([job_type])
        check_text(key, what="deduplication key")
        store, closed = await self._open_store(), 0
        while True:
            ids = await store.chains_of_key(name, key, limit=_OF_KEY, connection=connection)
            if ids:
                closed += sum(await self.cancel_chains(ids, reason=reason, connection=connection))
            if len(ids) < _OF_KEY:
                return closed

    async def retry_chain(
        self, chain: ChainReference, *, cascade: bool = False, connection: AsyncConnectionLike | None = None
    ) -> list[str]:
        """Retry one failed or cancelled chain, see :meth:`retry_chains`."""
        return await self.retry_chains([chain], cascade=cascade, connection=connection)

    async def retry_chains(
        self, chains: Iterable[ChainReference], *, cascade: bool = False, connection: AsyncConnectionLike | None = None
    ) -> list[str]:
        """Retry failed and cancelled chains: their last jobs become due at once, with all attempts of the policy left.

        Earlier jobs of a chain are not repeated. A job with blockers waits for those that are open, also for those that
        this call has reopened. Jobs that were released when one of these chains closed are not affected.

        Args:
            chains: ids or handles.
            cascade: retry also the chains that failed while they waited for one of these, or after, and those that
                failed because of those; and the blockers of all of them that failed, or that were cancelled and close
                with their parents. All wait for their blockers again. Given chains that are open or completed stay as
                they are, but are looked behind: so the same call finishes what one that was interrupted has begun.
            connection: a connection of yours, see :meth:`start_chain`.

        Returns:
            The ids of the retried chains: the given ones, each once, then those of the cascade. On Redis, of more
            than 25, those that another client retries or deletes meanwhile are left out.

        Raises:
            ChainNotFoundError: one of them does not exist; none was retried.
            ChainNotRetriableError: one of them is open or completed, or with ``cascade`` all of them are and nothing
                around them has failed; none was retried.
            ConfigurationError: the cascade has more than 10,000 chains; none was retried.
        """
        ids = chain_ids(chains)
        if not cascade:
            return await self._retry(ids, None, connection)
        store = await self._open_store()
        for _ in range(ROUNDS):
            together = await failed_together(store, ids, connection, self.job_types)
            # Some may be retried or deleted meanwhile: look again.
            with suppress(ChainNotFoundError, ChainNotRetriableError):
                return await self._retry(together, None, connection)
        raise NotInStatusError(f"the failed chains around {ids[0]!r} changed {ROUNDS} times meanwhile: try again")

    async def _retry(self, ids: Sequence[str], edit: InputEdit | None, connection: Any) -> list[str]:
        store = await self._open_store()
        with self._changing("retried", ids, connection) as traced:
            results = await store.retry_chains(ids, edit=edit, connection=connection)
            traced.changed(results)
        self._publish(update_notifications(results), connection)
        retried, in_callers = {one.chain_id: one for one in results if one.written}, connection is not None
        events = [
            ChainRetried(chain_id=id, type=one.chain_type, in_callers_transaction=in_callers)
            for id, one in retried.items()
        ]
        emit_committed(self.observers, events, connection)
        return list(retried)

    async def retry_chain_with_input(
        self, chain: ChainReference, input: Any, *, connection: AsyncConnectionLike | None = None
    ) -> None:
        """Retry one failed or cancelled chain as :meth:`retry_chains` does, with another input of its last job.

        The input is checked by the job type of that job, if it is registered with this client. Otherwise it is stored
        as plain JSON, unless the stored input is in another format. Recorded steps of the job are kept, and replayed.

        Args:
            chain: its id, or a handle.
            input: the new input.
            connection: a connection of yours, see :meth:`start_chain`.

        Raises:
            PayloadError: the input is not valid for the job type.
            UnknownJobTypeError: the stored input is in a format that only its job type knows: register that.
            ChainNotFoundError: the chain does not exist.
            ChainNotRetriableError: it is open or completed.
            JobNotFoundError: the chain was retried and continued meanwhile. Look at it again.
        """
        id = _only_id(chain)
        await self._retry([id], await self._edit(id, input, connection), connection)

    async def _edit(self, chain_id: str, input: Any, connection: Any) -> InputEdit:
        """Check a new input of the last job of a chain."""
        store = await self._open_store()
        [record] = await store.get_chains([chain_id], connection=connection)
        if record is None:
            raise ChainNotFoundError(chain_id)
        [job] = await store.get_jobs([record.tail_id], connection=connection)
        text = edited_input(self.job_types, record.tail_type, None if job is None else job.input, input)
        return InputEdit(record.tail_id, text)

    # --- change ------------------------------------------------------------------------------------------------------

    async def reschedule_chains(
        self, chains: Iterable[ChainReference], run_at: RunAt, *, connection: AsyncConnectionLike | None = None
    ) -> list[bool]:
        """Give the jobs that open chains wait with another time from which they may run, earlier or later.

        A job that waits for other chains goes on waiting for them, and runs no earlier than the new time. The pause
        after a failed attempt ends at the new time as well.

        Args:
            chains: ids or handles.
            run_at: ``after(minutes=5)`` or ``at(moment)``; ``after()`` is now.
            connection: a connection of yours, see :meth:`start_chain`.

        Returns:
            For each chain, in order and each once: True if it was changed, False if its job runs or it is closed or,
            on Redis, was deleted meanwhile.

        Raises:
            ChainNotFoundError: one of them does not exist; none was changed.
            ConfigurationError: ``run_at`` is not made by ``after`` or ``at``.
        """
        return await self._change(chains, checked_run_at(run_at), None, connection)

    async def edit_chain_input(
        self, chain: ChainReference, input: Any, *, connection: AsyncConnectionLike | None = None
    ) -> bool:
        """Give the job that an open chain waits with another input; its due time, priority and attempts stay.

        The input is checked by the job type of that job, if it is registered with this client. Otherwise it is stored
        as plain JSON, unless the stored input is in another format. Recorded steps of the job are kept, and replayed.

        Args:
            chain: its id, or a handle.
            input: the new input.
            connection: a connection of yours, see :meth:`start_chain`.

        Returns:
            False if its job runs or it is closed: nothing was changed. :meth:`retry_chain_with_input` is for chains
            that have failed.

        Raises:
            PayloadError: the input is not valid for the job type.
            UnknownJobTypeError: the stored input is in a format that only its job type knows: register that.
            ChainNotFoundError: the chain does not exist.
            JobNotFoundError: the chain was continued meanwhile. Look at it again.

        Example::

            await client.edit_chain_input(chain, Resize(url=url, width=100))
        """
        id = _only_id(chain)
        edit = await self._edit(id, input, connection)
        return (await self._change([id], None, None, connection, edit))[0]

    async def reprioritize_chains(
        self, chains: Iterable[ChainReference], priority: int, *, connection: AsyncConnectionLike | None = None
    ) -> list[bool]:
        """Give the jobs that open chains wait with another priority; arguments and result are those of
        :meth:`reschedule_chains`.

        Raises:
            ChainNotFoundError: one of them does not exist; none was changed.
            ConfigurationError: the priority is out of range.
        """
        return await self._change(chains, None, checked_priority(priority), connection)

    async def _change(
        self,
        chains: Iterable[ChainReference],
        run_at: RunAt | None,
        priority: int | None,
        connection: Any,
        edit: InputEdit | None = None,
    ) -> list[bool]:
        store, ids = await self._open_store(), chain_ids(chains)
        results = await store.change_waiting_jobs(
            ids, run_at=run_at, priority=priority, edit=edit, connection=connection
        )
        self._publish(update_notifications(results), connection)
        written = {result.chain_id for result in results if result.written}
        return [id in written for id in ids]

    # --- trigger ------------------------------------------------------------------------------------------------------

    async def trigger_job(self, job_id: str, *, connection: AsyncConnectionLike | None = None) -> None:
        """Make one scheduled job due now, see :meth:`trigger_jobs`."""
        await self.trigger_jobs([job_id], connection=connection)

    async def trigger_jobs(self, jobs: Iterable[str], *, connection: AsyncConnectionLike | None = None) -> None:
        """Make scheduled jobs due now, also those that wait for a retry. Ready jobs are not affected.

        Args:
            jobs: ids of jobs; a chain's id is that of its first job.
            connection: a connection of yours, see :meth:`start_chain`.

        Raises:
            JobNotFoundError: one of them does not exist; none was triggered.
            JobNotTriggerableError: one of them is blocked, running or finished; none was triggered.
        """
        store, ids = await self._open_store(), job_ids(jobs)
        triggered = await store.trigger_jobs(ids, connection=connection)
        if not triggered:
            return
        self._publish(trigger_notifications(triggered), connection)
        event = JobsTriggered(count=len(triggered), in_callers_transaction=connection is not None)
        emit_committed(self.observers, [event], connection)

    # --- send events --------------------------------------------------------------------------------------------------

    async def send_event(
        self,
        chain: ChainReference,
        name: str,
        payload: Any = None,
        *,
        id: str | None = None,
        connection: AsyncConnectionLike | None = None,
    ) -> bool:
        """Send an event to an open chain, for a handler of it that waits with ``attempt.wait_for_event``.

        If the last job of the chain waits for the event, it is due at once. Otherwise the event is kept until a job of
        the chain takes it, at most until the chain is deleted. Each event is taken once::

            await client.send_event(chain, "approved", {"by": "ada"}, id="approval-17")

        Args:
            chain: its id, or a handle.
            name: of the event: 1 to 128 characters of ``A-Z a-z 0-9 _ . : / -``, beginning with a letter or ``_``.
            payload: what pydantic can encode, in the format and within the limits of the chain's last job type. The
                handler validates it.
            id: names this event in the chain, so that it can be sent again without being taken twice: text of at most
                512 characters. By default a new one.
            connection: a connection of yours, see :meth:`start_chain`. The event is sent when it commits.

        Returns:
            Whether it was kept; False if an event of this id was sent to the chain before, also if that is closed now.

        Raises:
            PayloadError: the payload cannot be encoded, or exceeds the limits.
            UnknownJobTypeError: the job type of the chain's last job is not registered with this client.
            ChainNotFoundError: the chain does not exist.
            ChainAlreadyClosedError: the chain is closed.
            EventLimitError: the chain keeps 1,000 events, or 16 MiB of payloads, that no job has taken.
            ConfigurationError: the name is not valid.
            InvalidIdentifierError: the id is not valid.
        """
        chain_id, event_id = _only_id(chain), new_id() if id is None else check_text(id, what="event id")
        check_step_name(name, what="an event")
        store = await self._open_store()
        [record] = await store.get_chains([chain_id], connection=connection)
        if record is None:
            raise ChainNotFoundError(chain_id)
        codec = event_codec(self.job_types[record.tail_type])
        event = NewEvent(event_id, name, codec.encode(payload))
        sent = await store.send_event(chain_id, event, connection=connection)
        if sent.written:
            self._publish(trigger_notifications(sent.woken), connection)
            event_sent = EventSent(
                chain_id=chain_id, type=sent.chain_type, name=name, in_callers_transaction=connection is not None
            )
            emit_committed(self.observers, [event_sent], connection)
        return sent.written

    async def send_event_to_key(
        self,
        job_type: JobTypeReference,
        key: str,
        name: str,
        payload: Any = None,
        *,
        id: str | None = None,
        connection: AsyncConnectionLike | None = None,
    ) -> bool:
        """Send an event to the open chain that was started with a deduplication key, to the newest if there are more.

        A chain whose start has not been committed yet is not found.

        Args:
            job_type: the job type of the chain's first job, or its name.
            key: the key of its ``Deduplicate``.
            name: as for :meth:`send_event`, and so are the others, the result and the errors.
            payload: the payload.
            id: names this event in the chain.
            connection: a connection of yours, see :meth:`start_chain`.

        Raises:
            ChainNotFoundError: no open chain has the key.
        """
        [type_name] = type_names([job_type])
        check_text(key, what="deduplication key")
        found = await (await self._open_store()).chains_of_key(type_name, key, limit=1, connection=connection)
        if not found:
            raise ChainNotFoundError(key, f"no open chain of type {type_name!r} has the deduplication key {key!r}")
        return await self.send_event(found[0], name, payload, id=id, connection=connection)

    # --- delete -------------------------------------------------------------------------------------------------------

    async def delete_chain(
        self, chain: ChainReference, *, cascade: bool = False, connection: AsyncConnectionLike | None = None
    ) -> bool:
        """Delete one chain, see :meth:`delete_chains`. Return False if it did not exist."""
        [id] = chain_ids([chain])
        return id in await self.delete_chains([id], cascade=cascade, connection=connection)

    async def delete_chains(
        self, chains: Iterable[ChainReference], *, cascade: bool = False, connection: AsyncConnectionLike | None = None
    ) -> list[str]:
        """Delete chains with all their jobs, open or closed. Chains that do not exist are ignored.

        Args:
            chains: ids or handles.
            cascade: delete the blockers of their jobs as well, and the blockers of those, and so on.
            connection: a connection of yours, see :meth:`start_chain`.

        Returns:
            The ids of the deleted chains, in the given order, then those of the cascade.

        Raises:
            BlockerReferenceError: one of them is a blocker of a job that would remain; none was deleted. On Redis, if
                that job came while a cascade of more than 25 chains was under way, a part of them may have been
                cancelled or deleted before; the given ones remain.
        """
        store, ids = await self._open_store(), chain_ids(chains)
        result = await store.delete_chains(ids, cascade=cascade, connection=connection)
        if not result.chain_ids:
            return []
        self._publish(delete_notifications(result), connection)
        event = ChainsDeleted(count=len(result.chain_ids), in_callers_transaction=connection is not None)
        emit_committed(self.observers, [event], connection)
        return list(result.chain_ids)

    # --- retention ----------------------------------------------------------------------------------------------------

    async def update_result_ttl(self, chains: Iterable[ChainReference], seconds: float | timedelta) -> list[TtlUpdate]:
        """Keep closed chains for ``seconds`` from now, instead of by the TTL of their start.

        Args:
            chains: ids or handles.
            seconds: seconds or a timedelta, above 0 and at most a hundred years.

        Returns:
            For each chain, in order and each once, whether it was updated, or why not.

        Raises:
            ConfigurationError: ``seconds`` is out of range.
        """
        ids, ttl = chain_ids(chains), checked_ttl("result_ttl", seconds)
        return await (await self._open_store()).update_result_ttl(ids, ttl)

    async def prune_chains(
        self,
        *,
        older_than: float | timedelta,
        job_types: Iterable[JobTypeReference] | None = None,
        statuses: Iterable[ChainStatus | str] | None = None,
    ) -> int:
        """Delete the chains that closed longer ago than this, as a worker does by its retention.

        A chain that a job waits for, or that has a ``result_ttl`` of its own that is not over, stays. Chains whose
        ``result_ttl`` is over are deleted as well. It deletes page by page, each in a transaction of its own: if it is
        interrupted, what was deleted stays deleted, and the next call deletes the rest.

        Args:
            older_than: seconds or a timedelta, above 0 and at most a hundred years.
            job_types: only chains whose first jobs have these job types, or names. Without it all but the library's
                own, whose names begin with ``queuert.``: these must be named.
            statuses: only chains of these closed statuses; by default all three.

        Returns:
            How many chains were deleted.

        Raises:
            ConfigurationError: ``older_than`` is out of range, or a status does not exist or is ``open``.
            InvalidIdentifierError: the name of a job type is not valid.
        """
        store, request, deleted = await self._open_store(), await self._pruning(older_than, job_types, statuses), 0
        while True:
            result = await store.prune(request)
            if result.chain_ids:
                deleted += len(result.chain_ids)
                event = ChainsDeleted(count=len(result.chain_ids), in_callers_transaction=False)
                emit_committed(self.observers, [event], None)
            if result.cursor is None:
                return deleted
            request = replace(request, cursor=result.cursor)

    async def preview_prune(
        self,
        *,
        older_than: float | timedelta,
        job_types: Iterable[JobTypeReference] | None = None,
        statuses: Iterable[ChainStatus | str] | None = None,
        counted_up_to: int = COUNTED_CHAINS,
    ) -> BulkPreview:
        """Count the chains that :meth:`prune_chains` would delete by their age, by type and status.

        The arguments are the same.

        Chains whose own ``result_ttl`` is over are not counted. Counting ends at a page that reaches
        ``counted_up_to`` chains; the result then has ``more`` set.

        Raises:
            ConfigurationError: as for :meth:`prune_chains`, or ``counted_up_to`` is below 1.
            InvalidIdentifierError: the name of a job type is not valid.
        """
        most = checked_bound("counted_up_to", counted_up_to)
        store, request = await self._open_store(), await self._pruning(older_than, job_types, statuses)
        request, groups, seen = replace(request, preview=True), Counter[tuple[str, ChainStatus]](), 0
        while True:
            result = await store.prune(request)
            seen += len(result.chain_ids)
            chains = await existing_chains(store, result.chain_ids, None)
            groups.update((chain.type, chain.status) for chain in chains.values())
            if result.cursor is None:
                return preview_of(groups, more=False)
            if seen >= most:
                return preview_of(groups, more=True)
            request = replace(request, cursor=result.cursor)

    async def _pruning(
        self,
        older_than: float | timedelta,
        job_types: Iterable[JobTypeReference] | None,
        statuses: Iterable[ChainStatus | str] | None,
    ) -> PruneRequest:
        """Return what is to be pruned, in pages from the beginning."""
        policy = pruning(checked_ttl("older_than", older_than), statuses)
        return PruneRequest(dict.fromkeys(await self._types_meant(type_filter(job_types)), policy))

    # --- notifications and events -------------------------------------------------------------------------------------

    def _publish(self, notifications: Notifications, connection: Any) -> None:
        """Send notifications, except in a caller's transaction, where the store sends them with the commit."""
        if connection is None:
            for topic, keys in notifications.items():
                self.notify.publish(topic, keys)

    def _report_closed(self, results: Sequence[ChainUpdate], connection: Any) -> None:
        self._publish(update_notifications(results), connection)
        closed = [chain_closed(result, in_callers_transaction=connection is not None) for result in results]
        emit_committed(self.observers, closed, connection)

    def _report_continued(self, result: ChainUpdate, next_type: str, next_id: str, connection: Any) -> None:
        self._publish(update_notifications([result]), connection)
        event = ChainContinued(
            chain_id=result.chain_id,
            type=result.chain_type,
            next_type=next_type,
            next_job_id=next_id,
            in_callers_transaction=connection is not None,
        )
        emit_committed(self.observers, [event], connection)


def _only_id(chain: ChainReference) -> str:
    return chain_ids([chain])[0]


def _contention_error(chain_id: str) -> NotInStatusError:
    return NotInStatusError(f"chain {chain_id!r} advanced {ROUNDS} times during the operation: try again")
