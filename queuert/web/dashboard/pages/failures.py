"""Failed chains by their error, and the retry of those with one error."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.responses import Response

from queuert.client import AsyncChain
from queuert.ids import new_id
from queuert.job_types import BULK_OPERATION_TYPE
from queuert.jobs import ChainStatus
from queuert.web.dashboard.charts import SPARK_HEIGHT, SPARK_WIDTH, Bar, Spark
from queuert.web.dashboard.pages.shared import COUNTED, LOOKED_AT, known_types, past_time
from queuert.web.dashboard.visit import Part, Visit

AGE = 5.0
"""Seconds for which the groups are shown to everybody who asks."""

_FILTERS = ("type", "since", "before")
_PARTS = 40

SINCE = (
    ("", "any time"),
    ("1h", "last hour"),
    ("12h", "last 12 hours"),
    ("24h", "last 24 hours"),
    ("7d", "last 7 days"),
)


@dataclass(slots=True)
class FailureGroup:
    """Failed chains of one type with the same error."""

    type: str
    error: str
    """The summary of the error; empty if errors are not shown."""
    chains: list[AsyncChain[Any]]

    @property
    def newest(self) -> AsyncChain[Any]:
        """The chain that was started last."""
        return self.chains[0]

    @property
    def first_at(self) -> datetime | None:
        """When the first of them failed."""
        return min((one.closed_at for one in self.chains if one.closed_at), default=None)

    @property
    def last_at(self) -> datetime | None:
        """When the last of them failed."""
        return max((one.closed_at for one in self.chains if one.closed_at), default=None)


async def failures(visit: Visit) -> Response:
    """Failed chains by type and error."""
    given = visit.given(*_FILTERS)
    groups, more = ([], False) if visit.filter_refused else await _groups(visit)
    times = [one.closed_at for group in groups for one in group.chains if one.closed_at]
    return visit.render(
        "failures.html",
        groups=groups,
        given=given,
        since=SINCE,
        types=known_types(visit, *(group.type for group in groups)),
        more=more,
        looked_at=sum(len(group.chains) for group in groups),
        sparks=[_spark(group, min(times), max(times)) for group in groups] if times else [],
        begin=min(times, default=None),
        end=max(times, default=None),
    )


async def _groups(visit: Visit) -> tuple[list[FailureGroup], bool]:
    """Group the newest failed chains; also whether there are others."""
    given = visit.given(*_FILTERS)
    types = [given["type"]] if "type" in given else None
    since, before = (past_time(visit, name, given[name]) if name in given else None for name in ("since", "before"))

    async def read() -> tuple[Sequence[AsyncChain[Any]], bool]:
        page = await visit.client.list_chains(
            job_types=types, statuses=[ChainStatus.FAILED], since=since, before=before, limit=LOOKED_AT
        )
        return page.items, page.next_cursor is not None

    key = ("failures", tuple(sorted(given.items())))
    chains, more = await visit.part(Part.FAILURES, visit.shared(key, AGE, read)) or ((), False)
    found: dict[tuple[str, str], list[AsyncChain[Any]]] = defaultdict(list)
    for one in chains:
        # Operations are retried one by one: they are on a page of their own.
        if one.type != BULK_OPERATION_TYPE:
            found[one.type, one.error.summary if visit.payloads and one.error else ""].append(one)
    groups = [FailureGroup(type, error, members) for (type, error), members in found.items()]
    return sorted(groups, key=lambda group: (-len(group.chains), group.type, group.error)), more


def _spark(group: FailureGroup, begin: datetime, end: datetime) -> Spark:
    """When the chains of the group failed, in the time of all groups."""
    seconds = max(1.0, (end - begin).total_seconds())
    counts = [0] * _PARTS
    for one in group.chains:
        if one.closed_at is not None:
            counts[min(_PARTS - 1, int((one.closed_at - begin).total_seconds() / seconds * _PARTS))] += 1
    width, highest = SPARK_WIDTH / _PARTS, max(counts)
    bars = []
    for index, count in enumerate(counts):
        if count:
            height = max(2.0, count / highest * SPARK_HEIGHT)
            bars.append(Bar(round(index * width, 2), round(SPARK_HEIGHT - height, 2), width - 0.5, height, "failed"))
    return Spark(bars, f"{len(group.chains):,} failed")


def _retried(visit: Visit) -> dict[str, Any]:
    """What the bulk operation is asked for."""
    filter: dict[str, Any] = {"job_types": [visit.wanted("type")]}
    given = visit.given("error", "since", "before")
    if given.get("error"):
        filter["error"] = given["error"]
    for name in ("since", "before"):
        if name in given:
            filter[name] = past_time(visit, name, given[name])
    return filter


async def confirm_retry(visit: Visit) -> Response:
    """Ask before the failures of a group are retried, and say how many they are."""
    filter = _retried(visit)
    preview = await visit.client.preview_bulk_operation("retry", counted_up_to=COUNTED, **filter)
    # A time such as 8h ago goes on; what is counted now is what is changed.
    given = {name: value.isoformat() if isinstance(value, datetime) else value for name, value in filter.items()}
    given["type"] = given.pop("job_types")[0]
    return visit.render(
        "confirm_group.html",
        preview=preview,
        given=given,
        back=visit.given("since", "before"),
        operation_id=visit.form.get("operation_id") or new_id(),
    )


async def retry(visit: Visit) -> Response:
    """Retry the failures of a group, by a bulk operation."""
    filter = _retried(visit)
    id = visit.form.get("operation_id") or None
    await visit.client.start_bulk_operation("retry", requested_by=visit.principal, id=id, **filter)
    return visit.go("/operations", notice="operation-started")
