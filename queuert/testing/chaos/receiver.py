"""A receiver of webhooks on loopback, which answers as faults say, and a place beside it that no request may reach."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from queuert.client import Client
from queuert.errors import QueuertError
from queuert.event_log import EventFilter
from queuert.state.adapter import StateAdapter
from queuert.state.paging import PageRequest
from queuert.state.webhooks import DISPATCHER, DISPATCHER_CURSOR
from queuert.testing.chaos.fleet import Missed
from queuert.testing.chaos.records import Records
from queuert.testing.chaos.workload import JOB_TYPES, LOOPBACK, WITH_WEBHOOK
from queuert.webhooks import WebhookVerificationError, verify

_LATE = 1.5
"""Seconds after which a slow receiver answers: workers have given up by then."""
_CLOCKS = 86_400.0
"""Seconds by which the clocks of workers may be wrong."""
_BUSY = 15.0
_UP = "up"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    receiver: Receiver

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: senders are killed, and hang up."""


class _Elsewhere(_Server):
    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Record the connection, and refuse it."""
        self.receiver.records.add(place="elsewhere")
        return False


class _Door(_Server):
    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Refuse connections while the receiver is down."""
        return self.receiver.mode != "down"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        """Record a delivery, and then answer it."""
        server = self.server
        assert isinstance(server, _Server)
        server.receiver.answer(self)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class Receiver:
    """The receiver of a run. It writes a record for each request before it answers it."""

    def __init__(self, directory: Path) -> None:
        self.records = Records(directory / "receiver.jsonl")
        self.mode = _UP
        self._log = directory / "deliveries.jsonl"
        self._secret = ""
        self._webhook = ""
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._servers = [_Door((LOOPBACK, 0), _Handler), _Elsewhere((LOOPBACK, 0), _Handler)]
        for server in self._servers:
            server.receiver = self
            threading.Thread(
                target=server.serve_forever, args=(0.1,), name="queuert-chaos-receiver", daemon=True
            ).start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._servers[0].server_address[1])

    def subscribe(self, state: StateAdapter) -> None:
        """Make the webhook, before the first chain of the run is started."""
        self._client = Client(state, JOB_TYPES, observability=self, max_connections=2)
        url = f"http://{LOOPBACK}:{self.port}/hook"
        made = self._client.create_webhook(url, events=["chain.completed"], job_types=sorted(WITH_WEBHOOK))
        self._webhook, self._secret = made.webhook.id, made.secret

    def emit(self, event: object) -> None:
        """Drop an event of the client."""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Record a request, and answer it as the mode says."""
        mode = self.mode
        body = request.rfile.read(int(request.headers.get("content-length", "0")))
        verified, data = 1, {}
        try:
            data = dict(verify(body, dict(request.headers), self._secret, tolerance=_CLOCKS).data)
        except WebhookVerificationError:
            verified = 0
        if mode == "slow":
            time.sleep(_LATE)
        status = {"500": 500, "redirect": 307}.get(mode, 204)
        self.records.add(
            place="receiver",
            delivery_id=request.headers.get("webhook-id"),
            chain_id=data.get("chain_id"),
            status=status,
            verified=verified,
        )
        request.send_response(status)
        if mode == "redirect":
            request.send_header("location", f"http://{LOOPBACK}:{self._servers[1].server_address[1]}/hook")
        request.end_headers()

    @contextmanager
    def answering(self, mode: str) -> Iterator[None]:
        """Answer in another way during the block.

        Raises:
            Missed: another fault is at it.
        """
        if not self._lock.acquire(timeout=_BUSY):
            raise Missed("the receiver of webhooks is busy")
        try:
            self.mode = mode
            yield
        finally:
            self.mode = _UP
            self._lock.release()

    @property
    def unread(self) -> bool:
        """Whether there are events from which deliveries are still to be made, or the store does not answer."""
        assert self._client is not None
        try:
            store = self._client._open_store()
            [record] = store.get_webhook_records(DISPATCHER, [DISPATCHER_CURSOR])
            page = PageRequest(1, json.loads(record.body)["cursor"], oldest_first=True)
            return bool(store.list_events(EventFilter(), page).items)
        except QueuertError:
            return True

    def finish(self) -> None:
        """Write down the log of deliveries, and disconnect."""
        assert self._client is not None
        records, cursor = Records(self._log), None
        while True:
            page = self._client.list_webhook_deliveries(self._webhook, limit=1_000, cursor=cursor)
            for one in page:
                records.add(delivery_id=one.delivery_id, attempt=one.attempt, status=one.status, error=one.error)
            cursor = page.next_cursor
            if cursor is None:
                break
        records.close()
        self._client.close()

    def close(self) -> None:
        """Stop listening."""
        for server in self._servers:
            server.shutdown()
            server.server_close()
        if self._client is not None:
            with suppress(Exception):
                self._client.close()
        self.records.close()
