"""Webhooks: workers tell another application how chains have ended, and it checks that the requests are genuine.

Run it from the root of the repository: ``QUEUERT_URL=embedded:// python -m examples.webhooks``. The receiver is served
in the same process; it would be another system, which needs only ``queuert.webhooks.verify``, or a library for Standard
Webhooks in its own language.
"""

from __future__ import annotations

import asyncio
import os

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from examples.serving import reserved, serving
from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Outcome, Processors
from queuert.webhooks import (
    ReceivedWebhook,
    RecentIds,
    TargetPolicy,
    WebhookVerificationError,
    new_secret,
    signed_headers,
    verify,
)
from queuert.worker.webhooks import WebhookSettings, webhook_processors

print_book = JobType("print_book", input=str, output=int)
job_types = JobTypes(print_book)
processors = Processors(job_types)


@processors.handles(print_book)
async def printing(attempt: Attempt[str, int]) -> Outcome[int]:
    if not attempt.input:
        return attempt.fail("a book needs a title")
    return 100 * len(attempt.input)


def receiver(secret: str, received: asyncio.Queue[ReceivedWebhook]) -> Starlette:
    """The other application: it puts what is genuine and new into a queue, and answers at once."""
    known = RecentIds()

    async def receive(request: Request) -> Response:
        try:
            webhook = verify(await request.body(), request.headers, secret)
        except WebhookVerificationError:
            return Response(status_code=401)
        if known.add(webhook.id):  # a delivery may come twice
            received.put_nowait(webhook)
        return Response(status_code=204)

    return Starlette(routes=[Route("/hooks/books", receive, methods=["POST"])])


async def main() -> None:
    on, address = reserved()
    # Whoever makes a webhook chooses an address that workers connect to, so by default they send to the public internet
    # by HTTPS only. This receiver is on the same machine and has no certificate: its network, its port and HTTP have to
    # be allowed. Where others may make webhooks, allow no loopback address: programs beside the worker listen there.
    targets = TargetPolicy(allow_http=True, allow_networks=["127.0.0.0/8"], allow_ports=[on.getsockname()[1]])
    received: asyncio.Queue[ReceivedWebhook] = asyncio.Queue()
    async with AsyncClient.from_url(os.environ["QUEUERT_URL"], job_types) as client:
        made = await client.create_webhook(
            f"{address}/hooks/books",
            events=["chain.completed", "chain.failed"],
            job_types=[print_book],
            payloads=True,  # otherwise a body has neither outputs nor errors
        )
        groups = [processors, webhook_processors(client, WebhookSettings(targets=targets, interval=0.1))]
        async with serving(receiver(made.secret, received), on), asyncio.timeout(60):
            async with InProcessWorker(client, groups):
                for title in ("Emma", "Dracula", ""):
                    chain = await client.start_chain(print_book, title)
                    webhook = await received.get()
                    data = webhook.data
                    what = data["output"] if webhook.type == "chain.completed" else data["error"]["message"]
                    print(f"{webhook.type}: {what}; of the chain that was started: {data['chain_id'] == chain.id}")

            async with httpx.AsyncClient() as web:
                body = b'{"type": "chain.completed", "data": {}}'
                forged = signed_headers(new_secret(), "evt_1", body)
                answer = await web.post(made.webhook.url, content=body, headers=forged)
                print(f"a request that is signed with another secret is answered with {answer.status_code}")

        for attempt in await client.list_webhook_deliveries(made.webhook.id):  # the newest first
            print(f"attempt {attempt.attempt} to deliver {attempt.event_type}: {attempt.status}")
        await client.delete_webhook(made.webhook.id)


if __name__ == "__main__":
    asyncio.run(main())
