"""An application for callbacks, and nothing else, so that it can be public while the rest is not."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from queuert.callbacks import Callback, CallbackUrls
from queuert.client import AsyncChain, AsyncClient
from queuert.errors import (
    ChainAlreadyClosedError,
    ChainNotFoundError,
    ConfigurationError,
    JobTypeMismatchError,
    PayloadError,
)
from queuert.job_types import JobType
from queuert.jobs import ChainStatus
from queuert.state.records import json_value
from queuert.texts import safe_text
from queuert.web.bodies import CallbackBody, read_body, read_event_payload, read_payload
from queuert.web.problems import Problem, answer_error, answer_http_exception, problem_of

_REASON = 500
_ANY: TypeAdapter[Any] = TypeAdapter(Any)


class CallbackApp:
    """An ASGI application that answers the addresses that ``client.callback_url`` makes.

    A GET says what an address is for, and changes nothing. A POST uses it, once, unless the chain is retried or started
    again under its id:

    - ``{"output": ...}`` completes the chain; of an address for an event, it is the payload of the event. One that is
      not valid for the job type, or for the type that ``CallbackUrls(events=)`` says, is refused with 422: the address
      can be used again.
    - ``{"error": "..."}`` closes the chain as cancelled, with this reason. An address for an event takes none.

    What is expired or forged is refused with 403. What was used already, or is of a chain that is closed or has gone on
    to another job, is refused with 409, and changes nothing. The code says whether what is sent counts: with
    ``callback-used`` it does, since the event of this address was sent, or the chain was closed with this very output
    or error; with ``chain-already-closed`` it does not. Answers and errors are JSON, as those of ``WebApp``.

    The address is all that a caller needs: there is no ``access``. It is a path below the one at which the application
    is mounted, which is the ``base`` of the client's ``CallbackUrls``: the two must fit, also behind a proxy. The token
    is in the path, so logs of requests have it until it expires.

    Args:
        client: an AsyncClient with ``callbacks=``: the same secrets as the clients that make the addresses. It must
            know the job types of the chains, to check outputs. It belongs to your application, which closes it. It may
            be another one than that of ``WebApp``.
        max_body: bytes that the body of a request may have; larger ones are refused with 413.

    Raises:
        ConfigurationError: ``client`` is no AsyncClient, or has no ``callbacks``, or ``max_body`` is not above 0.

    Example::

        app.mount("/callbacks", CallbackApp(client))
    """

    def __init__(self, client: AsyncClient, *, max_body: int = 1024 * 1024) -> None:
        if not isinstance(client, AsyncClient):
            raise ConfigurationError(f"client must be an AsyncClient, got {type(client).__name__}")
        if client.callbacks is None:
            raise ConfigurationError("the client must have callbacks: AsyncClient(..., callbacks=CallbackUrls(...))")
        if not max_body > 0:
            raise ConfigurationError(f"max_body must be above 0, got {max_body}")
        self.client = client
        self._urls: CallbackUrls = client.callbacks
        self._payloads = {name: TypeAdapter(annotation) for name, annotation in (self._urls.events or {}).items()}
        self._max_body = max_body
        handlers: Any = {Problem: answer_error, HTTPException: answer_http_exception}
        routes = [
            Route("/{token}", self._endpoint(self._show), methods=["GET"]),
            Route("/{token}", self._endpoint(self._use), methods=["POST"]),
        ]
        self.starlette = Starlette(routes=routes, exception_handlers=handlers)
        self.starlette.router.redirect_slashes = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        await self.starlette(scope, receive, send)

    def _endpoint(self, handler: Any) -> Any:
        async def endpoint(request: Request) -> Response:
            try:
                callback = self._urls.opened(request.path_params["token"])
                content = await handler(callback, request)
            except (HTTPException, Problem):
                raise
            except Exception as error:
                raise problem_of(error) from error
            headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
            return Response(to_json(content), 200, headers, "application/json")

        return endpoint

    async def _show(self, callback: Callback, request: Request) -> dict[str, Any]:
        """Say what the address is for."""
        chain = await self.client.get_chain(callback.chain_id)
        return {
            "chain": chain.id,
            "type": chain.type,
            "status": chain.status.value,
            "event": callback.event,
            "expires_at": datetime.fromtimestamp(callback.expires_at, UTC),
        }

    async def _use(self, callback: Callback, request: Request) -> dict[str, Any]:
        """Complete or cancel the chain, or send the event."""
        body = await read_body(request, CallbackBody, self._max_body)
        if ("output" in body.model_fields_set) == (body.error is not None):
            raise Problem(422, "invalid-body", "the body must have either output or error")
        if callback.event is not None and body.error is not None:
            detail = "the body must have an output: the address is for an event, whose payload may say what is wrong"
            raise Problem(422, "invalid-body", detail)
        chain = await self.client.get_chain(callback.chain_id)
        page = await self.client.list_chain_jobs(chain.id, limit=1, oldest_first=False)
        if not page.items:
            raise ChainNotFoundError(chain.id)
        last = page.items[0].type
        if chain.status is ChainStatus.OPEN and callback.expecting not in (None, last):
            raise JobTypeMismatchError(chain.id, callback.expecting or "", last, of_last_job=True)
        if callback.event is not None:
            await self._send(chain.id, callback, callback.event, body.output)
        elif body.error is not None:
            await self._cancel(chain, f"callback: {safe_text(body.error, _REASON)}")
        else:
            await self._complete(chain, self.client.job_types[last], body.output)
        return await self._show(callback, request)

    async def _send(self, chain_id: str, callback: Callback, event: str, output: object) -> None:
        payload = read_event_payload(self._payloads.get(event, _ANY), output)
        if not await self.client.send_event(chain_id, event, payload, id=f"callback-{callback.id}"):
            raise _used("the event of the address was sent already")

    async def _cancel(self, chain: AsyncChain[Any], reason: str) -> None:
        if await self.client.cancel_chain(chain.id, reason=reason):
            return
        await chain.refresh()
        if chain.status is ChainStatus.CANCELLED and chain.error is not None and chain.error.message == reason:
            raise _used("the chain is cancelled with this reason already")
        raise ChainAlreadyClosedError(chain.id, chain.status)

    async def _complete(self, chain: AsyncChain[Any], job_type: JobType[Any, Any], output: object) -> None:
        # A closed chain is refused whatever the output is.
        if chain.status is ChainStatus.OPEN:
            value = read_payload(job_type, "output", output)
            try:
                await self.client.complete_chain(chain.id, value, expecting=job_type)
            except ChainAlreadyClosedError:
                await chain.refresh()
            else:
                return
        if chain.status is ChainStatus.COMPLETED and await self._has(chain, output):
            raise _used("the chain is completed with this output already")
        raise ChainAlreadyClosedError(chain.id, chain.status)

    async def _has(self, chain: AsyncChain[Any], output: object) -> bool:
        """Whether the output that is stored with a completed chain is this one."""
        page = await self.client.list_chain_jobs(chain.id, limit=1, oldest_first=False)
        if not page.items:
            raise ChainNotFoundError(chain.id)
        job_type = self.client.job_types[page.items[0].type]
        try:
            text = job_type.encode_output(read_payload(job_type, "output", output))
        except (Problem, PayloadError):
            return False
        return bool(job_type.shown("output", json_value(text)) == page.items[0].output)


def _used(what: str) -> Problem:
    return Problem(409, "callback-used", f"{what}: nothing was changed")
