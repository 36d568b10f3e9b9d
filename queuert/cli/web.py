"""``queuert web``: serves chains over HTTP and the dashboard, as a process of its own."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, cast

from queuert.cli import logs
from queuert.cli.application import attribute_of, load_job_types
from queuert.cli.exit_codes import Exit, PrerequisiteError, UsageError
from queuert.cli.options import Commands, add_command, database_options, port, store
from queuert.client import AsyncClient
from queuert.urls import state_from_url

if TYPE_CHECKING:
    from queuert.web import StreamTokens, WebApp
    from queuert.web.access import AccessCallback
    from queuert.web.dashboard import DashboardApp

_log = logging.getLogger("queuert.web")

ACCESS_VARIABLE = "QUEUERT_WEB_TOKEN"
"""The environment variable with the token."""

STREAM_VARIABLE = "QUEUERT_WEB_STREAM_SECRET"
"""The environment variable with the secret of stream tokens."""

_DESCRIPTION = f"""Serve chains over HTTP, and the dashboard under /dashboard, until SIGTERM or
Ctrl-C; needs queuert[web].

MODULE:ATTRIBUTE names the job types of which chains can be started: a
JobTypes, a Processors, a sequence of them, or an InProcessWorker. No handler
runs here.

Requests with the header "Authorization: Bearer TOKEN" may do everything, if
TOKEN is what ${ACCESS_VARIABLE} has; browsers log in with it. With --access
your own function decides instead. Stream tokens are signed with
${STREAM_VARIABLE}, if set.
"""

_GRACE = 10
"""Seconds that open requests have to finish when the server stops. Those that wait for a result are ended at once."""


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "web",
        run,
        help="serve chains over HTTP, and the dashboard",
        description=_DESCRIPTION,
        parents=[debug, database_options()],
        exit_codes={Exit.DONE: "stopped by a signal"},
    )
    parser.add_argument("job_types", metavar="MODULE:ATTRIBUTE", help="the job types, such as app.jobs:job_types")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=port, default=8080, metavar="PORT", help="port to listen on (default: 8080)")
    parser.add_argument(
        "--access",
        metavar="MODULE:FUNCTION",
        help="the function that takes a request and returns its queuert.web.Access",
    )
    parser.add_argument(
        "--root-path", default="", metavar="PATH", help="the path that a proxy has cut from requests, such as /queue"
    )
    parser.add_argument(
        "--environment", default="", metavar="NAME", help="shown on each page of the dashboard, such as production"
    )
    parser.add_argument(
        "--database",
        action="append",
        default=[],
        type=_named_address,
        metavar="NAME=ADDRESS",
        help="the dashboard shows this database as well; may be repeated",
    )
    parser.add_argument(
        "--trace-url",
        metavar="URL",
        help="where the dashboard leads for a trace: https://tempo.example/trace/{trace_id}",
    )
    parser.add_argument("--log-level", choices=logs.LEVELS, help="lowest level that is logged (default: info)")
    parser.add_argument("--log-json", action="store_true", help="log JSON, one object per line")


_FIRST = "main"
"""The name of the database of --url, where the dashboard shows several."""

_CONNECTIONS = 4
"""Connections of the dashboard to each database, apart from those of requests."""


def _named_address(text: str) -> tuple[str, str]:
    """The name and the address of a database."""
    name, equals, address = text.partition("=")
    if not equals or not name or not address:
        raise argparse.ArgumentTypeError(f"must be NAME=ADDRESS, got {text!r}")
    return name, address


def run(args: argparse.Namespace) -> int:
    """Serve until a signal."""
    try:
        from queuert.web import WebApp
        from queuert.web.dashboard import DashboardApp
    except ModuleNotFoundError as error:
        raise PrerequisiteError(f"queuert web: {error}") from error
    if args.root_path and not args.root_path.startswith("/"):
        raise UsageError(f"--root-path must begin with a slash, got {args.root_path!r}")
    job_types, access, tokens = load_job_types(args.job_types), _access(args.access), _stream_tokens()
    logs.configure(args.log_level, as_json=args.log_json)

    states = {_FIRST: store(args, application_name="queuert dashboard")}
    for name, address in args.database:
        if name in states:
            raise UsageError(f"--database must have another name each, and not {_FIRST!r}, got {name!r} twice")
        states[name] = state_from_url(address, application_name="queuert dashboard")

    async def serve_until_signal() -> None:
        async with AsyncExitStack() as stack:
            client = AsyncClient(store(args, application_name="queuert web"), job_types)
            await stack.enter_async_context(client)
            shown = {
                name: await stack.enter_async_context(AsyncClient(state, job_types, max_connections=_CONNECTIONS))
                for name, state in states.items()
            }
            dashboard = DashboardApp(
                shown if args.database else shown[_FIRST],
                access=access,
                environment=args.environment,
                trace_url=args.trace_url,
            )
            app = WebApp(client, access=access, stream_tokens=tokens)
            await serve(app, dashboard, args.host, args.port, root_path=args.root_path)

    with without_the_end_of_the_process(), asyncio.Runner() as runner:
        runner.run(serve_until_signal())
    return Exit.DONE


def _access(target: str | None) -> AccessCallback:
    """The function that decides, or the token of the environment.

    Raises:
        UsageError: there is neither, or the function is none.
        ConfigurationError: the token is too short.
    """
    from queuert.web import FULL_ACCESS, bearer_tokens

    token = os.environ.get(ACCESS_VARIABLE)
    if target is None:
        if not token:
            raise UsageError(f"nobody would have access: set {ACCESS_VARIABLE} in the environment, or pass --access")
        return bearer_tokens({token: FULL_ACCESS})
    if token:
        raise UsageError(f"{ACCESS_VARIABLE} and --access exclude each other: remove one")
    found = attribute_of(target)
    if not callable(found):
        raise UsageError(f"--access must name a function, got {type(found).__name__} in {target!r}")
    return cast("AccessCallback", found)


def _stream_tokens() -> StreamTokens | None:
    """What checks stream tokens, if the environment has their secrets.

    Raises:
        ConfigurationError: a secret is too short.
    """
    from queuert.web import StreamTokens

    secrets = os.environ.get(STREAM_VARIABLE)
    return StreamTokens(*secrets.split(",")) if secrets else None


def _log_address(host: str, port: int) -> None:
    _log.info("serving on %s, port %d; the dashboard is at /dashboard/", host, port)


async def serve(
    app: WebApp,
    dashboard: DashboardApp,
    host: str,
    port: int,
    *,
    root_path: str = "",
    announce: Callable[[str, int], None] = _log_address,
) -> None:
    """Serve both until a signal; ``announce`` is called with address and port when it listens.

    Raises:
        UsageError: nothing can listen there.
    """
    import uvicorn
    from starlette.routing import Mount, Router

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            app.stop()
            dashboard.stop()
            super().handle_exit(sig, frame)

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error}; choose another port") from error
    # The access log would have the whole path of each request, with what is secret in its query.
    config = uvicorn.Config(
        Router([Mount("/dashboard", dashboard), Mount("/", app)]),
        root_path=root_path.rstrip("/"),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=_GRACE,
    )
    with listening:
        announce(*listening.getsockname()[:2])
        await Server(config).serve(sockets=[listening])


@contextmanager
def without_the_end_of_the_process() -> Iterator[None]:
    """uvicorn stops on a signal, and then raises it again, for the handlers that there were before."""
    before = {one: signal.signal(one, lambda *_: None) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
