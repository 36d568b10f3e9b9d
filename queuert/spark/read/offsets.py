"""Where a stream of events stands: a transaction, a number in it, and the cluster whose transactions these are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from queuert.spark.errors import OffsetError


@dataclass(frozen=True, slots=True, order=True)
class Offset:
    """All events before ``(tx, seq)`` are done, and it is the next: the end of one batch is the start of another.

    Attributes:
        tx: the transaction.
        seq: the number of the event; 0 comes before all events of the transaction.
        system: the identifier of the cluster. Another one counts its transactions anew.
    """

    tx: int
    seq: int
    system: str

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Offset:
        """Read what :meth:`as_dict` made.

        Raises:
            OffsetError: it is something else.
        """
        try:
            return cls(int(given["tx"]), int(given["seq"]), str(given["system"]))
        except (KeyError, TypeError, ValueError):
            raise OffsetError(f"not an offset of the event log: {dict(given)!r}") from None

    def as_dict(self) -> dict[str, Any]:
        """What Spark keeps in its checkpoint."""
        return {"tx": self.tx, "seq": self.seq, "system": self.system}

    def check_system(self, system: str) -> None:
        """Refuse an offset of another cluster.

        Raises:
            OffsetError: it is one.
        """
        if self.system != system:
            raise OffsetError(
                f"the checkpoint belongs to another cluster ({self.system}; this is {system}), whose transactions are "
                "not these: after a restore or an upgrade begin with a new checkpoint"
            )


def split(start: Offset, end: Offset, parts: int) -> list[tuple[Offset, Offset]]:
    """A range in at most so many parts, at the borders of transactions."""
    if start >= end:
        return []
    last = end.tx if end.seq == 0 else end.tx + 1
    parts = max(1, min(parts, last - start.tx))
    cuts = [Offset(start.tx + (last - start.tx) * at // parts, 0, start.system) for at in range(1, parts)]
    return list(zip([start, *cuts], [*cuts, end], strict=True))
