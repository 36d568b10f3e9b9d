"""A small HTTP server in threads of its own, for probes and scrapes: it answers while the event loop is blocked."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias
from urllib.parse import urlsplit

from queuert.errors import ConfigurationError

_log = logging.getLogger("queuert.observability")

_SLOWEST = 10.0
"""Seconds after which a connection is closed whose client sends or reads nothing."""

TEXT = "text/plain; charset=utf-8"

ALL_ADDRESSES = "0.0.0.0"
"""Probes and scrapes come from other machines, or from the node of a container."""


class Response(NamedTuple):
    """What a path answers."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT


Route: TypeAlias = Callable[[str | None], Response]
"""Makes the answer, given the Accept header of the request. Called in a thread."""


def health_response(reasons: tuple[str, ...]) -> Response:
    """200, or 503 with the reasons, one a line."""
    status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
    return Response(status, "".join(f"{line}\n" for line in reasons or ("ok",)).encode())


class HttpServer:
    """Answers GET and HEAD on some paths; any other path is 404.

    It has no TLS and no authentication, like the servers of Prometheus's own clients: let only probes and Prometheus
    reach its port.

    Args:
        routes: the answers, by path.
        host: the address to listen on; ``0.0.0.0`` is all of IPv4.
        port: the port; 0 lets the system choose one, which is then ``port``.

    Raises:
        ConfigurationError: the address cannot be listened on; the message says why.
    """

    def __init__(self, routes: Mapping[str, Route], *, host: str, port: int) -> None:
        try:
            self._server = _Server((host, port), _handler(routes))
        except (OSError, OverflowError) as error:
            raise ConfigurationError(f"cannot listen on {host}:{port}: {error}; choose another port") from error
        self.port: int = self._server.server_address[1]
        """The port that it listens on."""
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, name="queuert-http", daemon=True
        )

    def __enter__(self) -> Self:
        try:
            self._thread.start()
        except BaseException:
            self._server.server_close()  # The port is another server's to take: nobody leaves a block not entered.
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""
        _log.debug("a request from %s failed", client_address, exc_info=True)


def _handler(routes: Mapping[str, Route]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _SLOWEST
        server_version = "queuert"
        sys_version = ""

        def do_GET(self) -> None:
            response = self._response()
            self.send_response(response.status)
            self.send_header("Content-Type", response.content_type)
            self.send_header("Content-Length", str(len(response.body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(response.body)

        do_HEAD = do_GET  # noqa: N815

        def _response(self) -> Response:
            route = routes.get(urlsplit(self.path).path)
            if route is None:
                known = ", ".join(sorted(routes))
                return Response(HTTPStatus.NOT_FOUND, f"the path must be one of {known}\n".encode())
            try:
                return route(self.headers.get("Accept"))
            except Exception:
                _log.exception("the answer to %s could not be made", self.path)
                return Response(HTTPStatus.INTERNAL_SERVER_ERROR, b"failed: see the log of this process\n")

        def log_message(self, format: str, *args: object) -> None:
            """Probes come every few seconds: they are for the lowest level."""
            _log.debug("http: " + format, *args)

    return Handler
