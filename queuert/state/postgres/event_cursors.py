"""Where a reader of the event log stands, and whether the log of this server still goes on from there.

Transaction numbers are those of one history of one cluster. After a failover to a standby that had not received all, or
after a restore, numbers that readers have passed are given again, and what gets them would be passed over. So a cursor
names the cluster, the timeline, and the event that was read last: as long as the log has that event, each number up to
it was given before, and nothing can come in below it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from queuert.errors import InvalidCursorError
from queuert.event_log import DatabaseMovedError, EventsLostError
from queuert.state.paging import Position
from queuert.state.postgres.parameters import Parameters
from queuert.state.postgres.rows import Row

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BEHIND = re.compile(r"(\d{1,19})(?::(\d{1,20}):(\d{1,10}):(\d{1,18})?)?", re.ASCII)
_LAST_SEQ = 2**63 - 1

RESTART = "begin anew without a cursor, which shows all that the log has, or go on from the cursor of this error"


@dataclass(frozen=True, slots=True)
class LogState:
    """How the log stands on the server that was asked.

    Attributes:
        horizon: all transactions below it are over.
        next_tx: no transaction has this number yet, or a higher one.
        dropped: the newest of which retention has taken events.
        owner: the cluster whose numbers the log has.
        system: the cluster that the server is of.
        timeline: which history of the cluster: a standby that is promoted begins the next.
        standby: whether the server follows another one, which may be further.
        known: whether the log has the event that was asked for.
    """

    horizon: int
    next_tx: int
    dropped: int
    owner: str
    system: str
    timeline: int
    standby: bool
    known: bool

    @classmethod
    def of(cls, row: Row) -> LogState:
        """The row of ``read_log``."""
        horizon, next_tx, dropped, owner, system, timeline, standby, known = row
        return cls(int(horizon), int(next_tx), int(dropped), owner, system, timeline, standby, known)

    def check_owner(self) -> None:
        """Refuse to read by numbers that are another cluster's.

        Raises:
            DatabaseMovedError: they are.
        """
        check_owner(self.owner, self.system)


def check_owner(owner: str, system: str) -> None:
    """Refuse a database whose transaction numbers are another cluster's.

    Raises:
        DatabaseMovedError: they are.
    """
    if owner != system:
        raise DatabaseMovedError(moved_text(owner, system))


def moved_text(owner: str, system: str) -> str:
    """What is wrong with a database that was moved, and what to do."""
    return (
        f"the event log and the jobs have transaction numbers of another cluster ({owner}; this is {system}): the "
        "database was moved here. Stop the workers and run queuert migrate adopt"
    )


@dataclass(frozen=True, slots=True)
class EventCursor:
    """A place behind an event.

    Attributes:
        tx: its transaction.
        seq: its number.
        happened_at: when it happened; None where the event itself is not meant, but only the numbers.
        system: the cluster; None for a cursor of an earlier version, which names no cluster and no timeline.
        timeline: which history of it; 0 where that is not known.
    """

    tx: int
    seq: int
    happened_at: datetime | None = None
    system: str | None = None
    timeline: int = 0

    @classmethod
    def decode(cls, text: str) -> EventCursor:
        """Read what :meth:`encode` made, or an earlier version.

        Raises:
            InvalidCursorError: it is something else.
        """
        position = Position.decode(text)
        behind = _BEHIND.fullmatch(position.id)
        tx = int(position.key) if re.fullmatch(r"\d{1,20}", position.key, re.ASCII) else 2**64
        if behind is None or tx >= 2**64 or int(behind[1]) > _LAST_SEQ:
            raise InvalidCursorError(text)
        seq, system, timeline, micros = behind.groups()
        try:
            moment = None if micros is None else moment_of(int(micros))
        except OverflowError:
            raise InvalidCursorError(text) from None
        return cls(tx, int(seq), moment, system, int(timeline or 0))

    def encode(self) -> str:
        """The opaque text."""
        if self.system is None:
            return Position(str(self.tx), str(self.seq)).encode()
        micros = "" if self.happened_at is None else micros_of(self.happened_at)
        return Position(str(self.tx), f"{self.seq}:{self.system}:{self.timeline}:{micros}").encode()

    def check(self, log: LogState, *, follows: bool) -> None:
        """Make sure that the log of this server goes on from here. ``follows``: nothing behind it may be missing.

        Raises:
            EventsLostError: it does not.
        """
        lost = self._reason(log, follows=follows)
        if lost is None:
            return
        reason, tx, seq = lost
        error = EventsLostError(f"{reason}: {RESTART}")
        error.cursor = EventCursor(tx, seq, None, log.system, log.timeline).encode()
        raise error

    def _reason(self, log: LogState, *, follows: bool) -> tuple[str, int, int] | None:
        """Why the log does not go on from here, and from where it does; None if it does from here."""
        if follows and log.dropped > self.tx:
            taken = f"retention took events up to transaction {log.dropped}, and those behind {self.tx} were not read"
            return taken, log.dropped, _LAST_SEQ
        if self.system is not None and self.system != log.system:
            return f"the cursor is of another cluster ({self.system}; this is {log.system})", 0, 0
        reason = lost_events(self, log)
        return None if reason is None else (reason, self.tx, self.seq)


def lost_events(place: EventCursor, log: LogState) -> str | None:
    """Why events behind a place of this cluster may be missing from what a reader goes on with; None if none can be.

    ``log`` was asked for the event of the place.
    """
    if place.timeline == 0:
        # Of an earlier version: it names neither a timeline nor an event.
        ahead = place.tx > log.next_tx and not log.standby
        return f"the log has not come to transaction {place.tx}, so that was read elsewhere" if ahead else None
    same = place.timeline == log.timeline
    if log.known or (same and (place.happened_at is None or log.dropped >= place.tx)):
        return None
    if log.standby and place.tx >= log.horizon:
        # It has not received them yet, and what it has is before them.
        return None
    change = (
        f"on timeline {log.timeline}"
        if same
        else f"the reader has read on timeline {place.timeline}, and this server has gone on as timeline {log.timeline}"
    )
    return (
        f"the log does not have the last event that was read (transaction {place.tx}) any more: {change}, after a "
        "failover or a restore that did not keep all. Events of that time are lost, and new ones have got their numbers"
    )


def params(place: EventCursor | None) -> Parameters:
    """The parameters of ``read_log``."""
    if place is None or place.happened_at is None:
        return {"tx": "0", "seq": 0, "happened_at": None}
    return {"tx": str(place.tx), "seq": place.seq, "happened_at": place.happened_at.isoformat()}


def micros_of(moment: datetime) -> int:
    """Microseconds since 1970."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def moment_of(micros: int) -> datetime:
    """The moment of so many microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=micros)
