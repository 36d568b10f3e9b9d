"""Cursors of an event log whose events are numbered in the order of their commits, without gaps: SQLite's and Redis's.

A number means nothing in another log, and an older copy of a log gives the numbers again that were lost with the newer
events. So a cursor has the id of the log, and the time of the event that was read last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from queuert.errors import EventsLostError, InvalidCursorError
from queuert.state.paging import Position

_LAST_NUMBER = 2**63 - 1
_BEHIND = re.compile(r"([0-9a-f]{16}):(\d{1,18})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class NumberedLog:
    """A log at one moment.

    Attributes:
        id: its id.
        dropped: the highest number that retention has deleted; 0 if none.
        last: the number of the newest event; 0 before the first.
        another: how a log of another id may have come about, for the message of an error.
        older: the same, for a log that lacks its newest events.
    """

    id: str
    dropped: int
    last: int
    another: str
    older: str


@dataclass(frozen=True, slots=True)
class LogCursor:
    """The position after an event.

    Attributes:
        seq: the number of the event.
        log: the id of the log.
        happened_at: the time of the event, in microseconds; None if there is no such event.
    """

    seq: int
    log: str
    happened_at: int | None

    @classmethod
    def decode(cls, text: str) -> LogCursor:
        """Decode a cursor of :meth:`encode`.

        Raises:
            InvalidCursorError: the text is not a cursor of such a log.
        """
        position = Position.decode(text)
        behind = _BEHIND.fullmatch(position.id)
        seq = int(position.key) if re.fullmatch(r"\d{1,19}", position.key, re.ASCII) else _LAST_NUMBER + 1
        if behind is None or seq > _LAST_NUMBER:
            raise InvalidCursorError(text)
        log, happened_at = behind.groups()
        return cls(seq, log, None if happened_at is None else int(happened_at))

    def encode(self) -> str:
        """Return the cursor as opaque text."""
        return Position(str(self.seq), f"{self.log}:{'' if self.happened_at is None else self.happened_at}").encode()

    def check(self, log: NumberedLog, found_at: int | None, *, follows: bool) -> None:
        """Check that a log continues from here, whose event of this number happened at ``found_at``.

        With ``follows``, no event after the cursor may be missing.

        Raises:
            EventsLostError: it does not; the error has the cursor to continue from.
        """
        if self.log != log.id:
            reason, after = f"the cursor is of the event log {self.log} of {log.another}; this is {log.id}", 0
        elif follows and log.dropped > self.seq:
            reason = f"retention deleted events up to number {log.dropped}, and those after {self.seq} were not read"
            after = log.dropped
        elif self._is_known(log, found_at):
            return
        else:
            reason = (
                f"the log no longer has the last event that was read (number {self.seq}): {log.older}. Events that "
                "were written since are lost, and new ones have got their numbers"
            )
            after = min(self.seq, log.last)
        error = EventsLostError(
            f"{reason}: begin anew without a cursor, which shows all that the log has, or go on from the cursor of "
            "this error"
        )
        error.cursor = LogCursor(after, log.id, None).encode()
        raise error

    def _is_known(self, log: NumberedLog, found_at: int | None) -> bool:
        """Whether the log has, or retention has deleted, the event of the cursor."""
        if self.happened_at is None or found_at is None:
            return self.seq <= (log.last if self.happened_at is None else log.dropped)
        return found_at == self.happened_at
