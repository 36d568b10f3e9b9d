"""The position of a stream of events: a transaction, an event number in it, and the log that these numbers belong
to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from queuert.spark.errors import OffsetError
from queuert.state.postgres.event_log import EventCursor, micros_of, moment_of


@dataclass(frozen=True, slots=True, order=True)
class Offset:
    """A position in the log: all events before ``(tx, seq)`` are done. The end of one batch is the start of the next.

    Attributes:
        tx: the transaction.
        seq: the number of the event; 0 comes before all events of the transaction.
        system: the identifier of the cluster. Another cluster has other transaction numbers.
        timeline: the timeline of the cluster; 0 for an offset of an earlier version.
        event: the last event before this position, which proves that another server continues this log; None if there
            is none.
    """

    tx: int
    seq: int
    system: str
    timeline: int = field(default=0, compare=False)
    event: EventCursor | None = field(default=None, compare=False)

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Offset:
        """Decode the result of :meth:`as_dict`.

        Raises:
            OffsetError: the value is not an offset of the event log.
        """
        try:
            system, timeline, event = str(given["system"]), int(given.get("timeline", 0)), None
            if given.get("event") is not None:
                tx, seq, micros = map(int, given["event"])
                event = EventCursor(tx, seq, moment_of(micros), system, timeline)
            return cls(int(given["tx"]), int(given["seq"]), system, timeline, event)
        except (KeyError, TypeError, ValueError, OverflowError):
            raise OffsetError(
                f"the offset must be one of the event log, got {dict(given)!r}: start with a new checkpoint"
            ) from None

    def as_dict(self) -> dict[str, Any]:
        """Return the offset as Spark keeps it in its checkpoint."""
        made: dict[str, Any] = {"tx": self.tx, "seq": self.seq, "system": self.system}
        if self.timeline:
            made["timeline"] = self.timeline
        if self.event is not None and self.event.happened_at is not None:
            made["event"] = [self.event.tx, self.event.seq, micros_of(self.event.happened_at)]
        return made

    @property
    def cursor(self) -> EventCursor:
        """Return the position that a log must contain to continue from here."""
        return self.event or EventCursor(self.tx, self.seq, None, self.system, self.timeline)

    def check_system(self, system: str) -> None:
        """Check that the offset belongs to this cluster.

        Raises:
            OffsetError: it belongs to another cluster.
        """
        if self.system != system:
            raise OffsetError(
                f"the checkpoint belongs to another cluster ({self.system}; this is {system}), whose transactions are "
                "not these: after a database was moved begin with a new checkpoint (startingOffsets=earliest reads all "
                "that the log has, latest only what comes)"
            )


def split(start: Offset, end: Offset, parts: int) -> list[tuple[Offset, Offset]]:
    """Split a range into at most ``parts`` parts, at the borders of transactions."""
    if start >= end:
        return []
    last = end.tx if end.seq == 0 else end.tx + 1
    parts = max(1, min(parts, last - start.tx))
    cuts = [Offset(start.tx + (last - start.tx) * at // parts, 0, start.system) for at in range(1, parts)]
    return list(zip([start, *cuts], [*cuts, end], strict=True))
