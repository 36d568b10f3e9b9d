"""Lists of chains and jobs by time: which scripts read them, and what their answers are together.

There is a list for each job type. One script merges those of some types, from the place on where the last one stopped:
to merge the lists of very many types, or to look at very many entries that do not match the filter, would keep other
clients waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, TypeAlias

from queuert.state.paging import ChainFilter, JobFilter, PageRequest, Position
from queuert.state.redis import decode, encode
from queuert.state.redis.portions import LISTED, portions

Place: TypeAlias = tuple[int, str]
"""The time of an entry in microseconds, and its id."""

_SCAN = 150
"""The largest number of entries that one script reads."""

_FIRST: Place = (-1, "")
_LAST: Place = (2**53, "")


class ListByTime:
    """One page of such a list, and one entry more."""

    def __init__(self, filter: ChainFilter | JobFilter, page: PageRequest) -> None:
        self._filter = filter
        self._oldest_first = page.oldest_first
        self._wanted = page.limit + 1
        self._found: list[Place] = []
        """Entries that match, in any order: of each part of the types, all up to its place."""
        start = _FIRST if page.oldest_first else _LAST
        if page.cursor is not None:
            at, id = Position.decode_time(page.cursor)
            start = encode.microseconds(at), id
        self._left: list[tuple[Place, Sequence[str] | None]] = []
        """The parts of the types that are not read to their end, each with the place to which it is."""
        self._limit = self._wanted
        self._divide(filter.types, start)

    def _divide(self, types: Sequence[str] | None, place: Place) -> None:
        """Read these types from a place on, in parts; None stands for all, which one script tells if they are too many
        for it."""
        whole = types is None or (isinstance(self._filter, ChainFilter) and self._filter.attributes)
        parts = [types] if whole else portions(list(dict.fromkeys(types or ())), LISTED)
        self._left += [(place, part) for part in parts]

    def next_script(self) -> encode.Arguments | None:
        """Return the arguments of the next script; None if the page is complete."""
        if not self._left:
            return None
        # The part that has come least far: up to there, nothing more can be found in any other one.
        self._left.sort(key=itemgetter(0), reverse=self._oldest_first)
        place, types = self._left[-1]
        if self._oldest_first:
            certain = sum(one <= place for one in self._found)
        else:
            certain = sum(one >= place for one in self._found)
        self._limit = self._wanted - certain
        if self._limit <= 0:
            return None
        return encode.page(
            self._filter,
            types,
            after=place,
            oldest_first=self._oldest_first,
            limit=self._limit,
            scan=_SCAN,
            most_types=LISTED,
        )

    def add(self, answer: Sequence[Any]) -> None:
        """Add the answer of the script."""
        stopped, entries, *all_types = answer
        place, types = self._left.pop()
        if all_types:
            # Perhaps not at once: a type may be new since the last script.
            self._divide(sorted(map(decode.text, all_types[0])), place)
            return
        found = [(int(at), decode.text(id)) for at, id in entries]
        self._found += found
        if stopped:
            at, id = stopped
            self._left.append(((int(at), decode.text(id)), types))
        elif len(found) == self._limit:
            self._left.append((found[-1], types))

    def positions(self) -> list[Position]:
        """Return the entries of the page, and one more if there is one."""
        self._found.sort(reverse=not self._oldest_first)
        return [Position.at_time(decode.moment(str(at)), id) for at, id in self._found[: self._wanted]]
