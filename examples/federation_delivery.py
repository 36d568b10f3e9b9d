"""Delivery to other servers with backoff and acknowledgements, and health checks that schedule themselves.

A delivery that the other server cannot take now is tried five times, with pauses of 5, 10, 20 and 40 seconds; one that
makes no sense fails at once. What was delivered is kept for a day, what failed for a week. A server that fails is
looked at again after 5 minutes, then 15, 25 ...: at most five times, one chain for each server.

Run it from the root of the repository: ``QUEUERT_URL=redis://localhost:6379 python -m examples.federation_delivery``.
It talks to a server of its own, and does not wait for minutes.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import threading
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from pydantic import BaseModel

from queuert import AsyncClient, Attempt, InProcessWorker, JobType, JobTypes, Outcome, Processors, RetryPolicy, after
from queuert.client import AsyncChain
from queuert.errors import Unrecoverable
from queuert.observability.events import AttemptCompleted, AttemptFailed, AttemptRetried, Event, WorkerStarted
from queuert.policies import Keep, Retention

# --- what the jobs are ------------------------------------------------------------------------------------------------

METHODS = ("FEDERATE", "FEDERATE_POST", "INSERT", "UNFOLLOW")
MOST_HEALTH_CHECKS = 5


class Delivery(BaseModel):
    target: str
    server: str
    payload: str


class Probe(BaseModel):
    server: str
    attempt: int = 0


follow = JobType("federation-delivery/follow", input=Delivery, output=str)
post = JobType("federation-delivery/post", input=Delivery, output=str)
health = JobType("federation-health-check", input=Probe, output=str, continues_with="federation-health-check")
job_types = JobTypes(follow, post, health)

# --- the application: its tables, and what it hears of its jobs -------------------------------------------------------


@dataclass
class Server:
    key: str
    healthy: bool = True
    probed: bool = True
    """Whether what is wrong with it can be found out by asking it."""
    checks: int = 0


@dataclass
class App:
    """What would be tables of a database."""

    own_url: str | None = "https://here.example"
    servers: dict[str, Server] = field(default_factory=dict)
    blacklist: set[str] = field(default_factory=set)
    deliveries: dict[str, int] = field(default_factory=dict)
    """Attempts by the id of the delivery, which is that of its chain."""
    follows: dict[str, str] = field(default_factory=dict)
    minute: float = 60.0
    heard: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def emit(self, event: Event) -> None:
        """Hear of what workers do."""
        if isinstance(event, WorkerStarted):
            self.heard.append("a worker is ready")
        elif isinstance(event, AttemptRetried):
            self.heard.append(
                f"{event.job_id}: attempt {event.attempt} failed, {5 - event.attempt} are left: {event.error}"
            )
        elif isinstance(event, AttemptFailed):
            self.heard.append(f"{event.job_id}: failed for good: {event.error}")
        elif isinstance(event, AttemptCompleted):
            self.deliveries.pop(event.job_id, None)

    def drop(self, delivery: str, reason: str) -> Unrecoverable:
        """The delivery makes no sense: nothing of it is kept but the failed job."""
        self.deliveries.pop(delivery, None)
        return Unrecoverable(reason)

    def server(self, url: str) -> Server:
        """One that is known, or that lets itself be discovered."""
        if url not in self.servers:
            self.servers[url] = Server(key=json.loads(asked(f"{url}/discover", timeout=8))["key"])
        return self.servers[url]


# --- delivery ---------------------------------------------------------------------------------------------------------


def processors_of(app: App, *, base: float = 5.0) -> Processors:
    """The handlers, for an application. ``base`` is the first pause, in seconds."""
    processors = Processors(
        job_types,
        retry=RetryPolicy(max_attempts=5, initial=base, multiplier=2, maximum=base * 8, jitter=0),
        retention=Retention(completed=Keep(age=86_400), failed=Keep(age=604_800)),
    )

    @processors.handles(follow)
    @processors.handles(post)
    def deliver(attempt: Attempt[Delivery, str]) -> Outcome[str]:
        job = attempt.input
        check_method(app, attempt.job_id, job.payload)
        if job.server in app.blacklist:
            raise app.drop(attempt.job_id, "the server is blacklisted")
        server = app.server(job.server)
        with app.lock:
            app.deliveries[attempt.job_id] = app.deliveries.get(attempt.job_id, 0) + 1
        if app.own_url is None:
            raise Unrecoverable("we have no address of our own")
        ack = acknowledged(asked(job.target, job.payload, key=server.key, timeout=15))
        return follow_acknowledged(app, attempt.job_id, server, ack) if attempt.type == follow.name else "delivered"

    @processors.handles(health, retry=RetryPolicy(max_attempts=1))
    def check(attempt: Attempt[Probe, str]) -> Outcome[str]:
        probe = attempt.input
        server = app.servers.get(probe.server)
        if server is None or server.healthy:
            return "nothing to do"
        if not server.probed:
            return "not to be found out by asking"
        try:
            asked(f"{probe.server}/discover", timeout=8)
        except OSError:
            with app.lock:
                server.checks += 1
        else:
            server.healthy, server.checks = True, 0
            return "healthy"
        if server.checks >= MOST_HEALTH_CHECKS:
            app.heard.append(f"given up after {server.checks} checks")
            return "given up"
        again = Probe(server=probe.server, attempt=probe.attempt + 1)
        return attempt.continue_with(health, again, schedule=after(seconds=pause_before(app, again.attempt)))

    return processors


def check_method(app: App, delivery: str, payload: str) -> None:
    """Refuse what is not an object with a method that we know."""
    try:
        parsed = json.loads(payload)
    except ValueError:
        raise app.drop(delivery, "the payload is no JSON") from None
    if not isinstance(parsed, dict) or parsed.get("method") not in METHODS:
        raise app.drop(delivery, "the payload has no method that we know")


def signature(key: str, payload: str) -> str:
    return hmac.new(key.encode(), payload.encode(), "sha256").hexdigest()


def asked(url: str, payload: str | None = None, *, key: str = "", timeout: float) -> str:
    """The body of an answer; another status than OK, and no answer, are errors that pass (OSError)."""
    body = None if payload is None else payload.encode()
    request = urllib.request.Request(url, body, {"x-signature": signature(key, payload or "")})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        error.close()
        raise OSError(f"the server answers {error.code}") from None


def acknowledged(body: str) -> dict[str, Any]:
    """The acknowledgement in an answer."""
    try:
        parsed = json.loads(body)
    except ValueError:
        raise Unrecoverable("the answer is no JSON") from None
    ack = parsed.get("ack") if isinstance(parsed, dict) else None
    if not isinstance(ack, dict):
        raise Unrecoverable("the answer acknowledges nothing")
    return ack


def follow_acknowledged(app: App, delivery: str, server: Server, ack: dict[str, Any]) -> str:
    """Note what the other server says of our follow."""
    if not isinstance(ack.get("follow"), str):
        raise app.drop(delivery, "the acknowledgement names no follow")
    if not hmac.compare_digest(str(ack.get("signature")), signature(server.key, ack["follow"])):
        raise Unrecoverable("the acknowledgement is not signed by the server")
    if ack["follow"] not in app.follows:
        return "ignored"
    outcome = "accepted" if ack.get("accepted") is True else "acknowledged"
    app.follows[ack["follow"]] = outcome
    return outcome


# --- health checks ----------------------------------------------------------------------------------------------------


def health_check_id(server: str) -> str:
    """One for each address, in characters that are safe anywhere."""
    return f"health-{hashlib.sha256(server.encode()).hexdigest()[:16]}"


def pause_before(app: App, attempt: int) -> float:
    """Seconds."""
    return (5 + attempt * 10) * app.minute


async def schedule_health_check(client: AsyncClient, app: App, server: str) -> AsyncChain[str]:
    """One chain for each server; it is gone a minute after it has ended, however it did."""
    return await client.start_chain(
        health,
        Probe(server=server),
        id=health_check_id(server),
        attach=True,
        schedule=after(seconds=pause_before(app, 0)),
        result_ttl=60,
    )


# --- another server, for this example ---------------------------------------------------------------------------------


class Peer(BaseHTTPRequestHandler):
    """Answers with what it was told to: a status and a body, one after the other, the last one for ever."""

    answers: ClassVar[dict[str, deque[tuple[int, str]]]] = {}

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer()

    def _answer(self) -> None:
        answers = self.answers[self.path]
        status, body = answers.popleft() if len(answers) > 1 else answers[0]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None:
        return


@contextmanager
def peer(**answers: list[tuple[int, str]]) -> Iterator[str]:
    """A server on this machine, by its address; ``inbox`` and ``discover`` are what it answers there."""
    own = type("OwnPeer", (Peer,), {"answers": {f"/{path}": deque(given) for path, given in answers.items()}})
    with ThreadingHTTPServer(("127.0.0.1", 0), own) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


KEY = "the key of the other server"
DISCOVERED = (200, json.dumps({"key": KEY}))
ACCEPTED = (
    200,
    json.dumps({"ack": {"follow": "ada-bob", "accepted": True, "signature": signature(KEY, "ada-bob")}}),
)


async def main() -> None:
    app = App(follows={"ada-bob": "asked"}, minute=0.0001)
    processors = processors_of(app, base=0.01)
    url = os.environ["QUEUERT_URL"]
    down, bad = (503, ""), (500, "")
    with peer(inbox=[bad, bad, ACCEPTED], discover=[DISCOVERED, down, down, DISCOVERED, down]) as server:
        client = AsyncClient.from_url(url, job_types, observability=app)
        async with client, InProcessWorker(client, processors, concurrency=10):
            target = f"{server}/inbox"
            good = Delivery(target=target, server=server, payload='{"method": "FEDERATE"}')
            app.deliveries["abc-123"] = 0
            print(await client.start_and_wait(follow, good, id="abc-123"), app.follows)

            bad_one = good.model_copy(update={"payload": '{"method": 42}'})
            chain = await (await client.start_chain(post, bad_one, id="abc-124")).wait(30)
            print(f"{chain.status} after {(await client.get_job(chain.id)).attempt} attempt")

            for _ in range(2):
                app.servers[server].healthy = False
                checks = [await schedule_health_check(client, app, server) for _ in range(3)]
                print(await checks[0].result(timeout=30), [check.deduplicated for check in checks])
                await client.delete_chain(checks[0])
            await client.delete_chains(["abc-123", "abc-124"])  # so that this program can be run again
    print("\n".join(app.heard))
    print(f"deliveries that are not done: {app.deliveries}")


if __name__ == "__main__":
    asyncio.run(main())
