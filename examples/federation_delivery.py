"""Delivery to other servers with backoff and acknowledgements, and health checks that schedule themselves.

A delivery that the other server cannot take now is tried five times, with pauses of 5, 10, 20 and 40 seconds; one that
is not valid fails at once. It is signed, and encrypted for the server that it goes to. What was delivered is kept for
a day, what failed for a week. A server that fails is looked at again after 5 minutes, then 15, 25 ...: at most five
times, one chain for each server.

Run it from the root of the repository: ``QUEUERT_URL=redis://localhost:6379 python -m examples.federation_delivery``.
It talks to a server of its own, and does not wait for minutes. It needs ``pip install 'queuert[encryption]'``.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sqlite3
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from examples.delivery_keys import OwnKeys, sealed, verified
from examples.delivery_peer import ACCEPTED, DISCOVERED, peer
from queuert import (
    AsyncClient,
    Attempt,
    InProcessWorker,
    JobType,
    JobTypes,
    Outcome,
    Processors,
    RetryPolicy,
    after,
)
from queuert.client import AsyncChain
from queuert.errors import Unrecoverable
from queuert.observability.events import (
    AttemptCompleted,
    AttemptFailed,
    AttemptRetried,
    Event,
    LoopFailed,
    StoreCallFailed,
    WorkerStarted,
)
from queuert.policies import Keep, Retention

# --- what the jobs are ------------------------------------------------------------------------------------------------

METHODS = ("FEDERATE", "FEDERATE_POST", "INSERT", "UNFOLLOW")
MOST_HEALTH_CHECKS = 5
MOST_ATTEMPTS = 5
DELIVERY_TIMEOUT = 15.0
PROBE_TIMEOUT = 8.0
KEPT_CHECKS = 60.0
"""Seconds."""


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

TABLES = """
CREATE TABLE IF NOT EXISTS server (
    url TEXT PRIMARY KEY, verify_key TEXT, seal_key TEXT NOT NULL,
    healthy BOOLEAN NOT NULL DEFAULT true,
    probed BOOLEAN NOT NULL DEFAULT true, -- whether what is wrong with it can be found out by asking it
    checks INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS blacklisted (url TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS delivery ( -- by the id of its chain, for as long as it is not done
    id TEXT PRIMARY KEY, target TEXT NOT NULL, method TEXT, attempts INTEGER NOT NULL DEFAULT 0, attempted_at TEXT
);
CREATE TABLE IF NOT EXISTS follow (id TEXT PRIMARY KEY, state TEXT NOT NULL);
"""


@dataclass(frozen=True)
class Server:
    """A row of the table."""

    url: str
    verify_key: str | None
    seal_key: str
    healthy: bool
    probed: bool


class App:
    """An application with a database of its own, of which several processes may have a connection each."""

    def __init__(
        self,
        database: str | Path = ":memory:",
        *,
        own_url: str | None = "https://here.example",
        proxy: str | None = None,
        minute: float = 60.0,
    ) -> None:
        self.own_url = own_url
        self.proxy = proxy
        """Through which servers are asked that cannot be reached otherwise."""
        self.minute = minute
        self.keys = OwnKeys()
        self.heard: list[str] = []
        self._lock = threading.Lock()
        self._database = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
        self._database.executescript(TABLES)

    def rows(self, statement: str, *values: object) -> list[Any]:
        """Run a statement, which commits by itself. From any thread."""
        with self._lock:
            return self._database.execute(statement, values).fetchall()

    def close(self) -> None:
        self._database.close()

    # --- what workers tell ---

    def emit(self, event: Event) -> None:
        """Hear of what workers do."""
        if isinstance(event, WorkerStarted):
            self.heard.append("a worker is ready")
        elif isinstance(event, AttemptRetried):
            left = MOST_ATTEMPTS - event.attempt
            what = f"{event.job_id}{self._described(event.job_id)}"
            self.heard.append(f"{what}: attempt {event.attempt} failed, {left} are left: {event.error}")
        elif isinstance(event, AttemptFailed):
            self.heard.append(f"{event.job_id}{self._described(event.job_id)}: failed for good: {event.error}")
        elif isinstance(event, AttemptCompleted):
            self.forget(event.job_id)
        elif isinstance(event, StoreCallFailed | LoopFailed):
            self.heard.append(f"the worker is in trouble: {event.error}")

    def _described(self, delivery: str) -> str:
        return "".join(
            f" ({method} to {target})"
            for method, target in self.rows("SELECT method, target FROM delivery WHERE id = ?", delivery)
        )

    # --- deliveries ---

    def forget(self, delivery: str) -> None:
        self.rows("DELETE FROM delivery WHERE id = ?", delivery)

    def drop(self, delivery: str, reason: str) -> Unrecoverable:
        """The delivery is not valid: nothing of it is kept but the failed job."""
        self.forget(delivery)
        return Unrecoverable(reason)

    def note_attempt(self, delivery: str) -> None:
        self.rows(
            "UPDATE delivery SET attempts = attempts + 1, attempted_at = datetime('now') WHERE id = ?",
            delivery,
        )

    # --- other servers ---

    def add_server(self, url: str, keys: dict[str, str]) -> None:
        """One with these public keys; the one to verify its signatures may be missing."""
        values = (url, keys.get("verify"), keys["seal"])
        self.rows("INSERT INTO server (url, verify_key, seal_key) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", *values)

    def known_server(self, url: str) -> Server | None:
        found = self.rows("SELECT url, verify_key, seal_key, healthy, probed FROM server WHERE url = ?", url)
        return Server(*found[0]) if found else None

    def server(self, url: str) -> Server:
        """One that is known, or that lets itself be discovered."""
        if self.known_server(url) is None:
            self.add_server(url, json.loads(requested(f"{url}/discover", timeout=PROBE_TIMEOUT, proxy=self.proxy)))
        known = self.known_server(url)
        assert known is not None
        return known

    def count_failed_check(self, url: str) -> int:
        """In one statement: two workers that check at once count two."""
        counted = self.rows("UPDATE server SET checks = checks + 1 WHERE url = ? RETURNING checks", url)
        return int(counted[0][0])

    def mark_healthy(self, url: str) -> None:
        self.rows("UPDATE server SET healthy = true, checks = 0 WHERE url = ?", url)


# --- delivery ---------------------------------------------------------------------------------------------------------


async def start_delivery(
    client: AsyncClient, app: App, job_type: JobType[Delivery, str], delivery: Delivery, *, id: str
) -> AsyncChain[str]:
    """Have something delivered, and note it until that is done."""
    values = (id, delivery.target, method_of(delivery.payload))
    app.rows("INSERT INTO delivery (id, target, method) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", *values)
    return await client.start_chain(job_type, delivery, id=id)


def processors_of(app: App, *, base: float = 5.0) -> Processors:
    """The handlers, for an application. ``base`` is the first pause, in seconds."""
    processors = Processors(
        job_types,
        retry=RetryPolicy(max_attempts=MOST_ATTEMPTS, initial_delay=base, multiplier=2, max_delay=base * 8, jitter=0),
        retention=Retention(completed=Keep(age=86_400), failed=Keep(age=604_800)),
    )

    @processors.handles(follow)
    @processors.handles(post)
    def deliver(attempt: Attempt[Delivery, str]) -> Outcome[str]:
        job, delivery = attempt.input, attempt.job_id
        if method_of(job.payload) not in METHODS:
            raise app.drop(delivery, "the payload has no method that we know")
        if app.rows("SELECT url FROM blacklisted WHERE url = ?", job.server):
            raise app.drop(delivery, "the server is blacklisted")
        server = app.server(job.server)
        app.note_attempt(delivery)
        if app.own_url is None:
            raise Unrecoverable("we have no address of our own")
        headers = {"x-from": app.own_url, "x-signature": app.keys.signature(job.payload)}
        message = sealed(server.seal_key, job.payload)
        ack = acknowledged(requested(job.target, message, headers=headers, timeout=DELIVERY_TIMEOUT, proxy=app.proxy))
        return follow_acknowledged(app, delivery, server.url, ack) if attempt.type == follow.name else "delivered"

    @processors.handles(health, retry=RetryPolicy(max_attempts=1))
    def check(attempt: Attempt[Probe, str]) -> Outcome[str]:
        probe = attempt.input
        server = app.known_server(probe.server)
        if server is None or server.healthy:
            return "nothing to do"
        if not server.probed:
            return "not to be found out by asking"
        try:
            requested(f"{probe.server}/discover", timeout=PROBE_TIMEOUT)
        except OSError:
            checks = app.count_failed_check(probe.server)
        else:
            app.mark_healthy(probe.server)
            return "healthy"
        if checks >= MOST_HEALTH_CHECKS:
            app.heard.append(f"given up after {checks} checks")
            return "given up"
        again = Probe(server=probe.server, attempt=probe.attempt + 1)
        return attempt.continue_with(health, again, run_at=after(seconds=pause_before(app, again.attempt)))

    return processors


def method_of(payload: str) -> str | None:
    """What a payload asks for; None if it is not an object that says so."""
    try:
        parsed = json.loads(payload)
    except ValueError:
        return None
    method = parsed.get("method") if isinstance(parsed, dict) else None
    return method if isinstance(method, str) else None


def requested(
    url: str,
    message: str | None = None,
    *,
    headers: dict[str, str] | None = None,
    timeout: float,
    proxy: str | None = None,
) -> str:
    """The body of an answer, through the proxy where the server cannot be reached directly.

    Another status than OK, no connection, and no answer in time are errors that pass (OSError).
    """
    failure = OSError("not asked")
    for route in [{}] if proxy is None else [{}, {"http": proxy, "https": proxy}]:
        request = urllib.request.Request(url, None if message is None else message.encode(), headers or {})
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler(route)).open(
                request, timeout=timeout
            ) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            error.close()
            raise OSError(f"the server answers {error.code}") from None
        except OSError as error:
            failure = error
    raise failure


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


def follow_acknowledged(app: App, delivery: str, server: str, ack: dict[str, Any]) -> str:
    """Note what the other server says of our follow."""
    if not isinstance(ack.get("follow"), str):
        raise app.drop(delivery, "the acknowledgement names no follow")
    # Read anew: the server may have published it since the delivery began.
    known = app.known_server(server)
    if known is None or known.verify_key is None:
        raise Unrecoverable("the server has no key to verify the acknowledgement with")
    if not verified(known.verify_key, ack["follow"], ack.get("signature")):
        raise Unrecoverable("the acknowledgement is not signed by the server")
    outcome = "accepted" if ack.get("accepted") is True else "acknowledged"
    noted = app.rows("UPDATE follow SET state = ? WHERE id = ? RETURNING state", outcome, ack["follow"])
    return outcome if noted else "ignored"


# --- health checks ----------------------------------------------------------------------------------------------------


def health_check_id(server: str) -> str:
    """One for each address, in characters that are safe anywhere."""
    return f"health-{hashlib.sha256(server.encode()).hexdigest()[:16]}"


def pause_before(app: App, attempt: int) -> float:
    """Seconds."""
    return (5 + attempt * 10) * app.minute


async def schedule_health_check(client: AsyncClient, app: App, server: str) -> AsyncChain[str]:
    """One chain for each server; it is gone a minute after it has ended, however it did: until then it is answered."""
    return await client.start_chain(
        health,
        Probe(server=server),
        id=health_check_id(server),
        attach=True,
        run_at=after(seconds=pause_before(app, 0)),
        result_ttl=KEPT_CHECKS,
    )


# --- the program ------------------------------------------------------------------------------------------------------


async def main() -> None:
    app = App(minute=0.0001)
    app.rows("INSERT INTO follow VALUES ('ada-bob', 'requested')")
    processors = processors_of(app, base=0.01)
    url = os.environ["QUEUERT_URL"]
    down, bad = (503, ""), (500, "")
    with peer(inbox=[bad, bad, ACCEPTED], discover=[DISCOVERED, down, down, DISCOVERED, down]) as server:
        client = AsyncClient.from_url(url, job_types, observability=app)
        async with client, InProcessWorker(client, processors, concurrency=10):
            target = f"{server}/inbox"
            good = Delivery(target=target, server=server, payload='{"method": "FEDERATE"}')
            delivered = await start_delivery(client, app, follow, good, id="abc-123")
            print(await delivered.result(timeout=30), app.rows("SELECT id, state FROM follow"))

            bad_one = good.model_copy(update={"payload": '{"method": 42}'})
            chain = await (await start_delivery(client, app, post, bad_one, id="abc-124")).wait(30)
            print(f"{chain.status} after {(await client.get_job(chain.id)).attempt} attempt")

            for _ in range(2):
                app.rows("UPDATE server SET healthy = false WHERE url = ?", server)
                checks = [await schedule_health_check(client, app, server) for _ in range(3)]
                print(await checks[0].result(timeout=30), [check.deduplicated for check in checks])
                await client.delete_chain(checks[0])
            await client.delete_chains(["abc-123", "abc-124"])  # so that this program can be run again
    print("\n".join(app.heard).replace(server, "http://remote.example"))
    print(f"deliveries that are not done: {app.rows('SELECT id FROM delivery')}")
    app.close()


if __name__ == "__main__":
    asyncio.run(main())
