"""``queuert dev dashboard``: the dashboard of a shop whose jobs succeed, fail, wait and limp."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from queuert.cli import logs
from queuert.cli.exit_codes import Exit, PrerequisiteError
from queuert.cli.options import URL_VARIABLE, Commands, add_command, port, positive_int
from queuert.cli.web import serve, without_the_end_of_the_process
from queuert.client import AsyncClient
from queuert.embedded import EmbeddedPostgres
from queuert.embedded.spawn import spawn
from queuert.embedded.workspace import Workspace

if TYPE_CHECKING:
    from starlette.requests import Request

    from queuert.web import Access

_DESCRIPTION = """Show the dashboard of a shop: orders that are charged, packed and shipped, a
service that is down, a stuck order, a paused newsletter, an approval that
somebody has to give, and workers of which one is killed now and then.

It starts a temporary Postgres server and three workers, and stops them at the
end. Needs queuert[web] and queuert[embedded].
"""

_WORKERS = 3
_PROCESSORS = "queuert.testing.shop.handlers:processors"
_KILL_EVERY = 75.0
"""Seconds between two workers that are killed."""

_AFTER_A_KILL = 10.0
"""Seconds until another worker is started for it."""


def add_to(commands: Commands, debug: argparse.ArgumentParser) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "dashboard",
        run,
        help="show the dashboard of a shop full of jobs",
        description=_DESCRIPTION,
        parents=[debug],
        exit_codes={Exit.DONE: "stopped by a signal"},
    )
    parser.add_argument("--port", type=port, default=8080, metavar="PORT", help="port to listen on (default: 8080)")
    parser.add_argument(
        "--concurrency",
        type=positive_int,
        default=6,
        metavar="N",
        help="concurrency of each worker (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until a signal."""
    from queuert.migrations import upgrade

    try:
        import queuert.web.dashboard  # noqa: F401
    except ModuleNotFoundError as error:
        raise PrerequisiteError(f"queuert dev dashboard: {error}") from error
    logs.configure("warning", as_json=False)
    with without_the_end_of_the_process(), _workspace() as workspace, EmbeddedPostgres() as server:
        dsn = server.dsn()
        upgrade(dsn)
        with asyncio.Runner() as runner:
            runner.run(_show(dsn, workspace, args))
    return Exit.DONE


@contextmanager
def _workspace() -> Iterator[Path]:
    workspace = Workspace(in_memory=False)
    try:
        yield workspace.path
    finally:
        workspace.remove()


async def _show(dsn: str, workspace: Path, args: argparse.Namespace) -> None:
    from queuert.testing.shop import story
    from queuert.testing.shop.job_types import job_types
    from queuert.web import WebApp
    from queuert.web.dashboard import DashboardApp

    fleet = _Fleet(dsn, workspace, args.concurrency)
    async with AsyncClient.from_url(dsn, job_types) as client:
        await story.tell_the_past(client)
        tasks = [asyncio.create_task(story.go_on(client)), asyncio.create_task(fleet.run())]
        dashboard = DashboardApp(client, access=on_this_machine, environment="shop")
        try:
            api = WebApp(client, access=on_this_machine)
            await serve(api, dashboard, "127.0.0.1", args.port, announce=_announce)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            fleet.kill_all()


def _announce(host: str, port: int) -> None:
    print(f"The dashboard: http://{host}:{port}/dashboard/ (Ctrl-C ends it)", flush=True)


def on_this_machine(request: Request) -> Access:
    """Everything, to requests that name this machine: another site's name may be made to lead here."""
    from queuert.web import FULL_ACCESS, NO_ACCESS

    return FULL_ACCESS if request.url.hostname in ("127.0.0.1", "localhost") else NO_ACCESS


class _Fleet:
    """The worker processes, one of which is killed now and then."""

    def __init__(self, dsn: str, workspace: Path, concurrency: int) -> None:
        self._environment = {**os.environ, URL_VARIABLE: dsn}
        self._workspace = workspace
        self._concurrency = concurrency
        self._started = 0
        self._running: list[subprocess.Popen[bytes]] = []

    async def run(self) -> None:
        """Keep the workers running until it is cancelled."""
        for _ in range(_WORKERS):
            await asyncio.to_thread(self._start)
        while True:
            await asyncio.sleep(_KILL_EVERY)
            self._running.pop(0).kill()
            await asyncio.sleep(_AFTER_A_KILL)
            await asyncio.to_thread(self._start)

    def _start(self) -> None:
        self._started += 1
        name = f"shop-{self._started}"
        command = [sys.executable, "-m", "queuert", "worker", _PROCESSORS, "--name", name]
        command += ["--concurrency", str(self._concurrency), "--shutdown-timeout", "2"]
        log = self._workspace / f"{name}.log"
        self._running.append(spawn(command, log=log, death_signal=signal.SIGKILL, environment=self._environment))

    def kill_all(self) -> None:
        """Kill all workers. Idempotent."""
        for process in self._running:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
