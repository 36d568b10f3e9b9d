"""``queuert web``, as a process of its own."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from queuert import AsyncClient, JobTypes, PostgresState
from queuert.cli import main
from queuert.web import StreamTokens
from tests.support.job_types import number

TOKEN = "operator-" + "0" * 20
SECRET = "secret-" + "0" * 32
HEADERS = {"Authorization": f"Bearer {TOKEN}"}

JOBS = """
from queuert import JobType, JobTypes
from queuert.web import READ_ACCESS

number = JobType("number", input=int, output=int)
job_types = JobTypes(number)


def everybody(request):
    return READ_ACCESS
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "web_jobs.py").write_text(JOBS, encoding="utf-8")
    return tmp_path


Serve = Callable[..., tuple[subprocess.Popen[str], str]]


@pytest.fixture
def serve(directory: Path) -> Iterator[Serve]:
    """Starts the command, and waits until it listens."""
    processes: list[subprocess.Popen[str]] = []

    def start(
        *options: str, token: str | None = TOKEN, environment: Mapping[str, str] | None = None
    ) -> tuple[subprocess.Popen[str], str]:
        variables = {**os.environ, "QUEUERT_URL": "sqlite:///jobs.db", **(environment or {})}
        if token is not None:
            variables["QUEUERT_WEB_TOKEN"] = token
        command = [sys.executable, "-m", "queuert", "web", "web_jobs:job_types", "--port", "0", *options]
        process = subprocess.Popen(command, cwd=directory, env=variables, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := re.search(r"serving on 127.0.0.1, port (\d+)", line):
                return process, f"http://127.0.0.1:{found[1]}"
        pytest.fail("".join(lines))

    yield start
    for process in processes:
        with suppress(ProcessLookupError):
            process.kill()
        process.communicate()


async def test_the_dashboard_is_beside_the_interface(serve: Serve) -> None:
    _, address = serve("--environment", "staging")
    async with httpx.AsyncClient(base_url=address, timeout=60, follow_redirects=True) as browser:
        assert "Log in" in (await browser.get("/dashboard/chains")).text
        page = await browser.post("/dashboard/login", data={"token": TOKEN, "next": "/chains"})
        assert "No chains." in page.text
        assert "staging" in page.text
        assert (await browser.get("/dashboard/static/dashboard.css")).status_code == 200
        # The cookie is for the paths of the dashboard alone.
        assert (await browser.get("/chains")).status_code == 401


async def test_it_serves_with_a_token_and_ends_waits_when_it_stops(serve: Serve) -> None:
    process, address = serve()
    async with httpx.AsyncClient(base_url=address, headers=HEADERS, timeout=60) as web:
        assert (await web.get("/chains", headers={"Authorization": ""})).status_code == 401
        started = await web.post("/chains", json={"type": "number", "input": 1})
        assert started.status_code == 201
        result = started.json()["links"]["result"]
        waiting = asyncio.create_task(web.get(result, params={"wait": 50}))
        # A second request that is answered shows that the first one was received.
        assert (await web.get(result)).status_code == 202
        process.send_signal(signal.SIGTERM)
        assert (await waiting).status_code == 202
    assert await asyncio.to_thread(process.wait, 30) == 0


async def test_it_serves_below_the_path_of_a_proxy_with_a_function_of_the_application(serve: Serve) -> None:
    process, address = serve("--root-path", "/ops/queue/", "--access", "web_jobs:everybody", token=None)
    async with httpx.AsyncClient(base_url=address) as web:
        assert (await web.get("/")).json()["chains"] == "/ops/queue/chains"
        assert (await web.get("/chains")).json() == {"items": [], "next_cursor": None}
        assert (await web.post("/chains", json={"type": "number", "input": 1})).status_code == 403
    process.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(process.wait, 30) == 0


async def test_streams_end_when_it_stops(serve: Serve, dsn: str) -> None:
    process, address = serve("--url", dsn, environment={"QUEUERT_WEB_STREAM_SECRET": f"{'0' * 32},{SECRET}"})
    async with AsyncClient(PostgresState(dsn), JobTypes(number)) as client:
        await client.start_chain(number, 1, id="mine")
    token = StreamTokens(SECRET).sign("mine")
    async with (
        httpx.AsyncClient(base_url=address, timeout=60) as web,
        web.stream("GET", "/chains/mine/events", params={"token": token}) as response,
    ):
        assert response.status_code == 200
        chunks = response.aiter_raw()
        seen = b""
        while b"event: state" not in seen:
            seen += await anext(chunks)
        process.send_signal(signal.SIGTERM)
        async for _ in chunks:
            pass
    assert await asyncio.to_thread(process.wait, 30) == 0


@pytest.mark.parametrize(
    ("options", "token", "message"),
    [
        ([], None, "nobody would have access: set QUEUERT_WEB_TOKEN"),
        ([], "short", "16 characters or more"),
        (["--access", "web_jobs:everybody"], TOKEN, "exclude each other"),
        (["--access", "web_jobs:job_types"], None, "must name a function, got JobTypes"),
        (["--access", "web_jobs:nobody"], None, "has no attribute 'nobody'"),
        (["--root-path", "queue"], TOKEN, "--root-path must begin with a slash"),
        (["--host", "256.0.0.1"], TOKEN, "cannot listen on 256.0.0.1:8080"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_served(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    token: str | None,
    message: str,
) -> None:
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.setenv("QUEUERT_URL", "sqlite:///jobs.db")
    if token is not None:
        monkeypatch.setenv("QUEUERT_WEB_TOKEN", token)
    assert main(["web", "web_jobs:job_types", *options]) == 2
    assert message in capsys.readouterr().err
