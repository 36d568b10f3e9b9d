"""Where a stream of events stands: a transaction, a number in it, and the log whose transactions these are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from queuert.spark.errors import OffsetError
from queuert.state.postgres.event_log import EventCursor, micros_of, moment_of


@dataclass(frozen=True, slots=True, order=True)
class Offset:
    """All events before ``(tx, seq)`` are done, and it is the next: the end of one batch is the start of another.

    Attributes:
        tx: the transaction.
        seq: the number of the event; 0 comes before all events of the transaction.
        system: the identifier of the cluster. Another one counts its transactions anew.
        timeline: which history of the cluster; 0 for an offset of an earlier version, which does not say.
        event: the event next to this place, by which another server is known to go on from here; None: none is known.
    """

    tx: int
    seq: int
    system: str
    timeline: int = field(default=0, compare=False)
    event: EventCursor | None = field(default=None, compare=False)

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Offset:
        """Read what :meth:`as_dict` made.

        Raises:
            OffsetError: it is something else.
        """
        try:
            system, timeline, event = str(given["system"]), int(given.get("timeline", 0)), None
            if given.get("event") is not None:
                tx, seq, micros = map(int, given["event"])
                event = EventCursor(tx, seq, moment_of(micros), system, timeline)
            return cls(int(given["tx"]), int(given["seq"]), system, timeline, event)
        except (KeyError, TypeError, ValueError, OverflowError):
            raise OffsetError(f"not an offset of the event log: {dict(given)!r}") from None

    def as_dict(self) -> dict[str, Any]:
        """What Spark keeps in its checkpoint."""
        made: dict[str, Any] = {"tx": self.tx, "seq": self.seq, "system": self.system}
        if self.timeline:
            made["timeline"] = self.timeline
        if self.event is not None and self.event.happened_at is not None:
            made["event"] = [self.event.tx, self.event.seq, micros_of(self.event.happened_at)]
        return made

    @property
    def cursor(self) -> EventCursor:
        """What must be in a log that goes on from here."""
        return self.event or EventCursor(self.tx, self.seq, None, self.system, self.timeline)

    def check_system(self, system: str) -> None:
        """Refuse an offset of another cluster.

        Raises:
            OffsetError: it is one.
        """
        if self.system != system:
            raise OffsetError(
                f"the checkpoint belongs to another cluster ({self.system}; this is {system}), whose transactions are "
                "not these: after a database was moved begin with a new checkpoint (startingOffsets=earliest reads all "
                "that the log has, latest only what comes)"
            )


def split(start: Offset, end: Offset, parts: int) -> list[tuple[Offset, Offset]]:
    """A range in at most so many parts, at the borders of transactions."""
    if start >= end:
        return []
    last = end.tx if end.seq == 0 else end.tx + 1
    parts = max(1, min(parts, last - start.tx))
    cuts = [Offset(start.tx + (last - start.tx) * at // parts, 0, start.system) for at in range(1, parts)]
    return list(zip([start, *cuts], [*cuts, end], strict=True))
