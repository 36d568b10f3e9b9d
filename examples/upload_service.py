"""A service that processes uploads: phases, live progress in a browser, the result, and files that go with their jobs.

One process and one file of SQLite. A page takes a file and follows its job with an ``EventSource``, whose address has a
token for this job alone. The job has the phases ``check``, ``compress`` and ``publish``; when one fails, the next
attempt begins with it. Two days after a job has ended it is stale, and a day later it is deleted, with its files.

``make demo ARGS=uploads``, or ``python -m examples.upload_service``, uses the service as a browser does, prints what
happens, and ends after some seconds; with ``--serve`` it waits for your browser. It needs ``pip install 'queuert[web]'
httpx``.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route

from examples.serving import reserved, serving
from queuert import (
    AsyncClient,
    Attempt,
    InProcessWorker,
    JobType,
    JobTypes,
    Keep,
    Processors,
    Retention,
    RetryPolicy,
    Unrecoverable,
)
from queuert.errors import ChainNotFoundError
from queuert.event_log import EventKind
from queuert.state.sqlite import SQLiteState
from queuert.testing.clock import SQLiteTimes
from queuert.web import StreamTokens, WebApp

PAGE = """<!doctype html><meta charset="utf-8"><title>Uploads</title>
<style>body { font: 16px/1.5 sans-serif; max-width: 40rem; margin: 2rem auto } progress { width: 100% }</style>
<h1>Uploads</h1>
<input type="file" id="file"> <progress id="bar" max="1" value="0"></progress>
<ol id="log"></ol>
<script>
const log = (textContent) => {
  document.getElementById("log").append(Object.assign(document.createElement("li"), {textContent}))
}
const read = async (answer) => (await answer).json()
document.getElementById("file").onchange = async (change) => {
  const file = change.target.files[0], name = encodeURIComponent(file.name)
  const upload = await read(fetch("uploads?name=" + name, {method: "POST", body: file}))
  const source = new EventSource(upload.events)  // connects again by itself, and continues where it was
  const end = async () => {
    source.close()
    log(JSON.stringify(await read(fetch(upload.status))))
  }
  source.addEventListener("state", (event) => {  // the chain, at first: perhaps it is closed already
    const chain = JSON.parse(event.data)
    log("state " + chain.status)
    if (chain.status !== "open") end()
  })
  const show = (event) => {  // what happened to a job of the chain
    const happened = JSON.parse(event.data), progress = happened.progress || {}
    if (progress.fraction) document.getElementById("bar").value = progress.fraction
    log(event.type + " " + (progress.phase ? progress.phase.name : ""))
    if (happened.closes_chain) end()
  }
  const kinds = ["started", "phase_started", "progressed", "phase_completed", "retried"]
  for (const kind of [...kinds, "completed", "failed", "cancelled", "lease_expired"]) {
    source.addEventListener(kind, show)
  }
  source.addEventListener("gap", (event) => log("gap " + JSON.parse(event.data).reason))  // some events are lost
  source.onerror = () => source.readyState === EventSource.CLOSED && end()  // nothing follows: 204, 403 or 404
}
</script>"""

MOST_BYTES = 10_000_000


class Upload(BaseModel):
    file: str


class Published(BaseModel):
    file: str
    bytes: int


process = JobType("process_upload", input=Upload, output=Published, phases={"check": 1, "compress": 8, "publish": 1})
job_types = JobTypes(process)
DAY = 86_400.0


class Service:
    """The application: its folder, its queue, and its pages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        state = SQLiteState(folder / "jobs.db")
        self.client = AsyncClient(state, job_types)
        self.times = SQLiteTimes(state)  # lets days pass, for the demo
        self.tokens = StreamTokens(secrets.token_urlsafe(32))
        self.queue = WebApp(self.client, stream_tokens=self.tokens)  # closed, but for these tokens
        self.app = Starlette(routes=[
            Route("/", self.page),
            Route("/uploads", self.upload, methods=["POST"]),
            Route("/uploads/{id}", self.status),
            Route("/uploads/{id}/result", self.result),
            Mount("/queue", self.queue),
        ])  # fmt: skip

    async def page(self, request: Request) -> Response:
        return HTMLResponse(PAGE)

    async def upload(self, request: Request) -> Response:
        """Store a file and start its job."""
        id, size = secrets.token_hex(8), 0
        with (self.folder / id).open("wb") as file:
            async for part in request.stream():
                size += len(part)
                if size > MOST_BYTES:
                    (self.folder / id).unlink()
                    return JSONResponse({"error": f"a file may have {MOST_BYTES} bytes"}, 413)
                file.write(part)
        name = Path(request.query_params.get("name", "file")).name[:100]
        await self.client.start_chain(process, Upload(file=id), id=id, attributes={"name": name})
        events = f"/queue/chains/{id}/events?token={self.tokens.sign(id)}"
        return JSONResponse({"id": id, "events": events, "status": f"/uploads/{id}"}, 201)

    async def status(self, request: Request) -> Response:
        try:
            chain = await self.client.get_chain(request.path_params["id"])
        except ChainNotFoundError:
            return JSONResponse({"error": "there is no such upload"}, 404)
        phases = {phase.name: phase.status for phase in await chain.phases()}
        shown: dict[str, Any] = {"name": chain.attributes["name"], "status": chain.status, "phases": phases}
        if chain.error is not None:
            shown["error"] = chain.error.message
        if chain.stale_at is not None:
            shown["deleted_soon"] = True
        return JSONResponse(shown)

    async def result(self, request: Request) -> Response:
        chain = await self.client.get_chain(request.path_params["id"])
        if chain.output is None:
            return JSONResponse({"error": "there is no result"}, 404)
        return FileResponse(self.folder / chain.output.file)

    # --- the job ---

    def processors(self) -> Processors:
        own = Processors(
            job_types,
            retry=RetryPolicy(max_attempts=3, initial_delay=0.1, jitter=0.0),
            retention=Retention(
                completed=Keep(age=2 * DAY, stale_for=DAY),
                failed=Keep(age=2 * DAY, stale_for=DAY),
                before_delete=self.delete_files,
            ),
        )

        def check(file: Path) -> int:
            size = file.stat().st_size
            if size == 0:
                raise Unrecoverable("the file is empty")
            return size

        async def compress(attempt: Attempt[Upload, Published], file: Path, size: int) -> str:
            with file.open("rb") as source, gzip.open(f"{file}.gz", "wb") as target:
                while part := source.read(max(1, size // 4)):
                    target.write(part)
                    attempt.record_progress(source.tell(), size)
                    if attempt.number == 1 and source.tell() > size // 2:
                        raise OSError("the disk is busy")  # the next attempt begins with this phase
            return f"{file.name}.gz"

        def publish(name: str) -> int:
            return (self.folder / name).stat().st_size

        @own.handles(process)
        async def processing(attempt: Attempt[Upload, Published]) -> Published:
            file = self.folder / attempt.input.file
            size = await attempt.phase("check", check, file, returns=int)
            name = await attempt.phase("compress", compress, attempt, file, size, returns=str)
            return Published(file=name, bytes=await attempt.phase("publish", publish, name, returns=int))

        return own

    def worker(self) -> InProcessWorker:
        return InProcessWorker(self.client, self.processors(), concurrency=2)

    def delete_files(self, chain: Any) -> None:
        """Before a job is deleted: what belongs to it."""
        for file in self.folder.glob(f"{chain.id}*"):
            file.unlink()


# --- a browser, for the demo ------------------------------------------------------------------------------------------


async def events_of(web: httpx.AsyncClient, path: str, after: str | None = None) -> AsyncIterator[tuple[str, str, Any]]:
    """The events of a stream, as an ``EventSource`` reads them: id, kind and data."""
    headers = {} if after is None else {"last-event-id": after}
    async with web.stream("GET", path, headers=headers) as answer:
        answer.raise_for_status()
        fields: dict[str, str] = {}
        async for line in answer.aiter_lines():
            if not line:
                if "data" in fields:
                    yield fields.get("id", ""), fields["event"], json.loads(fields["data"])
                fields = {}
                continue
            name, _, value = line.partition(": ")
            fields[name] = value


def shown(kind: str, data: Any) -> str:
    progress = data.get("progress") or {}
    phase = (progress.get("phase") or {}).get("name")
    if kind != "phase_completed":
        return f"  {kind} {phase}" if phase else f"  {kind}"
    return f"  {kind} {phase}: {progress['fraction']:.0%} of the job"


async def use(service: Service, web: httpx.AsyncClient) -> list[str]:
    """Upload files, follow their jobs, and return their ids."""
    print(f"the page has {'EventSource' in (await web.get('/')).text and 'an EventSource'}")
    upload = (await web.post("/uploads?name=cat.bmp", content=b"cat " * 100_000)).json()
    print("-- an upload; the disk is busy once, and the connection is cut when the job has failed once")
    async with AsyncExitStack() as worker:
        position = ""
        async for position, kind, data in events_of(web, upload["events"]):  # noqa: B007
            if kind != "progressed":  # how many of them there are depends on how fast the machine is
                print(shown(kind, data))
            if kind == "state":
                await worker.enter_async_context(service.worker())  # not before the page is open
            if kind == "retried":
                break
        print("  (cut, and connected again with the id of the last event)")
        async for _, kind, data in events_of(web, upload["events"], position):
            if kind != "progressed":
                print(shown(kind, data))
        print((await web.get(upload["status"])).json())
        result = await web.get(f"{upload['status']}/result")
        print(f"the result unpacks to {len(gzip.decompress(result.content)):,} bytes")
        print("-- bad ones")
        empty = (await web.post("/uploads?name=nothing.bmp", content=b"")).json()
        async for _ in events_of(web, empty["events"]):
            pass  # to its end
        print((await web.get(empty["status"])).json())
    print(f"too large: {(await web.post('/uploads', content=bytes(MOST_BYTES + 1))).status_code}")
    other = f"/queue/chains/{upload['id']}/events?{empty['events'].partition('?')[2]}"
    print(f"the events of one with the token of another: {(await web.get(other)).status_code}")
    print(f"the queue without a token: {(await web.get('/queue/chains')).status_code}")
    return [upload["id"], empty["id"]]


async def grow_old(service: Service, web: httpx.AsyncClient, ids: list[str]) -> None:
    """Let two days pass, and another one: a worker that starts looks at once what is no longer kept."""
    for days, kind in ((2.0, EventKind.STALE), (1.0, EventKind.DELETED)):
        print(f"-- {days:.0f} {'days' if days > 1 else 'day'} later")
        service.times.shift(days * DAY, leases=False)
        waiting = set(ids)
        cursor = await service.client.event_cursor()
        async with service.worker():
            async for event in service.client.follow_events(after=cursor, kinds=[kind]):
                waiting.discard(event.chain_id)
                if not waiting:
                    break
        answer = await web.get(f"/uploads/{ids[0]}")
        print(answer.status_code, answer.json())
    print(f"files that are left: {[file.name for file in service.folder.glob('*') if 'jobs.db' not in file.name]}")


async def main() -> None:
    logging.getLogger("queuert").setLevel(logging.CRITICAL)  # what goes wrong here is meant to
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder))
        on, url = reserved()
        async with service.client, serving(service.app, on):
            if "--serve" in sys.argv:
                print(f"open {url}/ and choose a file; end with Ctrl+C")
                async with service.worker():
                    await asyncio.Event().wait()
            async with asyncio.timeout(60), httpx.AsyncClient(base_url=url, timeout=30) as web:
                await grow_old(service, web, await use(service, web))
            service.queue.stop()


if __name__ == "__main__":
    asyncio.run(main())
