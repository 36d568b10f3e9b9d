"""The routes of the interface, and what answers them."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from starlette.responses import Response

from queuert.client import AsyncChain, AsyncClient
from queuert.documents import (
    ChainStateDocument,
    Document,
    ExplanationDocument,
    JobDocument,
    JobTypeDocument,
    NewWebhookDocument,
    PhaseDocument,
    WebhookDocument,
)
from queuert.errors import ChainNotFoundError, JobTypeMismatchError, StateUnavailableError, WaitTimeoutError
from queuert.jobs import ChainState, ChainStatus
from queuert.run_at import at
from queuert.web import streams, webhooks
from queuert.web.access import Access, Action
from queuert.web.answers import (
    ChainsPage,
    ChangedChain,
    Deleted,
    Index,
    JobsPage,
    JobTypes,
    LinkedChain,
    OpenChain,
    Pinged,
    Replayed,
    Result,
    WebhookAttemptsPage,
    Webhooks,
    schema_of,
)
from queuert.web.bodies import (
    CancelBody,
    ChainEventsQuery,
    ChainsQuery,
    CompleteBody,
    DisableBody,
    EventsQuery,
    NoBody,
    NoQuery,
    PageQuery,
    ReplayBody,
    ReprioritizeBody,
    RescheduleBody,
    ResultQuery,
    RetryBody,
    RotateBody,
    StartBody,
    WebhookBody,
    read_payload,
)
from queuert.web.problems import Problem

if TYPE_CHECKING:
    from queuert.web.app import WebApp

FINGERPRINT = "http-request"
"""The attribute of chains that were started with an idempotency key: a digest of the request."""

_SHORT_READ = 5.0
"""Seconds for which one read of a chain's state is repeated while the store is not available."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request that was allowed and read."""

    app: WebApp
    access: Access
    base: str
    """The path of the application, which links begin with."""
    id: str
    """The id in the path."""
    query: Any
    body: Any
    idempotency_key: str | None
    after: str | None
    """The event after which a stream begins."""
    authorize: Callable[[], Awaitable[Access]]
    """Checks again what the request may do."""
    disconnected: Callable[[], Awaitable[None]]
    """Ends when the client has gone."""

    @property
    def client(self) -> AsyncClient:
        """The client of the application."""
        return self.app.client

    @property
    def payloads(self) -> bool:
        """Whether payloads and errors are shown."""
        return self.access.allows(Action.READ_PAYLOADS)

    async def state(self) -> ChainState:
        """Read where the chain is.

        Raises:
            ChainNotFoundError: it does not exist.
            StateUnavailableError: the store has not answered.
        """
        async with aclosing(self.client.watch_chain(self.id, timeout=_SHORT_READ)) as states:
            try:
                return await anext(states)
            except WaitTimeoutError:
                raise StateUnavailableError(f"the store has not answered within {_SHORT_READ:g} seconds") from None


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that is not simply 200."""

    status: int
    content: Document | dict[str, Any]
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Operation:
    """A route: what answers it, and the action that it needs."""

    method: str
    path: str
    action: Action | None
    """None: any action at all is enough."""
    handler: Callable[[Call], Awaitable[Answer | Response | Document | dict[str, Any]]]
    summary: str
    answers: Mapping[int, type[Document] | None]
    """The models of the answers, besides problems."""
    problems: tuple[int, ...] = ()
    query: type[BaseModel] = NoQuery
    body: type[BaseModel] | None = None
    media_type: str = "application/json"

    @property
    def shown_path(self) -> str:
        """The path without what its parameters match."""
        return self.path.replace(":id}", "}")

    @property
    def takes_token(self) -> bool:
        """Whether a token for the chain is as good as access."""
        return self.query is ChainEventsQuery


# --- reading ----------------------------------------------------------------------------------------------------------


async def index(call: Call) -> Index:
    """Where to begin."""
    base = call.base
    paths = {"chains": "chains", "events": "events", "job_types": "job-types", "openapi": "openapi.json"}
    return Index(**{name: f"{base}/{path}" for name, path in paths.items()})


async def openapi(call: Call) -> dict[str, Any]:
    """The OpenAPI document."""
    from queuert.web.openapi import document

    return document(call.client.job_types, call.base)


async def job_types(call: Call) -> JobTypes:
    """The registered job types, with the schemas of their inputs and outputs."""
    return JobTypes(
        items=[
            JobTypeDocument(
                name=one.name,
                input=schema_of(one.input_annotation),
                output=schema_of(one.output_annotation) if one.can_complete else None,
                continues_with=list(one.continuations),
                completed_by=one.completed_by,
                overdue_after=one.overdue_after,
            )
            for one in call.client.job_types
        ]
    )


async def list_chains(call: Call) -> ChainsPage:
    """A page of chains, the newest first."""
    query: ChainsQuery = call.query
    page = await call.client.list_chains(
        job_types=query.type or None,
        statuses=query.status or None,
        attributes=query.attribute_filter(),
        since=query.since,
        before=query.before,
        limit=query.limit,
        cursor=query.cursor,
        oldest_first=query.order == "oldest",
    )
    items = [LinkedChain.at(call.base, chain, payloads=call.payloads) for chain in page]
    return ChainsPage(items=items, next_cursor=page.next_cursor)


async def get_chain(call: Call) -> LinkedChain:
    """A chain."""
    return LinkedChain.at(call.base, await call.client.get_chain(call.id), payloads=call.payloads)


async def get_progress(call: Call) -> ChainStateDocument:
    """Where a chain is: the status, the attempt, the progress and the phases of its last job."""
    state = await call.state()
    job_type = call.client.job_types.get(state.job_type)
    has_phases = (job_type is not None and job_type.phases) or (state.progress is not None and state.progress.phase)
    phases = await call.client.get_phases(state.job_id) if has_phases else ()
    found = ChainStateDocument.of(state, payloads=call.payloads)
    if phases:
        found.phases = [PhaseDocument.of(phase, payloads=call.payloads) for phase in phases]
    return found


async def get_explanation(call: Call) -> ExplanationDocument:
    """Why a chain is not closed yet."""
    return ExplanationDocument.of(await call.client.explain(call.id), payloads=call.payloads)


async def list_jobs(call: Call) -> JobsPage:
    """A page of the jobs of a chain, in order."""
    query: PageQuery = call.query
    page = await call.client.list_chain_jobs(call.id, limit=query.limit, cursor=query.cursor)
    if not page.items:
        await call.client.get_chain(call.id)
    items = [JobDocument.of(job, payloads=call.payloads) for job in page]
    return JobsPage(items=items, next_cursor=page.next_cursor)


async def get_job(call: Call) -> JobDocument:
    """A job."""
    return JobDocument.of(await call.client.get_job(call.id), payloads=call.payloads)


async def get_result(call: Call) -> Answer | Result:
    """The output of a chain; the request may wait until the chain closes."""
    chain = await call.client.get_chain(call.id)
    wait = min(call.query.wait, call.app.max_wait)
    if chain.status is ChainStatus.OPEN and wait > 0:
        with call.app.waiting.one(call.access.principal):
            await _closed_or_timeout(call, chain, wait)
    if chain.status is ChainStatus.OPEN:
        return Answer(202, OpenChain(id=chain.id, status=chain.status), {"Retry-After": "1"})
    if chain.status is not ChainStatus.COMPLETED:
        reason = str(chain.error) if chain.error else "without a reason"
        verb = "failed" if chain.status is ChainStatus.FAILED else "was cancelled"
        raise Problem(409, f"chain-{chain.status.value}", f"chain {chain.id!r} {verb}: {reason}")
    # The stored JSON of the last job, also of job types that this program does not know.
    page = await call.client.list_chain_jobs(chain.id, limit=1, oldest_first=False)
    if not page.items:
        raise ChainNotFoundError(chain.id)
    return Result(id=chain.id, output=page.items[0].output)


async def _closed_or_timeout(call: Call, chain: AsyncChain[Any], seconds: float) -> None:
    """Wait for a chain, until the timeout, the end of the application, or the client that goes away."""
    tasks = [asyncio.ensure_future(one) for one in (chain.wait(), call.app.stopping(), call.disconnected())]
    try:
        # Not the timeout of the wait, whose error would read what holds the chain.
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# --- changing ---------------------------------------------------------------------------------------------------------


async def start_chain(call: Call) -> Answer:
    """Start a chain, or find the one of the same idempotency key."""
    body: StartBody = call.body
    job_type = call.client.job_types[body.type]
    id, attributes, fingerprint = body.id, dict(body.attributes or {}), None
    if FINGERPRINT in attributes:
        raise Problem(422, "invalid-body", f"attributes must not have the name {FINGERPRINT!r}: choose another")
    if call.idempotency_key is not None:
        if body.id is not None:
            raise Problem(422, "invalid-body", "id must not be set together with Idempotency-Key: remove one of them")
        fingerprint = _digest(json.dumps(body.model_dump(mode="json"), sort_keys=True))
        id = f"http-{_digest(json.dumps([call.access.principal, call.idempotency_key]))}"
        attributes[FINGERPRINT] = fingerprint
    try:
        chain = await call.client.start_chain(
            job_type,
            read_payload(job_type, "input", body.input),
            id=id,
            run_at=None if body.run_at is None else at(body.run_at),
            priority=body.priority,
            blockers=body.blockers,
            deduplication=None if body.deduplication is None else body.deduplication.value(),
            attach=fingerprint is not None,
            limit_key=body.limit_key,
            result_ttl=body.result_ttl,
            attributes=attributes or None,
            max_attempts=body.max_attempts,
            webhook=body.webhook,
        )
    except JobTypeMismatchError:
        raise _reused_key() from None
    if chain.deduplicated:
        await chain.refresh()
        if chain.id == id and chain.attributes.get(FINGERPRINT) != fingerprint:
            raise _reused_key()
    resource = LinkedChain.at(call.base, chain, payloads=call.payloads)
    return Answer(200 if chain.deduplicated else 201, resource, {"Location": resource.links.chain})


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def _reused_key() -> Problem:
    return Problem(
        422, "idempotency-key-reused", "the Idempotency-Key was used for another request: choose another key"
    )


async def cancel_chain(call: Call) -> LinkedChain:
    """Cancel a chain; one that is closed already stays as it is."""
    await call.client.cancel_chain(call.id, cascade=call.body.cascade, reason=call.body.reason)
    return await get_chain(call)


async def retry_chain(call: Call) -> LinkedChain:
    """Retry a failed or cancelled chain: its last job becomes due at once."""
    await call.client.retry_chain(call.id, cascade=call.body.cascade)
    return await get_chain(call)


async def reschedule_chain(call: Call) -> ChangedChain:
    """Give the job that an open chain waits with another due time."""
    return await _if_waiting(call, call.client.reschedule_chains([call.id], at(call.body.run_at)))


async def reprioritize_chain(call: Call) -> ChangedChain:
    """Give the job that an open chain waits with another priority."""
    return await _if_waiting(call, call.client.reprioritize_chains([call.id], call.body.priority))


async def _if_waiting(call: Call, change: Awaitable[list[bool]]) -> ChangedChain:
    if not all(await change):
        raise Problem(409, "not-waiting", f"chain {call.id!r} does not wait: its job runs, or the chain is closed")
    chain, state = await get_chain(call), await call.state()
    return ChangedChain(**chain.as_dict(), scheduled_at=state.scheduled_at)


async def complete_chain(call: Call) -> LinkedChain:
    """Complete an open chain with an output, instead of by its last job's handler."""
    state = await call.state()
    expected = call.body.expecting or state.job_type
    if expected != state.job_type:
        raise JobTypeMismatchError(call.id, expected, state.job_type, of_last_job=True)
    job_type = call.client.job_types[state.job_type]
    output = read_payload(job_type, "output", call.body.output)
    await call.client.complete_chain(call.id, output, expecting=job_type)
    return await get_chain(call)


_CHAIN = {200: LinkedChain}
_CHANGED = {200: ChangedChain}
_WEBHOOK = {200: WebhookDocument}

OPERATIONS = (
    Operation("GET", "/", None, index, "Where to begin", {200: Index}),
    Operation("GET", "/openapi.json", None, openapi, "The OpenAPI document", {200: None}),
    Operation("GET", "/job-types", None, job_types, "The registered job types", {200: JobTypes}),
    Operation("GET", "/chains", Action.READ, list_chains, "List chains", {200: ChainsPage}, (422,), ChainsQuery),
    Operation(
        "POST", "/chains", Action.START, start_chain, "Start a chain", {201: LinkedChain, 200: LinkedChain},
        (404, 409), body=StartBody,
    ),
    Operation("GET", "/chains/{id:id}", Action.READ, get_chain, "Read a chain", _CHAIN, (404, 422)),
    Operation(
        "GET", "/chains/{id:id}/progress", Action.READ, get_progress, "Read where a chain is",
        {200: ChainStateDocument}, (404, 422),
    ),
    Operation(
        "GET", "/chains/{id:id}/explanation", Action.READ, get_explanation, "Read why a chain is not closed yet",
        {200: ExplanationDocument}, (404, 422),
    ),
    Operation(
        "GET", "/chains/{id:id}/jobs", Action.READ, list_jobs, "List the jobs of a chain", {200: JobsPage}, (404, 422),
        PageQuery,
    ),
    Operation(
        "GET", "/chains/{id:id}/result", Action.READ_PAYLOADS, get_result, "Wait for the output of a chain",
        {200: Result, 202: OpenChain}, (404, 409, 422), ResultQuery,
    ),
    Operation(
        "POST", "/chains/{id:id}/cancel", Action.CANCEL, cancel_chain, "Cancel a chain", _CHAIN, (404,), body=CancelBody
    ),
    Operation(
        "POST", "/chains/{id:id}/retry", Action.RETRY, retry_chain, "Retry a failed or cancelled chain", _CHAIN,
        (404, 409), body=RetryBody,
    ),
    Operation(
        "POST", "/chains/{id:id}/reschedule", Action.CHANGE, reschedule_chain, "Change when a waiting job may run",
        _CHANGED, (404, 409), body=RescheduleBody,
    ),
    Operation(
        "POST", "/chains/{id:id}/reprioritize", Action.CHANGE, reprioritize_chain,
        "Change the priority of a waiting job", _CHANGED, (404, 409), body=ReprioritizeBody,
    ),
    Operation(
        "POST", "/chains/{id:id}/complete", Action.COMPLETE, complete_chain, "Complete a chain with an output", _CHAIN,
        (404, 409), body=CompleteBody,
    ),
    Operation(
        "GET", "/chains/{id:id}/events", Action.READ, streams.chain_events, "Follow a chain", {200: None, 204: None},
        (404, 422), ChainEventsQuery, media_type=streams.MEDIA_TYPE,
    ),
    Operation(
        "GET", "/events", Action.READ, streams.all_events, "Follow all chains", {200: None}, (422,), EventsQuery,
        media_type=streams.MEDIA_TYPE,
    ),
    Operation("GET", "/jobs/{id:id}", Action.READ, get_job, "Read a job", {200: JobDocument}, (404, 422)),
    Operation("GET", "/webhooks", Action.READ, webhooks.list_webhooks, "List webhooks", {200: Webhooks}),
    Operation(
        "POST", "/webhooks", Action.EDIT_WEBHOOKS, webhooks.create_webhook, "Make a webhook", {200: NewWebhookDocument},
        body=WebhookBody,
    ),
    Operation(
        "GET", "/webhooks/{id:id}", Action.READ, webhooks.get_webhook, "Read a webhook", _WEBHOOK, (404, 422)
    ),
    Operation(
        "POST", "/webhooks/{id:id}/rotate", Action.EDIT_WEBHOOKS, webhooks.rotate_webhook, "Give it a new secret",
        {200: NewWebhookDocument}, (404,), body=RotateBody,
    ),
    Operation(
        "POST", "/webhooks/{id:id}/enable", Action.EDIT_WEBHOOKS, webhooks.enable_webhook, "Send to it again", _WEBHOOK,
        (404,), body=NoBody,
    ),
    Operation(
        "POST", "/webhooks/{id:id}/disable", Action.EDIT_WEBHOOKS, webhooks.disable_webhook, "Send nothing to it",
        _WEBHOOK, (404,), body=DisableBody,
    ),
    Operation(
        "POST", "/webhooks/{id:id}/delete", Action.EDIT_WEBHOOKS, webhooks.delete_webhook, "Delete a webhook",
        {200: Deleted}, (404,), body=NoBody,
    ),
    Operation(
        "POST", "/webhooks/{id:id}/ping", Action.REPLAY_WEBHOOKS, webhooks.ping_webhook, "Send a delivery of nothing",
        {200: Pinged}, (404,), body=NoBody,
    ),
    Operation(
        "POST", "/webhooks/{id:id}/replay", Action.REPLAY_WEBHOOKS, webhooks.replay_webhook, "Deliver again",
        {200: Replayed}, (404,), body=ReplayBody,
    ),
    Operation(
        "GET", "/webhooks/{id:id}/deliveries", Action.READ, webhooks.list_deliveries, "List attempts at deliveries",
        {200: WebhookAttemptsPage}, (422,), PageQuery,
    ),
)  # fmt: skip
"""All routes."""
