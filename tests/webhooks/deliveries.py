"""A client, workers that deliver webhooks, and a receiver."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from queuert import Attempt, InProcessWorker, JobType, JobTypes, Outcome
from queuert.state.adapter import StateAdapter
from queuert.state.webhooks import WebhookAttempt
from queuert.testing.clock import times_of
from queuert.webhooks import NewWebhook, TargetPolicy, verify
from queuert.webhooks.endpoints import DELIVERY_TYPE
from queuert.worker.webhooks import WebhookSettings, webhook_processors
from tests.support.harness import Harness
from tests.support.receiver import Receiver
from tests.support.waiting import START

double = JobType("double", input=int, output=int)
other = JobType("other", input=int, output=int)


class Deliveries(Harness):
    """The harness with webhooks. Jobs with a negative input fail."""

    def __init__(self, state: StateAdapter, receiver: Receiver) -> None:
        super().__init__(state, job_types=JobTypes(double, other), poll_interval=1.0)
        self.receiver = receiver
        self.handles(double, _doubled)
        self.handles(other, _doubled)

    def settings(self, **changes: Any) -> WebhookSettings:
        """Settings that allow the receiver."""
        targets = TargetPolicy(
            allow_http=True, allow_ports=[self.receiver.port], allow_networks=["127.0.0.0/8"], timeout=5.0
        )
        return WebhookSettings(**{"targets": targets, "interval": 0.05, **changes})

    async def work(self, settings: WebhookSettings | None = None) -> InProcessWorker:
        """Start a worker that does the jobs and delivers."""
        groups = [self.processors, webhook_processors(self.client, settings or self.settings())]
        worker = self.worker(groups, concurrency=8)
        await worker.start()
        return worker

    async def webhook(self, **settings: Any) -> NewWebhook:
        """Make a webhook of the receiver."""
        return await self.client.create_webhook(self.receiver.url, **settings)

    async def attempts(self, webhook: str) -> list[WebhookAttempt]:
        """The log of deliveries, the newest first."""
        return list(await self.client.list_webhook_deliveries(webhook, limit=1_000))

    async def attempted(self, webhook: str, count: int) -> list[WebhookAttempt]:
        """Wait until the log has so many attempts."""
        return list(await self.until(lambda: self.attempts(webhook), lambda found: len(found) >= count))

    async def until(self, read: Callable[[], Any], fits: Callable[[Any], bool]) -> Any:
        """Read again and again until what is read fits."""
        async with asyncio.timeout(START):
            while not fits(found := await read()):  # noqa: ASYNC110  (nobody tells)
                await asyncio.sleep(0.05)
        return found

    def received(self, secret: str) -> list[dict[str, Any]]:
        """What was received, each verified by a secret."""
        found = []
        for one in self.receiver.requests:
            webhook = verify(one.body, one.headers, secret, tolerance=3_600.0)
            assert webhook.id == one.headers["webhook-id"]
            found.append(dict(json.loads(one.body)))
        return found

    def pass_time(self, seconds: float) -> None:
        """Let time pass for the jobs in the store."""
        times_of(self.state).shift(seconds, leases=False)

    async def scheduled(self, least: int = 1) -> list[str]:
        """Wait until so many deliveries wait for their next attempt; return their ids."""

        async def read() -> list[str]:
            page = await self.client.list_jobs(job_types=[DELIVERY_TYPE], statuses=["scheduled"], limit=1_000)
            return [job.id for job in page]

        return list(await self.until(read, lambda found: len(found) >= least))

    async def due(self, least: int = 1) -> None:
        """Make the deliveries due that wait for their next attempt."""
        await self.client.trigger_jobs(await self.scheduled(least))


async def _doubled(attempt: Attempt[int, int]) -> Outcome[int]:
    return attempt.fail("below zero") if attempt.input < 0 else 2 * attempt.input
