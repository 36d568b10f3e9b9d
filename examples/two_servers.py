"""A federation of two servers: signed and encrypted messages, acknowledgements that come as callbacks, health checks.

Each server has an HTTP address on this machine, keys, and a queue in a file of SQLite. Ada's server delivers messages
to Bob's: each is encrypted for Bob, signed by Ada, and tried again with growing pauses. Bob answers 202 at once,
handles the message with a job of his own, and sends his acknowledgement, signed and encrypted, to Ada's inbox. Ada's
delivery has waited for it since, without a slot. A server that cannot be reached is looked at again by a chain that
schedules itself.

Run it from the root of the repository: ``make demo ARGS=federation``, or ``python -m examples.two_servers``. It needs
``pip install 'queuert[web,encryption]' httpx``, and takes a few seconds.
"""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from cryptography.exceptions import InvalidTag
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from examples.delivery_keys import OwnKeys, sealed, verified
from examples.serving import reserved, serving
from queuert import (
    AsyncClient,
    Attempt,
    Deduplicate,
    InProcessWorker,
    JobType,
    JobTypes,
    Outcome,
    Processors,
    RetryPolicy,
    Unrecoverable,
    after,
)
from queuert.errors import EventTimeoutError


class Message(BaseModel):
    to: str
    text: str


class Received(BaseModel):
    id: str
    sender: str
    text: str


class Acknowledgement(BaseModel):
    verdict: str


class Check(BaseModel):
    server: str
    number: int = 1


deliver = JobType("deliver_message", input=Message, output=str)
receive = JobType("receive_message", input=Received, output=str)
check = JobType("check_server", input=Check, output=str, continues_with="check_server")
job_types = JobTypes(deliver, receive, check)

ACKNOWLEDGED_WITHIN = 10.0
CHECK_EVERY = 0.3
"""Seconds; minutes in earnest."""


class Server:
    """A server of the federation: its keys, the keys of the others, its queue and its HTTP application."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.keys = OwnKeys()
        self.socket, self.url = reserved()
        self.known: dict[str, dict[str, str]] = {}
        """The published keys of other servers, by address."""
        self.sent = ""
        """The last message as it went over the wire."""
        self.client = AsyncClient.from_url(f"sqlite:///{folder}/{name}.db", job_types)
        self.http = httpx.AsyncClient(timeout=5)
        self.app = Starlette(routes=[
            Route("/inbox", self.inbox, methods=["POST"]),
            Route("/keys", self.publish_keys),
        ])  # fmt: skip

    def log(self, what: str) -> None:
        print(f"{self.name}: {what}")

    # --- what goes out ---

    async def send(self, to: str, kind: str, id: str, content: dict[str, Any]) -> None:
        """Send a message that only its receiver can read, and that only we can have signed."""
        if to not in self.known:
            self.known[to] = (await self.http.get(f"{to}/keys")).json()
        body = sealed(self.known[to]["seal"], json.dumps({"kind": kind, "id": id, "to": to, **content}))
        self.sent = body
        await self.post(to, body, self.keys.signature(body))

    async def post(self, to: str, body: str, signature: str) -> None:
        headers = {"x-from": self.url, "x-signature": signature}
        (await self.http.post(f"{to}/inbox", content=body, headers=headers)).raise_for_status()

    # --- what comes in ---

    async def publish_keys(self, request: Request) -> Response:
        return JSONResponse(self.keys.published)

    async def inbox(self, request: Request) -> Response:
        """Check a message, and hand it to the queue. The same message again finds the chain that it has started."""
        body, sender = (await request.body()).decode(), request.headers.get("x-from", "")
        keys = self.known.get(sender)
        if keys is None or not verified(keys["verify"], body, request.headers.get("x-signature")):
            self.log("refuses a message that its sender has not signed")
            return JSONResponse({"error": "the signature is not the sender's"}, 401)
        try:
            message = json.loads(self.keys.opened(body))
        except (InvalidTag, ValueError):
            self.log("refuses a message that is not encrypted for it")
            return JSONResponse({"error": "the message cannot be opened"}, 400)
        if message.get("to") != self.url:
            return JSONResponse({"error": "the message is for another server"}, 400)
        if message["kind"] == "acknowledgement":
            sent = await self.client.send_event(
                message["id"], "acknowledged", {"verdict": message["verdict"]}, id=f"acknowledgement-{sender}"
            )
            return JSONResponse({"new": sent}, 202)
        chain = await self.client.start_chain(
            receive, Received(id=message["id"], sender=sender, text=message["text"]), id=message["id"], attach=True
        )
        if chain.deduplicated:
            self.log(f"has {message['id']} already, and does not handle it again")
        return JSONResponse({"new": not chain.deduplicated}, 202)

    # --- the queue ---

    async def deliver(self, to: str, text: str, *, id: str) -> str:
        """Have a message delivered, and wait for what becomes of it."""
        chain = await self.client.start_chain(deliver, Message(to=to, text=text), id=id)
        await chain.wait(30)
        return chain.output or f"{chain.status}: {chain.error}"

    def processors(self) -> Processors:
        own = Processors(job_types, retry=RetryPolicy(max_attempts=5, initial_delay=0.2, jitter=0.0))

        @own.handles(deliver)
        async def delivering(attempt: Attempt[Message, str]) -> Outcome[str]:
            message = attempt.input

            async def post() -> None:
                try:
                    await self.send(message.to, "message", attempt.chain_id, {"text": message.text})
                except httpx.HTTPStatusError as error:
                    if error.response.status_code < 500:
                        raise Unrecoverable(f"refused with {error.response.status_code}") from error
                    raise
                except httpx.TransportError:
                    if attempt.number == 1:
                        self.log(f"cannot deliver {attempt.chain_id} yet: its peer is down")
                    await self.client.start_chain(
                        check,
                        Check(server=message.to),
                        deduplication=Deduplicate(message.to),
                        run_at=after(seconds=0.1),
                    )
                    raise

            await attempt.step("post", post)  # an attempt that goes on after the wait does not send it again
            try:
                answer = await attempt.wait_for_event("acknowledged", Acknowledgement, timeout=ACKNOWLEDGED_WITHIN)
            except EventTimeoutError:
                return attempt.fail("nobody has acknowledged it")
            return f"acknowledged: {answer.verdict}"

        @own.handles(receive)
        async def receiving(attempt: Attempt[Received, str]) -> Outcome[str]:
            message = attempt.input
            self.log(f"reads {message.text!r}")
            await self.send(message.sender, "acknowledgement", message.id, {"verdict": "accepted"})
            return "acknowledged"

        @own.handles(check)
        async def checking(attempt: Attempt[Check, str]) -> Outcome[str]:
            server, number = attempt.input.server, attempt.input.number
            try:
                await self.http.get(f"{server}/keys")
            except httpx.TransportError:
                if number == 1:
                    self.log(f"health check: its peer is down, and is looked at again every {CHECK_EVERY} s")
                again = Check(server=server, number=number + 1)
                return attempt.continue_with(check, again, run_at=after(seconds=CHECK_EVERY)) if number < 20 else "gone"
            return "its peer is up again"

        return own

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Its client and a worker; the server itself is another part, which may be down."""
        async with self.client, self.http, InProcessWorker(self.client, self.processors(), concurrency=4):
            yield


async def attempted(what: str, posting: Awaitable[None]) -> None:
    """Say what becomes of a request that somebody makes."""
    try:
        await posting
        print(f"{what} is accepted")
    except httpx.HTTPStatusError as error:
        print(f"{what} is answered with {error.response.status_code}")


async def main() -> None:
    logging.getLogger("queuert").setLevel(logging.ERROR)  # what goes wrong here is meant to
    with tempfile.TemporaryDirectory() as folder:
        ada, bob = Server("ada", Path(folder)), Server("bob", Path(folder))
        bob.known[ada.url] = ada.keys.published  # they have met before
        async with ada.running(), bob.running(), serving(ada.app, ada.socket):
            print("-- Bob's server is down")
            early = asyncio.create_task(ada.deliver(bob.url, "are you there?", id="message-1"))
            while not await is_checked(ada):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            async with serving(bob.app, bob.socket):
                print("-- Bob's server is up")
                print(f"message-1 is {await early}")
                print(f"message-2 is {await ada.deliver(bob.url, 'hello', id='message-2')}")
                print("-- a replay, a forged message, and one for somebody else")
                await attempted("the same message again", ada.post(bob.url, ada.sent, ada.keys.signature(ada.sent)))
                await attempted("the forged message", ada.post(bob.url, ada.sent, OwnKeys().signature(ada.sent)))
                private = sealed(ada.keys.published["seal"], "not for Bob")
                await attempted("the message for Ada", ada.post(bob.url, private, ada.keys.signature(private)))
                [checks] = await ada.client.list_chains(job_types=[check])
                print(f"ada: health check: {await checks.result(timeout=30)}")
            print("-- what is left")
            for server in (ada, bob):
                counts = Counter(f"{chain.type} {chain.status}" for chain in await server.client.list_chains())
                print(f"{server.name}: " + ", ".join(f"{number} x {what}" for what, number in sorted(counts.items())))


async def is_checked(server: Server) -> bool:
    """Whether a health check has found the peer down."""
    checks = await server.client.list_jobs(job_types=[check])
    return any(job.status == "continued" for job in checks)


if __name__ == "__main__":
    asyncio.run(main())
