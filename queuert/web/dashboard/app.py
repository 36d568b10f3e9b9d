"""The ASGI application of the dashboard."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, tzinfo
from importlib.resources import files
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlencode
from zoneinfo import ZoneInfo

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.datastructures import ImmutableMultiDict
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from queuert.client import AsyncClient
from queuert.errors import ConfigurationError
from queuert.state.adapter import Capability
from queuert.web.access import (
    COOKIE,
    Access,
    AccessCallback,
    Action,
    BearerTokens,
    checked_access,
    refuse_other_sites,
)
from queuert.web.audit import report
from queuert.web.dashboard import formats
from queuert.web.dashboard.live import LiveStreams
from queuert.web.dashboard.notices import NOTICES
from queuert.web.dashboard.pages.shared import EXACT, MOST_ROWS, NOTHING_SELECTED
from queuert.web.dashboard.routes import NAVIGATION, PAGES, Page
from queuert.web.dashboard.visit import Database, Part, Refusal, Visit, local_place
from queuert.web.paths import base_path, with_whole_segments
from queuert.web.problems import Problem, phrase, phrase_code, problem_of

_log = logging.getLogger("queuert.web")

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    # Not no-referrer: browsers then send "Origin: null" with forms, and over plain HTTP tell their site by it alone.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_MAX_FORM = 65_536
"""The most bytes of a form."""

_PACKAGE = "queuert.web.dashboard"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
_NAME = re.compile(r"[\w.-]{1,64}", re.ASCII)
_DATABASE = "queuert.dashboard.database"
"""The key of the scope for the name of the database."""

_THEMES = ("auto", "light", "dark")
_THEME, _ZONE = "queuert_theme", "queuert_zone"
"""The cookies of the preferences."""

_CHANGES = frozenset(Action) - {Action.READ, Action.READ_PAYLOADS, Action.START}
"""The actions with which the dashboard offers a change."""

_NO_FORM: ImmutableMultiDict[str, str] = ImmutableMultiDict()

_QUESTIONS = {page.path: page for page in PAGES if page.method == "GET"}
"""The pages with the forms of changes, which are at the paths that the forms are sent to."""

_SELECTION = "/chains/selected"
"""The page of what is selected in the list of chains."""

_OF_ONE = {"/types": ("/type", "type", "name"), "/webhooks": ("/webhook", "id", "id")}
"""The page of one, where forms below a list lead back to, and how forms and addresses call what names it."""

_IN_ADDRESSES = ("id", "name", "type", "action", "status", "attribute", "since", "before", "error", "next")
"""The fields of forms that addresses of pages have as well; the others are what somebody has typed."""

_A_YEAR = 365 * 86_400

_TONES = (("danger", ("prod", "live")), ("warn", ("stag", "pre", "uat")))
"""How the name of an environment is painted, by how it begins."""

Redact: TypeAlias = Callable[[str, Any], Any]
"""Takes the name of a job type and a payload, decoded; returns what may be shown of it."""


class DashboardApp:
    """An ASGI application with the pages of an operator: chains, jobs, failures, job types, workers and schedules.

    Mount it in an application of yours, or let ``queuert web`` serve it. The clients belong to your application, which
    closes them. It is closed until ``access=`` says who may do what; pages show payloads and errors only with the
    action ``read_payloads``. See ``docs/operate/dashboard.md``.

    Args:
        client: the client of all requests, or several by the names of their databases, such as
            ``{"shop": client, "reports": other}``. Payloads of job types that are registered with a client are shown
            decoded.
        access: takes a request, returns what it may do: the same function as for :class:`~queuert.web.WebApp`. With
            :func:`~queuert.web.bearer_tokens` browsers log in with a token.
        environment: a name such as ``production``, shown on each page.
        redact: takes the name of a job type and a payload, and returns what may be shown of it.
        trace_url: where a trace is shown, with ``{trace_id}`` in it: ``https://tempo.example/trace/{trace_id}``.
        timeout: seconds that a part of a page may take; above 0.

    Raises:
        ConfigurationError: there is no AsyncClient, the name of a database has other characters than letters, digits,
            ``_``, ``.`` and ``-``, ``timeout`` is not above 0, or ``trace_url`` has no ``{trace_id}``.

    Example::

        app = FastAPI()
        app.mount("/queue", DashboardApp(client, access=bearer_tokens({os.environ["OPERATOR_TOKEN"]: FULL_ACCESS})))
    """

    headers = _HEADERS

    def __init__(
        self,
        client: AsyncClient | Mapping[str, AsyncClient],
        *,
        access: AccessCallback | None = None,
        environment: str = "",
        redact: Redact | None = None,
        trace_url: str | None = None,
        timeout: float = 5.0,
    ) -> None:
        self.databases = _databases(client)
        if not timeout > 0:
            raise ConfigurationError(f"timeout must be above 0 seconds, got {timeout!r}")
        if trace_url is not None and "{trace_id}" not in trace_url:
            raise ConfigurationError(f"trace_url must have {{trace_id}} in it, got {trace_url!r}")
        self.access = access
        self.environment = environment
        self.redact = redact
        self.trace_url = trace_url
        self.timeout = timeout
        self._tone = next((tone for tone, begins in _TONES if environment.lower().startswith(begins)), "other")
        self._templates = _templates()
        self._static = _static_files()
        self.version = hashlib.sha256(b"".join(self._static.values())).hexdigest()[:12]
        self._live = LiveStreams()
        routes = [Route(page.path, self._endpoint(page), methods=[page.method]) for page in PAGES]
        routes += [
            Route("/live", self._stream, methods=["GET"]),
            Route("/login", self._show_login, methods=["GET"]),
            Route("/login", self._log_in, methods=["POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
            Route("/preferences", self._set_preferences, methods=["POST"]),
            Route("/static/{name:path}", self._serve_static, methods=["GET"]),
        ]
        self._starlette = Starlette(routes=routes, exception_handlers={HTTPException: self._not_routed})
        self._starlette.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self._starlette(self._with_database(with_whole_segments(scope)), receive, send)

    def stop(self) -> None:
        """End all streams. Call it when the server begins to stop: it waits for open requests."""
        self._live.stop()

    # --- pages --------------------------------------------------------------------------------------------------------

    def _with_database(self, scope: Scope) -> Scope:
        """Cut the name of the database from the path, if the path has one."""
        if scope["type"] != "http" or len(self.databases) == 1:
            return scope
        root = scope.get("root_path", "")
        own = scope["path"][len(root) :] if scope["path"].startswith(f"{root}/") else scope["path"]
        first, _, rest = own.removeprefix("/").partition("/")
        name = first.removeprefix("@")
        if not first.startswith("@") or name not in self.databases:
            return scope
        return {**scope, "path": f"{root}/{first}/{rest}", "root_path": f"{root}/{first}", _DATABASE: name}

    def _database(self, request: Request) -> Database:
        """The database that the path names, or the first one."""
        name = request.scope.get(_DATABASE)
        return self.databases[name] if name else next(iter(self.databases.values()))

    def _base(self, request: Request, database: Database) -> str:
        return base_path(request) + (f"/@{database.name}" if len(self.databases) > 1 else "")

    def render(
        self,
        request: Request,
        template: str,
        access: Access,
        status: int = 200,
        *,
        database: Database | None = None,
        zone: tzinfo | None = None,
        now: datetime | None = None,
        missing: Collection[Part] = (),
        refusal: Refusal | None = None,
        filter_refused: bool = False,
        typed: ImmutableMultiDict[str, str] = _NO_FORM,
        **context: Any,
    ) -> Response:
        """Return a page."""
        database = database or self._database(request)
        base, root = self._base(request, database), base_path(request)
        path = _own_path(request)
        text = self._templates.get_template(template).render(
            base=base,
            root=root,
            version=self.version,
            environment=self.environment,
            tone=self._tone,
            databases=list(self.databases) if len(self.databases) > 1 else [],
            database=database.name,
            access=access,
            can={action.value: access.allows(action) for action in Action},
            has={capability.value: capability in database.client.state.capabilities for capability in Capability},
            reads_only=access.allows(Action.READ) and not any(map(access.allows, _CHANGES)),
            logged_in=COOKIE in request.cookies and isinstance(self.access, BearerTokens),
            now=now or datetime.now(UTC),
            zone=zone or _zone(request),
            theme=_theme(request),
            path=path,
            here=_place(request, typed),
            navigation=NAVIGATION,
            notice=NOTICES.get(request.query_params.get("notice", "")),
            noticed_due=_noticed_due(request),
            missing=missing,
            refusal=refusal or Refusal(),
            filter_refused=filter_refused,
            # A request that is refused is refused again, but what is missing may come.
            refused_request=bool(refusal and refusal.text) or (400 <= status < 500 and status != 404),
            typed=typed,
            # Such a page reads itself with GET, which is another page.
            posted=request.method == "POST",
            parts=Part,
            most_rows=MOST_ROWS,
            exact=EXACT,
            timeout=self.timeout,
            trace_url=self.trace_url,
            **context,
        )
        return Response(text, status, _HEADERS, "text/html; charset=utf-8")

    def _endpoint(self, page: Page) -> Any:
        async def endpoint(request: Request) -> Response:
            access, form, visit = Access(), _NO_FORM, None

            def note(*error: Any) -> None:
                given = [*form.multi_items(), *request.query_params.multi_items()]
                client = self._database(request).client
                report(client, request, "dashboard", page.action, page.path, given, error or None)

            try:
                access = await checked_access(self.access, request, page.action, form=True)
                database = self._database(request)
                if len(self.databases) > 1 and not databases_in_path(request):
                    return self._to_first_database(request, page)
                form = await _read_form(request) if page.method == "POST" else _NO_FORM
                visit = Visit(self, database, request, access, self._base(request, database), form, _zone(request))
                if page.method == "POST":
                    answer = await page.handler(visit)
                    note()
                    return answer
                # Parts that may be slow end by themselves, earlier.
                async with asyncio.timeout(2 * self.timeout):
                    return await page.handler(visit)
            except HTTPException as error:
                if error.status_code == 401 and page.method == "GET" and isinstance(self.access, BearerTokens):
                    place = urlencode({"next": _place(request)})
                    return RedirectResponse(f"{base_path(request)}/login?{place}", 303, _HEADERS)
                note(error.status_code, phrase_code(error.status_code))
                return self._error(request, access, error.status_code, str(error.detail), error.headers, form)
            except TimeoutError:
                text = f"the database did not answer within {2 * self.timeout:g} seconds: read the page again"
                return self._error(request, access, 504, text)
            except Exception as error:
                problem = problem_of(error)
                note(problem.body.status, problem.body.type.rpartition(":")[2])
                # What was typed is kept also where the write has failed.
                if visit is not None and (page.method == "POST" or problem.body.status < 500):
                    form_again = await self._once_more(page, visit, problem)
                    if form_again is not None:
                        return form_again
                return self._error(request, access, problem.body.status, problem.body.detail, problem.headers, form)

        return endpoint

    async def _once_more(self, page: Page, visit: Visit, problem: Problem) -> Response | None:
        """Return the page of a form or filter that was refused, with the reason and what was typed, if there is one.

        The page of a selection is the list in which it was made.
        """
        question = _QUESTIONS.get(page.path) if page.method == "POST" or page.shown_again else None
        if page.path == _SELECTION and problem.body.type == NOTHING_SELECTED:
            question, visit = _QUESTIONS["/chains"], self._at_list(visit, "/chains")
        if question is None:
            return None
        parts = problem.body.errors or ()
        field = re.split(r"[.\[]", parts[0].path)[0] if parts else ""
        filter_refused = page.method == "GET" and question is page
        again = replace(visit, refused=problem.body.detail, refused_at=field, filter_refused=filter_refused)
        try:
            async with asyncio.timeout(2 * self.timeout):
                answer = await question.handler(again)
        except Exception:
            # Such as a chain that is not there any more: the page of the error has the reason.
            return None
        answer.status_code = problem.body.status
        answer.headers.update(problem.headers)
        return answer

    def _at_list(self, visit: Visit, path: str) -> Visit:
        """Return the visit of the list that a selection was made in, with its filter."""
        scope = visit.request.scope
        place, _, query = visit.came_from(path).partition("?")
        there = scope["path"].removesuffix(_own_path(visit.request)) + path
        given = query.encode() if place.endswith(path) else b""
        return replace(visit, request=Request({**scope, "path": there, "query_string": given}), form=_NO_FORM)

    def _to_first_database(self, request: Request, page: Page) -> Response:
        """Redirect a request that names no database; a change must name one."""
        if page.method == "POST":
            raise Problem(404, "not-found", "the path must begin with the name of a database, such as /@name/chains")
        query = f"?{request.url.query}" if request.url.query else ""
        base = self._base(request, self._database(request))
        return RedirectResponse(f"{base}{_own_path(request)}{query}", 303, _HEADERS)

    def _error(
        self,
        request: Request,
        access: Access,
        status: int,
        detail: str,
        headers: Mapping[str, str] | None = None,
        form: ImmutableMultiDict[str, str] = _NO_FORM,
    ) -> Response:
        """Return the page of an error, with its own headers, such as those of an ``access`` of the application."""
        answer = self.render(request, "error.html", access, status, title=phrase(status), detail=detail, typed=form)
        answer.headers.update(headers or {})
        return answer

    async def _not_routed(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        detail = "there is no such page"
        if error.status_code == 405:
            detail = f"this address must not be used with {request.method}"
        return self._error(request, Access(), error.status_code, detail, error.headers)

    async def _stream(self, request: Request) -> Response:
        """Say when something has happened, for a page to read itself again."""

        async def authorize() -> Access:
            return await checked_access(self.access, request, Action.READ)

        try:
            access = await authorize()
            chain_id = request.query_params.get("chain") or None
            return await self._live.open(self._database(request).client, chain_id, access.principal, authorize)
        except HTTPException as error:
            headers = {**_HEADERS, **(error.headers or {})}
            return Response(str(error.detail), error.status_code, headers, "text/plain; charset=utf-8")
        except Exception as error:
            problem = problem_of(error)
            headers = {**_HEADERS, **problem.headers}
            return Response(problem.body.detail, problem.body.status, headers, "text/plain; charset=utf-8")

    # --- sessions and preferences -------------------------------------------------------------------------------------

    async def _show_login(self, request: Request) -> Response:
        if not isinstance(self.access, BearerTokens):
            return self._error(request, Access(), 404, "your application decides who has access: log in there")
        return self.render(
            request, "login.html", Access(), next=local_place(request.query_params.get("next")), failed=False
        )

    async def _log_in(self, request: Request) -> Response:
        if not isinstance(self.access, BearerTokens):
            return self._error(request, Access(), 404, "your application decides who has access: log in there")
        try:
            refuse_other_sites(request, form=True)
            form = await _read_form(request)
        except Problem as error:
            return self._error(request, Access(), error.body.status, error.body.detail)
        place = local_place(form.get("next"))
        session = self.access.session(form.get("token", ""))
        if session is None:
            _log.warning("a login to the dashboard failed: the token is wrong")
            return self.render(request, "login.html", Access(), 403, next=place, failed=True)
        base = base_path(request)
        answer = RedirectResponse(base + place, 303, _HEADERS)
        # Sent with no request of another site's page, also not when a link there is followed.
        answer.set_cookie(
            COOKIE, session, path=base or "/", httponly=True, samesite="strict", secure=request.url.scheme == "https"
        )
        return answer

    async def _log_out(self, request: Request) -> Response:
        try:
            refuse_other_sites(request, form=True)
        except Problem as error:
            return self._error(request, Access(), error.body.status, error.body.detail)
        base = base_path(request)
        answer = RedirectResponse(f"{base}/login", 303, _HEADERS)
        answer.delete_cookie(COOKIE, path=base or "/", httponly=True, samesite="strict")
        return answer

    async def _set_preferences(self, request: Request) -> Response:
        """Set the theme and the time zone of this browser."""
        try:
            access = await checked_access(self.access, request, None, form=True)
            form = await _read_form(request)
        except HTTPException as error:
            return self._error(request, Access(), error.status_code, str(error.detail), error.headers)
        except Problem as error:
            return self._error(request, Access(), error.body.status, error.body.detail)
        base = base_path(request)
        answer = RedirectResponse(base + local_place(form.get("next")), 303, _HEADERS)
        theme, zone = form.get("theme"), form.get("zone")
        if theme is not None and theme not in _THEMES:
            text = f"the theme must be one of {', '.join(_THEMES)}, got {theme!r}"
            return self._error(request, access, 400, text)
        if zone is not None and _zone_of(zone) is None:
            return self._error(request, access, 400, f"the time zone must be an IANA name, got {zone[:64]!r}")
        for name, value in ((_THEME, theme), (_ZONE, zone)):
            if value is not None:
                answer.set_cookie(name, value, max_age=_A_YEAR, path=base or "/", httponly=True, samesite="lax")
        return answer

    async def _serve_static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._static:
            return self._error(request, Access(), 404, "there is no such file")
        headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "public, max-age=31536000, immutable"}
        return Response(self._static[name], 200, headers, _TYPES[name[name.rindex(".") :]])


def databases_in_path(request: Request) -> bool:
    """Whether the path of the request names a database."""
    return _DATABASE in request.scope


def _databases(client: AsyncClient | Mapping[str, AsyncClient]) -> dict[str, Database]:
    given = {"": client} if not isinstance(client, Mapping) else dict(client)
    if not given:
        raise ConfigurationError("client must be an AsyncClient, or one or more of them by name, got none")
    for name, one in given.items():
        if not isinstance(one, AsyncClient):
            raise ConfigurationError(f"client must be an AsyncClient, got {type(one).__name__}")
        if isinstance(client, Mapping) and not _NAME.fullmatch(name):
            raise ConfigurationError(f"the name of a database must match {_NAME.pattern}, got {name!r}")
    return {name: Database(name, one) for name, one in given.items()}


def _own_path(request: Request) -> str:
    """The path below the application and the database."""
    root, path = request.scope.get("root_path", ""), request.scope["path"]
    own: str = path[len(root) :] if path.startswith(f"{root}/") else path
    return own or "/"


def _place(request: Request, form: ImmutableMultiDict[str, str] = _NO_FORM) -> str:
    """The path below the application with its query: where a login or a change of the preferences leads back.

    After a form it is the page of the form, or the page above it, with the fields that addresses have.
    """
    database, path = request.scope.get(_DATABASE), _own_path(request)
    # A notice is for one page only.
    given = [(name, value) for name, value in request.query_params.multi_items() if name not in ("notice", "due")]
    if request.method == "POST":
        given += [(name, value) for name, value in form.multi_items() if name in _IN_ADDRESSES]
        while path not in _QUESTIONS:
            path = path.rpartition("/")[0] or "/"
        page, field, parameter = _OF_ONE.get(path, (path, "", ""))
        if field in form:
            path, given = page, [(parameter, form[field])]
    query = f"?{urlencode(given)}" if given else ""
    return f"{f'/@{database}' if database else ''}{path}{query}"


def _noticed_due(request: Request) -> datetime | None:
    """The due time that a notice is of."""
    try:
        due = datetime.fromisoformat(request.query_params.get("due", ""))
        return None if due.tzinfo is None else due.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _theme(request: Request) -> str:
    theme = request.cookies.get(_THEME, "")
    return theme if theme in _THEMES else "auto"


def _zone(request: Request) -> tzinfo:
    return _zone_of(request.cookies.get(_ZONE, "")) or UTC


def _zone_of(name: str) -> tzinfo | None:
    """The time zone of a name that anybody may have sent."""
    if not re.fullmatch(r"[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,2}", name):
        return None
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        return None


async def _read_form(request: Request) -> ImmutableMultiDict[str, str]:
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > _MAX_FORM:
                raise Problem(413, "too-large", f"a form must have at most {_MAX_FORM} bytes")
    except ClientDisconnect:
        raise Problem(400, "disconnected", "the client has gone before its form was read") from None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and kind != "application/x-www-form-urlencoded":
        raise Problem(415, "media-type", f"a form must be application/x-www-form-urlencoded, got {kind or 'nothing'}")
    try:
        return ImmutableMultiDict(parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="strict"))
    except ValueError as error:
        raise Problem(400, "invalid-form", f"the form is not valid: {error}") from None


def _static_files() -> dict[str, bytes]:
    folder = files(_PACKAGE) / "static"
    found = {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}
    vendored = folder / "vendor"
    found |= {f"vendor/{one.name}": one.read_bytes() for one in vendored.iterdir()}
    return {name: content for name, content in sorted(found.items()) if name[name.rfind(".") :] in _TYPES}


def _templates() -> Environment:
    found = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(formats.FILTERS)
    found.filters["as_json"] = json.dumps
    return found
