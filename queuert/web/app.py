"""The ASGI application."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from queuert.client import AsyncClient
from queuert.documents import Document, json_text
from queuert.errors import ConfigurationError
from queuert.web.access import Access, AccessCallback, checked_access
from queuert.web.api import OPERATIONS, Answer, Call, Operation
from queuert.web.audit import report
from queuert.web.bodies import read_body, read_query
from queuert.web.paths import base_path, with_whole_segments
from queuert.web.problems import Problem, answer_error, answer_http_exception, phrase_code, problem_of
from queuert.web.tokens import StreamTokens
from queuert.web.waiting import WaitingRequests

_LONGEST_KEY = 255


class WebApp:
    """An ASGI application that starts, reads, follows and manages chains over HTTP.

    Mount it in an application of yours, or serve it alone (``queuert web``). The client belongs to your application,
    which closes it. The routes and the actions that they need are in ``docs/design/web.md``.

    Args:
        client: the client of all requests. Chains of the job types that are registered with it can be started.
        access: returns what a request may do. Without it every request is refused.
        stream_tokens: checks tokens with which browsers of end users follow one chain; without it there are none.
        max_body: bytes that the body of a request may have.
        max_wait: seconds that a request may wait for a result, whatever it says.
        max_waiting: how many requests may wait at once, for results and for events; more get 503.
        max_waiting_per_principal: how many of them may be of one principal, where ``access`` names it.

    Raises:
        ConfigurationError: ``client`` is not an AsyncClient, or a limit is not above 0.

    Example::

        app = FastAPI()
        app.mount("/queue", WebApp(client, access=bearer_tokens({os.environ["OPERATOR_TOKEN"]: FULL_ACCESS})))
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        access: AccessCallback | None = None,
        stream_tokens: StreamTokens | None = None,
        max_body: int = 1024 * 1024,
        max_wait: float = 60.0,
        max_waiting: int = 1_000,
        max_waiting_per_principal: int = 100,
    ) -> None:
        if not isinstance(client, AsyncClient):
            raise ConfigurationError(f"client must be an AsyncClient, got {type(client).__name__}")
        limits = {
            "max_body": max_body,
            "max_wait": max_wait,
            "max_waiting": max_waiting,
            "max_waiting_per_principal": max_waiting_per_principal,
        }
        for name, value in limits.items():
            if not value > 0:
                raise ConfigurationError(f"{name} must be above 0, got {value}")
        self.client = client
        self.max_wait = max_wait
        self._access = access
        self._stream_tokens = stream_tokens
        self._max_body = max_body
        self.waiting = WaitingRequests(max_waiting, max_waiting_per_principal)
        self._stopped = False
        self._stop_events: set[asyncio.Event] = set()
        handlers: Any = {Problem: answer_error, HTTPException: answer_http_exception}
        routes = [Route(one.path, self._endpoint(one), methods=[one.method]) for one in OPERATIONS]
        self.starlette = Starlette(routes=routes, exception_handlers=handlers)
        self.starlette.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self.starlette(with_whole_segments(scope), receive, send)

    def stop(self) -> None:
        """End the requests that wait, and all streams, at once. New ones do not wait.

        Requests that wait for a result are answered as after their timeout. Clients of streams connect again, to
        another server.

        Call it when the server begins to stop; ``queuert web`` does. A server waits for open requests.
        """
        self._stopped = True
        for event in tuple(self._stop_events):
            event.set()

    async def stopping(self) -> None:
        """Wait until :meth:`stop` is called."""
        event = asyncio.Event()
        if self._stopped:
            return
        self._stop_events.add(event)
        try:
            await event.wait()
        finally:
            self._stop_events.discard(event)

    @property
    def open_waits(self) -> int:
        """How many requests wait now."""
        return len(self.waiting)

    def _endpoint(self, operation: Operation) -> Any:
        async def endpoint(request: Request) -> Response:
            given = [*request.path_params.items(), *request.query_params.multi_items()]
            try:
                call = await self._call(operation, request)
                answer = _response(await operation.handler(call))
            except HTTPException as error:
                failed = error.status_code, phrase_code(error.status_code)
                report(self.client, request, "http", operation.action, operation.shown_path, given, failed)
                raise
            except Exception as error:
                problem = problem_of(error)
                failed = problem.body.status, problem.body.type.rpartition(":")[2]
                report(self.client, request, "http", operation.action, operation.shown_path, given, failed)
                if problem is error:
                    raise
                raise problem from error
            report(self.client, request, "http", operation.action, operation.shown_path, given)
            return answer

        return endpoint

    async def _call(self, operation: Operation, request: Request) -> Call:
        id, token = request.path_params.get("id", ""), request.query_params.get("token")

        async def authorize() -> Access:
            if operation.takes_token and token is not None and self._stream_tokens is not None:
                return self._stream_tokens.access(token, id)
            return await checked_access(self._access, request, operation.action)

        access = await authorize()
        query = read_query(request.query_params, operation.query)
        body = None if operation.body is None else await read_body(request, operation.body, self._max_body)

        async def disconnected() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass

        return Call(
            app=self,
            access=access,
            base=base_path(request),
            id=id,
            query=query,
            body=body,
            idempotency_key=_idempotency_key(request),
            after=request.headers.get("last-event-id") or getattr(query, "after", None),
            authorize=authorize,
            disconnected=disconnected,
        )


def _response(answer: Response | Answer | Document | dict[str, Any]) -> Response:
    if isinstance(answer, Response):
        return answer
    if not isinstance(answer, Answer):
        answer = Answer(200, answer, {})
    content = answer.content
    text = json_text(content if isinstance(content, dict) else content.as_dict())
    headers = {**answer.headers, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return Response(text, answer.status, headers, "application/json")


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= _LONGEST_KEY:
        raise Problem(400, "invalid-idempotency-key", f"Idempotency-Key must have 1 to {_LONGEST_KEY} characters")
    return key
