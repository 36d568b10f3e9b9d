"""The dashboard of a filled database, served to a browser by a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import psycopg
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Mount, Route

from queuert import AsyncClient, Attempt, InProcessWorker, NewChain, Outcome, Processors, RecurringSchedule, RetryPolicy
from queuert.ids import new_token
from queuert.jobs import ChainStatus, JobStatus
from queuert.state.types import ClaimRequest, NewJob
from queuert.state.webhooks import NewWebhookAttempt
from queuert.testing.shop import story
from queuert.testing.shop.job_types import (
    Order,
    Page,
    Refund,
    Shipment,
    charge,
    import_catalog,
    invoice,
    job_types,
    nightly_report,
    order,
    pack,
    pay_out,
    picture,
    product_page,
    refund,
    ship,
    sync_customer,
)
from queuert.web import FULL_ACCESS, NO_ACCESS, READ_ACCESS, Access
from queuert.web.dashboard import DashboardApp
from queuert.workers import WorkerHeartbeat

T = TypeVar("T")

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
VANISHED = "shop-9-vanished"
LIMPING = "orders to the CRM"
LEVEL = "X-Level"
"""The header that says what a request may do: ``full``, ``read``, ``none`` or names of actions."""

ONCE = RetryPolicy(max_attempts=1)


class CardDeclined(Exception):
    """The bank refuses."""


class GatewayTimeout(Exception):
    """The gateway does not answer."""


class CrmUnavailable(Exception):
    """The service is down."""


def access(request: Request) -> Access:
    """What the header says."""
    level = request.headers.get(LEVEL, "full")
    if level in ("full", "read", "none"):
        return {"full": FULL_ACCESS, "read": READ_ACCESS, "none": NO_ACCESS}[level]
    return Access(level.split(","), principal="ada")


def quick_processors() -> Processors[Any]:
    """The handlers of the shop, without waits and chances."""
    found = Processors(job_types, retry=ONCE)

    @found.handles(order)
    async def take(attempt: Attempt[Order, Shipment]) -> Outcome[Shipment]:
        return attempt.continue_with(charge, attempt.input)

    @found.handles(charge, retry=RetryPolicy(max_attempts=3, initial_delay=300, fail_on=(CardDeclined,)))
    async def pay(attempt: Attempt[Order, Shipment]) -> Outcome[Shipment]:
        if attempt.input.customer == "mallory":
            raise CardDeclined("the bank refused the card: insufficient funds")
        if attempt.input.number == 20:
            raise GatewayTimeout("the payment gateway did not answer within 800 ms")
        return attempt.continue_with(pack, attempt.input)

    @found.handles(pack)
    async def wrap(attempt: Attempt[Order, Shipment]) -> Outcome[Shipment]:
        return attempt.continue_with(ship, attempt.input)

    @found.handles(ship)
    async def send(attempt: Attempt[Order, Shipment]) -> Outcome[Shipment]:
        return Shipment(number=attempt.input.number, tracking="JD1")

    @found.handles(sync_customer)
    async def sync(attempt: Attempt[str, None]) -> Outcome[None]:
        if attempt.input.startswith("crm-down"):
            raise CrmUnavailable("503 Service Unavailable from https://crm.example/v2/customers")
        raise KeyError(attempt.input)

    @found.handles(product_page)
    async def make(attempt: Attempt[Page, list[str]]) -> Outcome[list[str]]:
        if not attempt.blockers:
            return attempt.wait_for(*(NewChain(picture, f"picture-{n}") for n in range(attempt.input.pictures)))
        return attempt.outputs_of(picture)

    @found.handles(picture)
    async def draw(attempt: Attempt[str, str]) -> Outcome[str]:
        return attempt.input

    @found.handles(refund)
    async def check(attempt: Attempt[Refund, str]) -> Outcome[str]:
        if attempt.input.cents >= 10_000:
            await attempt.wait_for_event("approval", str, timeout=86_400)
        return attempt.continue_with(pay_out, attempt.input)

    @found.handles(pay_out)
    async def pay_back(attempt: Attempt[Refund, str]) -> Outcome[str]:
        return "paid"

    return found


class Shop:
    """A client of the filled database, and the server of its dashboard, on a thread with a loop of their own."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="shop", daemon=True)
        self._thread.start()
        self.client = self.run(self._open())
        self.dashboard = DashboardApp(
            self.client,
            access=access,
            environment="staging",
            trace_url="https://tempo.example/trace/{trace_id}",
        )
        self.address, self._server = self.run(self._serve())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the thread, and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _open(self) -> AsyncClient:
        client = AsyncClient.from_url(self.dsn, job_types)
        await client.open()
        return client

    async def _serve(self) -> tuple[str, uvicorn.Server]:
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        app = Starlette(
            routes=[
                Route("/elsewhere", self._elsewhere),
                Mount("/ops/queue", self.dashboard),
                Mount("/", self.dashboard),
            ]
        )
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=2)
        server = uvicorn.Server(config)
        self._serving = asyncio.ensure_future(server.serve(sockets=[listening]))
        while not server.started:  # noqa: ASYNC110  (nobody tells)
            await asyncio.sleep(0.01)
        return f"http://127.0.0.1:{port}", server

    async def _elsewhere(self, request: Request) -> HTMLResponse:
        """A page that sends a form to the dashboard; a test opens it under another host's name."""
        port, id = request.url.port, request.query_params["id"]
        return HTMLResponse(
            f'<form method="post" action="http://127.0.0.1:{port}/chain/cancel"><input name="id" value="{id}">'
            "<button>Win a prize</button></form>"
        )

    def close(self) -> None:
        """Stop the server, and close the client."""

        async def end() -> None:
            self.dashboard.stop()
            self._server.should_exit = True
            await self._serving
            await self.client.aclose()
            # The streams' library leaves a task that waits for the end of the process.
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

        self.run(end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def status(self, id: str) -> ChainStatus:
        """The status of a chain."""
        return self.run(self.client.get_chain(id)).status

    def exists(self, id: str) -> bool:
        """Whether there is a chain of this id."""
        return bool(self.run(self.client.get_chain_states([id])))

    def start(self, *chains: NewChain[Any]) -> list[str]:
        """Start chains, and return their ids."""
        return [chain.id for chain in self.run(self.client.start_chains(chains))]

    @contextmanager
    def worker(self, processors: Processors[Any] | None = None) -> Iterator[None]:
        """Run a worker."""
        opened = self._working(processors or quick_processors())
        self.run(opened.__aenter__())
        try:
            yield
        finally:
            self.run(opened.__aexit__(None, None, None))

    @asynccontextmanager
    async def _working(self, processors: Processors[Any]) -> AsyncIterator[None]:
        client = AsyncClient.from_url(self.dsn, job_types, observability=[])
        async with client, InProcessWorker(client, processors, concurrency=20, name="shop-2"):
            yield

    def fill(self) -> None:
        """Tell the past of the shop, and let everything happen that can."""
        self.run(self._fill())

    async def _fill(self) -> None:
        client = self.client
        await story.tell_the_past(client)
        async with self._working(quick_processors()):
            while await self._busy():  # noqa: ASYNC110  (many chains, some of which stay open)
                await asyncio.sleep(0.05)
        store = client.state.async_store(max_connections=1)
        await store.open()
        await client.start_chains([NewChain(invoice, number, id=f"invoice-{number}") for number in range(3)])
        await store.claim(ClaimRequest({invoice.name: 7_200.0}, 2, VANISHED, new_token()))
        context = f'{{"traceparent":"00-{TRACE}-00f067aa0ba902b7-01"}}'
        traced = Order(number=900, customer="ada", cents=1).model_dump_json()
        await store.start_jobs([NewJob("traced", order.name, traced, trace_context=context)])
        types = tuple(name for name in job_types.names if name != "restock")
        alive = WorkerHeartbeat(
            id="shop-1-alive", name="shop-1", host="shop", pid=1, version="0.1.0", job_types=types, concurrency=6,
            running=2, uptime=3_600.0,
        )  # fmt: skip
        await store.record_heartbeat(alive, 36_000.0)
        await store.claim(ClaimRequest({import_catalog.name: 7_200.0}, 2, alive.id, new_token()))
        await store.aclose()
        schedules = [
            RecurringSchedule("nightly-report", nightly_report, "all", cron="0 3 * * *", time_zone="Europe/Berlin"),
            RecurringSchedule("rates", nightly_report, "EUR", every=15),
        ]
        await client.put_schedules(schedules)
        await client.pause_schedules(["rates"])
        await self._fill_webhooks()
        await client.start_bulk_operation("retry", requested_by="ada", job_types=["nothing"])
        await client.run_bulk_operations()
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(
                "UPDATE queuert.schedule SET next_at = now() - interval '1 h' WHERE name = 'nightly-report'"
            )
            # What failed was started last night.
            connection.execute(
                "UPDATE queuert.job SET created_at = created_at - interval '8 h' WHERE type = 'sync-customer'"
            )

    async def _fill_webhooks(self) -> None:
        """One whose receiver limps, and one that is disabled."""
        events = ["chain.completed", "chain.failed"]
        made = await self.client.create_webhook(
            "https://crm.example/hooks/orders-of-the-shop", events=events, job_types=[order], description=LIMPING
        )
        old = await self.client.create_webhook("https://old.example/hook", attributes={"customer": "ada"})
        await self.client.disable_webhook(old.webhook.id, reason="replaced by that of the CRM")
        store = await self.client._open_store()
        id = made.webhook.id
        await store.record_webhook_attempts(
            [
                NewWebhookAttempt(id, f"evt_1-1-chain-{id}", "chain.completed", 1, 204, None, 0.08, None, None),
                NewWebhookAttempt(id, f"evt_2-2-chain-{id}", "chain.failed", 1, 503, "http", 2.4, 5.3, "<h1>busy</h1>"),
                NewWebhookAttempt(id, f"evt_2-2-chain-{id}", "chain.failed", 2, None, "timeout", 15.0, 310.0, None),
                NewWebhookAttempt(
                    id, f"evt_3-3-chain-{id}", "chain.failed", 10, None, "forbidden_target", 0.0, None, None
                ),
            ]
        )

    async def _busy(self) -> bool:
        counts = await self.client.count_jobs()
        waiting = {"restock", "newsletter", "import-catalog", "export-sales"}
        return any(one.status in (JobStatus.READY, JobStatus.RUNNING) and one.type not in waiting for one in counts)
