"""What a run reports while it is running."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Progress:
    """A step that was done, or a part of one.

    Attributes:
        step: the name of the step: ``rollup.written``, ``archive.planned``, ``archive.deleting`` and so on.
        text: a description of what was done.
        done: how many of ``total`` items are done, if they can be counted.
        total: the number of items.
    """

    step: str
    text: str
    done: int | None = None
    total: int | None = None


OnProgress: TypeAlias = Callable[[Progress], None]
"""Called in the thread of the run. If it raises, the run ends there, and the next run continues from that step."""


def quiet(_: Progress) -> None:
    """Ignore the progress."""
