"""A transaction that holds one job for its handler."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from queuert.errors import LeaseLostError, StateError, StateUnavailableError
from queuert.jobs import AbortReason
from queuert.state.sqlite import rows
from queuert.state.sqlite.connection import LockedConnection, first, plain, roll_back
from queuert.state.sqlite.errors import mapped_errors
from queuert.state.sqlite.finishing import finish_one
from queuert.state.types import ClaimedJob, Finish, FinishResult, check_finishes

_UNDONE = (
    "SQLite rolled back the whole transaction because a statement failed, and the handler caught the error: let it pass"
)


def _authorize(action: int, *_: object) -> int:
    """Let the block's caller do anything but end its transaction: what is not fenced by the lease must not commit."""
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK


class SQLiteTransaction:
    """The caller's writes and the job's finish in one transaction, which holds the database's write lock throughout.

    Nobody else writes meanwhile, so keep it short. A COMMIT or ROLLBACK of the caller's own is refused by SQLite.
    """

    def __init__(self, link: LockedConnection, job: ClaimedJob, on_end: Callable[[bool], None]) -> None:
        self._link = link
        self._job = job
        self._on_end = on_end
        self._cutting = threading.Lock()
        self._open = False
        self._cut = False

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection, inside the transaction."""
        return self._link.connection

    @property
    def holds(self) -> bool:
        """Nobody else writes meanwhile."""
        return True

    def cut(self) -> None:
        """Make whoever waits on the connection fail, and the transaction with it."""
        with self._cutting:
            self._cut = True
            if self._open:
                self._link.connection.interrupt()

    def finish(self, finish: Finish, *, last: bool = False) -> FinishResult:
        """Write the finish inside the transaction."""
        check_finishes([finish])
        self._check_usable()
        with mapped_errors(), plain(self.connection):
            # One step of the finish must not stand without the others.
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

    def _check_usable(self) -> None:
        if self._cut or self._link.closed:
            raise StateUnavailableError("the transaction was interrupted and rolled back: nothing of it was written")
        if not self.connection.in_transaction:
            raise StateError(_UNDONE)

    def __enter__(self) -> Self:
        try:
            self._link.take()
        except BaseException:
            self._on_end(False)
            raise
        try:
            with mapped_errors():
                self.connection.execute("BEGIN IMMEDIATE")
                self._check_lease()
                self.connection.set_authorizer(_authorize)
            self._open = True
        except BaseException:
            self._end(commit=False)
            raise
        return self

    def _check_lease(self) -> None:
        state = first(self.connection, "lease_state", id=self._job.id)
        reason = rows.lost_reason(None, self._job.token, state)
        if reason is None and state is not None and not state[3]:
            reason = AbortReason.ALREADY_COMPLETED
        if reason is not None:
            raise LeaseLostError(self._job.id, reason)

    def _end(self, *, commit: bool) -> None:
        with self._cutting:
            # From here on it is too late to be cut off.
            self._open = False
        committed = False
        try:
            self._restore()
            if commit:
                self._check_usable()
                self.connection.execute("COMMIT")
                committed = True
        finally:
            self._give_back(committed)

    def _restore(self) -> None:
        """What a caller set for itself is not for the next one."""
        self.connection.set_authorizer(None)
        self.connection.row_factory = None
        self.connection.text_factory = str

    def _give_back(self, committed: bool) -> None:
        try:
            with suppress(sqlite3.Error):
                # It fails where the connection is closed, or broken: nothing of the transaction stands then.
                roll_back(self.connection)
        finally:
            self._link.give_back()
            self._on_end(committed)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            with mapped_errors():
                self._end(commit=True)
            return
        with suppress(sqlite3.Error):
            # It is not to hide the error that is under way.
            self._end(commit=False)
