"""The transaction of an attempt's block."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from queuert.errors import LeaseLostError, StateError, StateUnavailableError
from queuert.jobs import AbortReason
from queuert.state.sqlite import rows
from queuert.state.sqlite.connection import LockedConnection, execute, fetch_one, now_us, plain, restore, roll_back
from queuert.state.sqlite.errors import mapped_errors
from queuert.state.sqlite.finishing import finish_one
from queuert.state.sqlite.rows import microseconds_of
from queuert.state.sqlite.steps import record_step
from queuert.state.steps import NewStep, StepRecord
from queuert.state.types import ClaimedJob, Finish, FinishResult, check_finishes

_UNDONE = (
    "SQLite rolled back the whole transaction because a statement failed, and the handler caught the error: let it pass"
)


def _authorize(action: int, *_: object) -> int:
    """Refuse to end the transaction from inside the block: writes that the lease does not fence must not commit."""
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK


class SQLiteTransaction:
    """The caller's writes and the job's finish in one transaction, which holds the database's write lock throughout.

    No other connection can write meanwhile, so keep it short. SQLite refuses a COMMIT or ROLLBACK of the caller.
    """

    def __init__(self, link: LockedConnection, job: ClaimedJob) -> None:
        self._link = link
        self._job = job
        self._cutting = threading.Lock()
        self._open = False
        self._cut = False
        self._begun_at = 0
        self.committed = False
        """Whether it has ended with a commit."""

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection of the transaction."""
        return self._link.connection

    @property
    def locks_job(self) -> bool:
        """True: no other connection can write meanwhile."""
        return True

    def abort(self) -> None:
        """Make a call that waits on the connection fail, and the transaction with it."""
        with self._cutting:
            self._cut = True
            if self._open:
                self._link.connection.interrupt()

    def finish(self, finish: Finish, *, last: bool = False) -> FinishResult:
        """Write the finish inside the transaction."""
        check_finishes([finish])
        self._check_usable()
        with mapped_errors(), plain(self.connection):
            # A failed finish must not leave some of its statements behind.
            self.connection.execute("SAVEPOINT queuert_ending")
            try:
                result = finish_one(self.connection, finish)
            except BaseException:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK TO queuert_ending")
                raise
            self.connection.execute("RELEASE queuert_ending")
        if result.lost is not None:
            raise LeaseLostError(finish.job.id, result.lost)
        return result

    def record_step(self, step: NewStep) -> StepRecord:
        """Record a step of the job inside the transaction."""
        self._check_usable()
        with mapped_errors(), plain(self.connection):
            return record_step(self.connection, self._job.lease, step)

    def _check_usable(self) -> None:
        if self._cut or self._link.closed:
            raise StateUnavailableError(
                "the transaction was interrupted and rolled back, and nothing of it was written: repeat the operation"
            )
        if not self.connection.in_transaction:
            raise StateError(_UNDONE)

    def __enter__(self) -> Self:
        try:
            with mapped_errors():
                self.connection.execute("BEGIN IMMEDIATE")
                self._check_lease()
                self._begun_at = now_us()
                self.connection.set_authorizer(_authorize)
            self._open = True
        except BaseException:
            self._end(commit=False)
            raise
        return self

    def _check_lease(self) -> None:
        state = fetch_one(self.connection, "lease_state", id=self._job.id)
        reason = rows.lost_reason(None, self._job.token, state)
        if reason is None and not rows.holds(self._job.token, state):
            reason = AbortReason.ALREADY_COMPLETED
        if reason is not None:
            raise LeaseLostError(self._job.id, reason)

    def _end(self, *, commit: bool) -> None:
        with self._cutting:
            # From here on the commit is in progress and can no longer be interrupted.
            self._open = False
        try:
            restore(self.connection)
            if commit:
                self._check_usable()
                self._extend_lease()
                self.connection.execute("COMMIT")
                self.committed = True
        finally:
            with suppress(sqlite3.Error):
                # This fails if the connection is closed or broken; then nothing of the transaction was committed.
                roll_back(self.connection)

    def _extend_lease(self) -> None:
        """Extend a lease that could not be renewed meanwhile: a reaper may be the next to write. One that was given up
        with the finish stays so."""
        now, lasts = now_us(), microseconds_of(self._job.lease_seconds)
        if now - self._begun_at >= lasts // 4:
            lease = self._job.lease
            execute(self.connection, "renew", id=lease.job_id, token=lease.token, expires=now + lasts, progress=None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            with mapped_errors():
                self._end(commit=True)
            return
        with suppress(sqlite3.Error):
            # This must not hide the error that is being raised.
            self._end(commit=False)
