"""A request for a page, or for a change, that is allowed; and what requests share."""

from __future__ import annotations

import asyncio
import copy
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlencode

from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from queuert.client import AsyncClient
from queuert.state.paging import Page
from queuert.web.access import Access, Action
from queuert.web.dashboard import formats
from queuert.web.dashboard.activity import KeptActivity
from queuert.web.paths import base_path
from queuert.web.problems import Problem

if TYPE_CHECKING:
    from queuert.web.dashboard.app import DashboardApp

T = TypeVar("T")

_LOCAL = re.compile(r"/(?![/\\])[^\\\x00-\x20\x7f]*")
"""A path of one site. Browsers leave out tabs and newlines, and take a backslash for a slash: both may hide a host."""

_MAX_KEPT = 200
"""The most reads that are kept for others: of those that are not too old for anybody."""


class Part(StrEnum):
    """A part of a page whose reading has a time. If it is not read in time, nothing of it is known."""

    COUNTS = "the counts of jobs"
    WORKERS = "workers"
    RUNNING = "running jobs"
    ACTIVITY = "what workers did"
    SCHEDULES = "schedules"
    WEBHOOKS = "webhooks"
    FAILURES = "failed chains"
    EVENTS = "events"
    EXPLANATION = "why it is open"
    BLOCKERS = "what jobs waited for"
    CASCADE = "what failed with it"
    CHECKS = "the checks"
    EVENT_LOG = "the event log"


class SharedReads:
    """Reads of a database that many pages ask for: one at a time, each kept for some seconds for everybody."""

    def __init__(self) -> None:
        self._kept: dict[Any, tuple[float, float, Any]] = {}
        """When each was read, for how many seconds it is shown, and what was read."""
        self._reading = asyncio.Lock()

    async def read(self, key: Any, seconds: float, read: Callable[[], Awaitable[T]]) -> T:
        """Return what ``read`` returned at most so many seconds ago, or now."""
        found = self._fresh(key, seconds)
        if found is None:
            async with self._reading:
                # Somebody else may have read it meanwhile.
                found = self._fresh(key, seconds)
                if found is None:
                    found = (await read(),)
                    self._keep(key, seconds, found[0])
        value: T = found[0]
        return value

    def forget(self) -> None:
        """Read all anew: something was changed."""
        self._kept.clear()

    def _fresh(self, key: Any, seconds: float) -> tuple[Any] | None:
        if key in self._kept:
            read_at, _, value = self._kept[key]
            if time.monotonic() - read_at <= seconds:
                return (value,)
        return None

    def _keep(self, key: Any, seconds: float, value: Any) -> None:
        now = time.monotonic()
        self._kept.pop(key, None)
        for old in [one for one, (read_at, shown_for, _) in self._kept.items() if now - read_at > shown_for]:
            del self._kept[old]
        while len(self._kept) >= _MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = now, seconds, value


@dataclass(frozen=True, slots=True)
class Database:
    """One of the databases that a dashboard shows."""

    name: str
    client: AsyncClient
    shared: SharedReads = field(default_factory=SharedReads)
    activity: KeptActivity = field(default_factory=KeptActivity)


@dataclass(slots=True)
class Refusal:
    """Why a form was refused: a page says so beside the field, or else at its beginning."""

    text: str = ""
    field: str = ""
    said: bool = False

    def of(self, field: str) -> str:
        """Return the reason if it is of this field; the page then says it there, and nowhere else."""
        if not self.text or field != self.field:
            return ""
        self.said = True
        return self.text


@dataclass(frozen=True, slots=True)
class Visit:
    """A request for a page, or for a change, that is allowed."""

    app: DashboardApp
    database: Database
    request: Request
    access: Access
    base: str
    """The path of the pages of the database, which links begin with."""
    form: ImmutableMultiDict[str, str]
    zone: tzinfo
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    began: float = field(default_factory=time.monotonic)
    missing: set[Part] = field(default_factory=set)
    """The parts of the page that took too long. Templates have it, too: what they show of such a part is a dash."""
    refused: str = ""
    """Why the form or the filter was refused, if the page shows it once more."""
    refused_at: str = ""
    """The field whose value was refused, if it is one."""
    filter_refused: bool = False
    """Whether the filter of the list was refused: nothing is listed then, rather than what nobody meant."""

    @property
    def client(self) -> AsyncClient:
        """The client of the database."""
        return self.database.client

    @property
    def payloads(self) -> bool:
        """Whether payloads and errors are shown."""
        return self.access.allows(Action.READ_PAYLOADS)

    @property
    def principal(self) -> str:
        """Who asks, for what keeps it."""
        return self.access.principal or "dashboard"

    def query(self, name: str) -> str:
        """A parameter of the query; empty if it is absent."""
        return self.request.query_params.get(name, "").strip()

    def given(self, *names: str) -> dict[str, str]:
        """Those of the parameters that are there, of the form or else of the query."""
        values = {name: self.form.get(name, self.query(name)).strip() for name in names}
        return {name: value for name, value in values.items() if value}

    def wanted(self, name: str) -> str:
        """A parameter of the form, or else of the query, that must be there.

        Raises:
            Problem: 400, it is absent.
        """
        value = self.form.get(name) or self.request.query_params.get(name, "")
        if not value:
            raise Problem(400, "missing-parameter", f"the parameter {name!r} must be there")
        return value

    def chosen(self, name: str) -> list[str]:
        """All values of a parameter of the form, or else of the query, each once."""
        return list(dict.fromkeys(self.form.getlist(name) or self.request.query_params.getlist(name)))

    def check(self, action: Action) -> None:
        """Refuse an action that the access lacks, where one route has several.

        Raises:
            Problem: 403, the access lacks it.
        """
        if not self.access.allows(action):
            raise Problem(403, "not-allowed", f"this request needs the action {action.value!r}, which its access lacks")

    async def part(self, part: Part, reading: Awaitable[T]) -> T | None:
        """Return what a part of the page reads; None, which is no fact, if that takes too long: the page says so.

        If several parts are slow, they have half as long again together, so that the page is not lost with them.
        """
        left = self.began + 1.5 * self.app.timeout - time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, min(left, self.app.timeout))):
                return await reading
        except TimeoutError:
            self.missing.add(part)
            return None

    async def shared(self, key: Any, seconds: float, read: Callable[[], Awaitable[T]]) -> T:
        """Return what was read at most so many seconds ago, by whomever."""
        return await self.database.shared.read(key, seconds, read)

    def shown(self, job_type: str, payload: Any) -> str | None:
        """Return a payload as it is shown; None if it must not be."""
        return formats.payload(self.redacted(job_type, payload)) if self.payloads else None

    def redacted(self, job_type: str, payload: Any) -> Any:
        """Return what may be shown of a payload."""
        redact = self.app.redact
        # Of a copy: it may change the payload in place.
        return payload if redact is None else redact(job_type, copy.deepcopy(payload))

    async def listed(self, reading: Callable[[], Awaitable[Page[T]]]) -> Page[T]:
        """Return a page of a list; nothing if the filter was refused."""
        return Page((), None) if self.filter_refused else await reading()

    def render(self, template: str, **context: Any) -> Response:
        """Return a page."""
        refusal = Refusal(self.refused, self.refused_at)
        return self.app.render(
            self.request, template, self.access, database=self.database, zone=self.zone, now=self.now,
            missing=self.missing, refusal=refusal, filter_refused=self.filter_refused, typed=self.form, **context,
        )  # fmt: skip

    def go(self, path: str, **query: str) -> Response:
        """Return the redirection after a change."""
        if self.request.method == "POST":
            self.database.shared.forget()
        parameters = f"?{urlencode(query)}" if query else ""
        return RedirectResponse(f"{self.base}{path}{parameters}", 303, self.app.headers)

    def go_back(self, path: str, notice: str) -> Response:
        """Return the redirection after a change to the list that it came from, with the filter that it had."""
        place, _, query = self.came_from(path).partition("?")
        self.database.shared.forget()
        parameters = urlencode([*parse_qsl(query), ("notice", notice)])
        return RedirectResponse(f"{base_path(self.request)}{place}?{parameters}", 303, self.app.headers)

    def came_from(self, path: str) -> str:
        """The address below the application of the list that this page came from; by default the whole list."""
        given = self.given("next").get("next")
        return local_place(given) if given else self.base.removeprefix(base_path(self.request)) + path


def local_place(place: str | None) -> str:
    """Return a path of this application, with its query; the first page for anything else."""
    if place is None or not _LOCAL.fullmatch(place):
        return "/"
    # Browsers go up for these, also where they are escaped: out of the application.
    segments = unquote(re.split(r"[?#]", place, maxsplit=1)[0]).split("/")
    return "/" if {".", ".."} & set(segments) else place
