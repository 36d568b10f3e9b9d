"""What a run tells of itself while it is at work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Progress:
    """A step that has been done, or a part of one.

    Attributes:
        step: which: ``rollup.written``, ``archive.planned``, ``archive.deleting`` and so on.
        text: what was done, in words.
        done: how many of ``total`` things are done, where it can be counted.
        total: of how many.
    """

    step: str
    text: str
    done: int | None = None
    total: int | None = None


OnProgress: TypeAlias = Callable[[Progress], None]
"""Is called in the thread of the run. What it raises ends the run there; the next one goes on from that step."""


def quiet(_: Progress) -> None:
    """Tell nobody."""
