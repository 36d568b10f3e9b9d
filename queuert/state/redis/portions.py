"""How much of a call one script does.

A server does nothing else while a script runs, so a call for many jobs is several scripts, each of a few milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

_T = TypeVar("_T")

READ = 50
"""Jobs or chains of which one script reads all, or changes little; claimed jobs that one script releases."""

WRITTEN = 25
"""Chains that one script changes. A call for no more is atomic."""

TYPES = 25
"""Job types of which one script counts or reaps jobs."""

LISTED = 100
"""Job types of which one script merges the lists."""

RENEWED = 100
"""Claimed jobs that one script renews."""


def portions(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    """Yield the items in order, so many at a time."""
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]


def in_order(ids: Sequence[str], pairs: Iterable[tuple[str, str]]) -> list[Sequence[str]]:
    """Return the ids in portions, so that the first id of each pair comes in the same portion as the second, or before.

    Those that come before each other in a circle, and what comes after them, are one portion, the last one.

        >>> in_order(["a", "b", "c", "d"], [("b", "a"), ("c", "d"), ("d", "c")])
        [['b', 'a'], ['c', 'd']]
    """
    after: Mapping[str, list[str]] = {id: [] for id in ids}
    waits_for = dict.fromkeys(ids, 0)
    for first, second in pairs:
        if first in waits_for and second in waits_for:
            after[first].append(second)
            waits_for[second] += 1
    ordered = [id for id in ids if not waits_for[id]]
    for id in ordered:  # It grows meanwhile.
        for following in after[id]:
            waits_for[following] -= 1
            if not waits_for[following]:
                ordered.append(following)
    left = [id for id in ids if waits_for[id]]
    return [*portions(ordered, WRITTEN), *([left] if left else [])]
