"""Another server on this machine, to which ``federation_delivery`` delivers: it answers as configured."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import urlsplit

from examples.delivery_keys import OwnKeys


class Peer(BaseHTTPRequestHandler):
    """Answers with what it was told to: a status and a body, one after the other, the last one for ever."""

    answers: ClassVar[dict[str, deque[tuple[int, str]]]] = {}
    received: ClassVar[list[tuple[str, str, str]]] = []
    """What was asked for, as it was named; the signature; the message."""

    def do_GET(self) -> None:
        self._answer("")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])).decode())

    def _answer(self, message: str) -> None:
        self.received.append((self.path, self.headers.get("x-signature", ""), message))
        answers = self.answers[urlsplit(self.path).path]  # A proxy is asked for a whole address.
        status, body = answers.popleft() if len(answers) > 1 else answers[0]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None:
        return


@contextmanager
def peer(received: list[tuple[str, str, str]] | None = None, /, **answers: list[tuple[int, str]]) -> Iterator[str]:
    """A server on this machine, by its address; ``inbox`` and ``discover`` are what it answers there."""
    reported = {f"/{path}": deque(given) for path, given in answers.items()}
    own = type("OwnPeer", (Peer,), {"answers": reported, "received": [] if received is None else received})
    with ThreadingHTTPServer(("127.0.0.1", 0), own) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


THEIRS = OwnKeys()
DISCOVERED = (200, json.dumps(THEIRS.published))
ACCEPTED = (
    200,
    json.dumps({"ack": {"follow": "ada-bob", "accepted": True, "signature": THEIRS.signature("ada-bob")}}),
)
