"""The event log on Redis: a stream, whose entries are written by the scripts of the transitions. Pure functions.

Scripts run one after the other, so the numbers of events are in the order of the writes: once an event is visible, all
before it are. See ``lua/lib/02_event_log.lua`` for what is stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from queuert.event_log import EventFilter, EventLevel, EventLog, EventLogEnd, EventLogMaintenance, JobEvent
from queuert.jobs import JobStatus
from queuert.state.numbered_log import LogCursor, NumberedLog
from queuert.state.paging import Page, PageRequest
from queuert.state.records import job_error, job_progress
from queuert.state.redis import decode
from queuert.state.redis.encode import Arguments, plain

LOOKED_AT = 10_000
"""The largest number of events that are read for one page with a filter."""

READ_BYTES = 4_000_000
"""The bytes of events after which one script reads no more."""

CHUNK = 500
"""The largest number of entries, of up to a hundred events each, that one script drops."""

MAX_EVENTS = 250_000
"""The number of events that a log keeps unless another one is set. Lua has the same number."""

KEPT_DAYS = 14
"""The days that a log keeps unless another number is set. Lua has the same number."""

_ANOTHER = "another server or namespace, or of this one before it was emptied (FLUSHALL)"
_OLDER = "the server lost its last writes, by a crash, a failover or a restore"


def read(filter: EventFilter, page: PageRequest) -> Arguments:
    """Return the arguments of ``read_events``.

    Raises:
        InvalidCursorError: the cursor is not one of this log.
    """
    every = filter == EventFilter()
    params: dict[str, Any] = {"most": page.limit if every else LOOKED_AT, "bytes": READ_BYTES}
    if page.cursor is not None:
        params["number"] = str(LogCursor.decode(page.cursor).seq)
    if not page.oldest_first:
        params["newest_first"] = True
    return plain(params)


def read_end() -> Arguments:
    """Return the arguments of ``read_events`` for the newest entry alone."""
    return plain({"most": 0, "bytes": 0, "newest_first": True})


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of the stream: events that one script wrote."""

    first: int
    at: int
    groups: list[Any]

    @classmethod
    def of(cls, answer: Sequence[bytes]) -> _Entry:
        first, stored = answer
        at, groups = json.loads(decode.text(stored))
        return cls(int(first), at, groups)

    @property
    def last(self) -> int:
        """The number of its last event."""
        return self.first + sum(len(jobs) for *_, jobs in self.groups) // 3 - 1

    def events(self, log: str, filter: EventFilter) -> Iterator[JobEvent]:
        """The events that match, in order."""
        number = self.first
        for *common, jobs in self.groups:
            kind, _, type, *_ = common
            wanted = (filter.types is None or type in filter.types) and (filter.kinds is None or kind in filter.kinds)
            for at in range(0, len(jobs), 3):
                id, chain, due = jobs[at : at + 3]
                if wanted and filter.chain_id in (None, chain or id):
                    yield self._event(number, common, id, chain or id, due, log)
                number += 1

    def _event(self, number: int, common: Sequence[Any], id: str, chain: str, due: str, log: str) -> JobEvent:
        kind, status, type, chain_type, index, attempt, started, worker, error, progress = common
        return JobEvent(
            tx=number,
            seq=number,
            happened_at=decode.moment(str(self.at)),
            kind=kind,
            status=JobStatus(status),
            job_id=id,
            chain_id=chain,
            chain_index=int(index),
            type=type,
            chain_type=chain_type,
            attempt=int(attempt),
            scheduled_at=decode.moment(due),
            started_at=decode.moment(started) if started else None,
            worker=worker or None,
            error=job_error(error or None),
            progress=job_progress(progress or None, int(attempt)),
            cursor=LogCursor(number, log, self.at).encode(),
        )


@dataclass(frozen=True, slots=True)
class ReadLog:
    """What ``read_events`` has read."""

    log: NumberedLog
    entries: list[_Entry]

    @classmethod
    def of(cls, answer: Sequence[Any]) -> ReadLog:
        """Decode the answer of the script."""
        id, first, last = map(decode.text, answer[:3])
        return cls(
            NumberedLog(id, int(first) - 1, int(last), _ANOTHER, _OLDER), [_Entry.of(entry) for entry in answer[3:]]
        )

    def page(self, filter: EventFilter, request: PageRequest) -> Page[JobEvent]:
        """Return the page of events.

        Raises:
            EventsLostError: the log does not go on from the cursor.
        """
        cursor = None if request.cursor is None else LogCursor.decode(request.cursor)
        if cursor is not None:
            here = next((one for one in self.entries if one.first <= cursor.seq <= one.last), None)
            cursor.check(self.log, None if here is None else here.at, follows=request.oldest_first)
        found: list[JobEvent] = []
        for entry in self.entries:
            events = list(entry.events(self.log.id, filter))
            if request.oldest_first:
                found += (event for event in events if cursor is None or event.seq > cursor.seq)
            else:
                found += (event for event in reversed(events) if cursor is None or event.seq < cursor.seq)
        if len(found) > request.limit:
            return Page(tuple(found[: request.limit]), found[request.limit - 1].cursor)
        return Page(tuple(found), self._next(request))

    def _next(self, request: PageRequest) -> str | None:
        """The cursor after what was read; None if that is the end of the log."""
        if not self.entries:
            return None
        end = self.entries[-1]
        number = end.last if request.oldest_first else end.first
        more = number < self.log.last if request.oldest_first else number > self.log.dropped + 1
        return LogCursor(number, self.log.id, end.at).encode() if more else None

    def end(self) -> EventLogEnd:
        """Return the end of the log."""
        at = self.entries[0].at if self.entries else None
        last = self.log.last
        return EventLogEnd(LogCursor(last, self.log.id, at).encode(), settled=last + 1, written=last + 1)


def settings(answer: Sequence[bytes]) -> EventLog:
    """Decode the answer of ``event_log_settings``."""
    flat = list(map(decode.text, answer))
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    levels = {
        name.removeprefix("level:"): EventLevel(level)
        for name, level in sorted(fields.items())
        if name.startswith("level:")
    }
    return EventLog(
        level=EventLevel(fields.get("level", EventLevel.ALL)),
        levels=levels,
        keep_days=int(fields.get("days", KEPT_DAYS)),
        max_events=int(fields.get("most", MAX_EVENTS)),
        partitions=(),
        lag=0.0,
    )


def maintained(answer: Sequence[int]) -> EventLogMaintenance:
    """Decode the answer of ``maintain_event_log``."""
    deleted, more = answer
    return EventLogMaintenance(deleted=deleted, more=bool(more))
