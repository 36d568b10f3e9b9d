"""The server for probes and scrapes."""

from __future__ import annotations

import http.client
import logging
import threading
from collections.abc import Iterator
from http import HTTPStatus

import pytest

from queuert.errors import ConfigurationError
from queuert.observability.http import HttpServer, Response, health_response


def broken(accept: str | None) -> Response:
    raise LookupError("no answer")


@pytest.fixture
def server() -> Iterator[HttpServer]:
    """A server with some routes."""
    routes = {
        "/live": lambda accept: health_response(()),
        "/ready": lambda accept: health_response(("it starts", "it is slow")),
        "/accept": lambda accept: Response(HTTPStatus.OK, str(accept).encode()),
        "/broken": broken,
    }
    with HttpServer(routes, host="127.0.0.1", port=0) as server:
        yield server


def ask(server: HttpServer, path: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


def test_healthy(server: HttpServer) -> None:
    status, body, headers = ask(server, "/live?verbose=1")
    assert (status, body) == (200, "ok\n")
    assert headers["Content-Type"] == "text/plain; charset=utf-8"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Server"].strip() == "queuert"


def test_unhealthy_says_why(server: HttpServer) -> None:
    assert ask(server, "/ready")[:2] == (503, "it starts\nit is slow\n")


def test_head_has_no_body(server: HttpServer) -> None:
    status, body, headers = ask(server, "/ready", "HEAD")
    assert (status, body, headers["Content-Length"]) == (503, "", "21")


def test_the_accept_header_is_passed_on(server: HttpServer) -> None:
    assert ask(server, "/accept", Accept="text/html")[1] == "text/html"
    assert ask(server, "/accept")[1] == "None"


def test_other_paths_and_methods(server: HttpServer) -> None:
    status, body, _ = ask(server, "/")
    assert (status, body) == (404, "the path must be one of /accept, /broken, /live, /ready\n")
    assert ask(server, "/live", "POST")[0] == 501


def test_an_error_is_logged_and_not_shown(server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "queuert.observability"):
        status, body, _ = ask(server, "/broken")
    assert (status, body) == (500, "failed: see the log of this process\n")
    assert "no answer" in caplog.text


def test_a_port_that_is_taken(server: HttpServer) -> None:
    with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{server.port}: .*choose another port"):
        HttpServer({}, host="127.0.0.1", port=server.port)


def test_a_server_whose_thread_cannot_start_leaves_its_port(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    first = HttpServer({}, host="127.0.0.1", port=0)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"), first:
            pass
    assert first._server.socket.fileno() == -1
