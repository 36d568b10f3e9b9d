"""How much longer inputs are than what is stored of them, for claims that are bounded by bytes.

Postgres tells how much it has stored of an input without reading it, and whether that is compressed. How long the text
is that it hands out only reading it would tell, which takes as long as a claim. So a store guesses by what it was given
of late; at first, the worst. A wrong guess makes a claim smaller than it might be, or larger by what inputs differ.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from queuert.state.postgres.rows import Row

WORST = 100.0
"""A match of Postgres's own compression is 273 bytes long at most and takes 3."""

_CLAIMS = 8
"""So many claims with compressed inputs are remembered."""

_MARGIN = 1.5

INPUT, PACKED = 11, 18
"""Where a row of a claim has the input, and what is stored of it if that is compressed."""


class Expansion:
    """How many characters were handed out for each byte of compressed inputs, of late at most."""

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=_CLAIMS)

    @property
    def factor(self) -> float:
        """By which the size of a compressed input is to be multiplied."""
        return min(WORST, max(1.0, _MARGIN * max(self._seen))) if self._seen else WORST

    def note(self, rows: Sequence[Row]) -> None:
        """What a claim was handed."""
        packed = [row for row in rows if row[PACKED] is not None]
        if packed:
            self._seen.append(max(len(row[INPUT] or "") / row[PACKED] for row in packed))
