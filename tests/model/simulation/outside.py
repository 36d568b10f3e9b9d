"""What is done to chains from outside, in its plainest form: the other half of the plain store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from queuert.errors import (
    BlockerReferenceError,
    ChainNotRetriableError,
    JobNotFoundError,
    JobNotTriggerableError,
)
from queuert.job_types import BULK_OPERATION_TYPE
from queuert.jobs import ChainRecord, ChainStatus, JobStatus
from queuert.state.paging import ChainFilter, PageRequest
from queuert.state.types import ChainUpdate, DeleteResult, SweepResult, TriggeredJob, WorkerlessCompletion
from tests.model.simulation.plain_store import CLOSED, PlainStore, Row, due


class WholeStore(PlainStore):
    """The plain store, with the operations of those who come from outside."""

    def _update(self, row: Row, met: JobStatus, written: bool, due_types: Iterable[Row] = ()) -> ChainUpdate:
        first, status = self.jobs[row.chain], self.chains[row.chain]
        return ChainUpdate(row.chain, first.type, status, row.id, row.type, met, written, due(due_types))

    def cancel_chains(self, ids: Sequence[str], *, reason: str, **_: Any) -> list[ChainUpdate]:
        """Close open chains as cancelled."""
        return [self._end_outside(chain, JobStatus.CANCELLED) for chain in self._known(ids)]

    def _end_outside(self, chain: str, status: JobStatus) -> ChainUpdate:
        row = self.tail(chain)
        met = row.status
        if self.chains[chain] is not ChainStatus.OPEN:
            return self._update(row, met, False)
        self._note(f"outside {status}", row)
        row.status, row.leased, row.token, row.holder = status, False, None, None
        due_types: list[Row] = []
        if status is not JobStatus.CONTINUED:
            due_types = self._close(chain, CLOSED[status])
        return self._update(row, met, True, due_types)

    def complete_chains(self, completions: Sequence[WorkerlessCompletion], **_: Any) -> list[ChainUpdate]:
        """End the last job of each chain; all or none."""
        self._known(one.chain_id for one in completions)
        tails = [self.tail(one.chain_id) for one in completions]
        for one, row in zip(completions, tails, strict=True):
            if self.chains[one.chain_id] is not ChainStatus.OPEN or row.id != one.tail_id:
                return [self._update(tail, tail.status, False) for tail in tails]
        return [self._complete_one(one, row) for one, row in zip(completions, tails, strict=True)]

    def _complete_one(self, one: WorkerlessCompletion, row: Row) -> ChainUpdate:
        if one.continuation is None:
            row.output = one.output
            return self._end_outside(one.chain_id, JobStatus.COMPLETED)
        ended = self._end_outside(one.chain_id, JobStatus.CONTINUED)
        following = self._write(one.continuation, row)
        return self._update(row, ended.previous_status, True, [following])

    def retry_chains(self, ids: Sequence[str], **_: Any) -> list[ChainUpdate]:
        """Open failed and cancelled chains again."""
        for chain in self._known(ids):
            if self.chains[chain] not in (ChainStatus.FAILED, ChainStatus.CANCELLED):
                raise ChainNotRetriableError(chain, self.chains[chain])
        return [self._retry(self.tail(chain)) for chain in ids]

    def _retry(self, row: Row) -> ChainUpdate:
        met = row.status
        self.chains[row.chain] = ChainStatus.OPEN
        for one in self.jobs.values():
            if one.status is JobStatus.BLOCKED and row.chain in one.blockers:
                one.waits_for.add(row.chain)
        row.waits_for = {chain for chain in row.blockers if self.chains[chain] is ChainStatus.OPEN}
        row.uncounted, row.expirations, row.due_at = row.attempt, 0, min(row.due_at, self._clock())
        row.token = None
        self._note("retry", row)
        self._rest(row)
        return self._update(row, met, True, [row])

    def trigger_jobs(self, ids: Sequence[str], **_: Any) -> list[TriggeredJob]:
        """Make scheduled jobs due now."""
        for id in ids:
            if id not in self.jobs:
                raise JobNotFoundError(id)
            if self.jobs[id].status not in (JobStatus.READY, JobStatus.SCHEDULED):
                raise JobNotTriggerableError(id, self.jobs[id].status)
        for id in ids:
            self.jobs[id].due_at = min(self.jobs[id].due_at, self._clock())
            self._rest(self.jobs[id])
            self._note("trigger", self.jobs[id])
        return [TriggeredJob(id, self.jobs[id].type) for id in ids]

    def delete_chains(self, ids: Sequence[str], **_: Any) -> DeleteResult:
        """Delete chains with all their jobs."""
        gone = [id for id in ids if id in self.chains]
        left = [row for row in self.jobs.values() if row.chain not in gone]
        references = [(chain, row.id) for row in left for chain in row.blockers if chain in gone]
        if references:
            raise BlockerReferenceError(references)
        running = [row.id for row in self.jobs.values() if row.chain in gone and row.leased]
        self.jobs = {row.id: row for row in left}
        for chain in gone:
            del self.chains[chain]
        return DeleteResult(gone, running)

    def list_chains(self, chains: ChainFilter, page: PageRequest) -> list[ChainRecord]:
        """Workers list nothing but bulk operations, of which there are none here."""
        assert chains.types == (BULK_OPERATION_TYPE,)
        return []

    def release_stranded(self, **_: Any) -> SweepResult:
        """Nothing is ever stranded here."""
        return SweepResult((), None)
