"""The examples in docstrings run: a code block after ``::`` and every ``>>>`` of what users see.

Blocks run against a database of the test's own, with a worker at work, under the names that the guide uses. What has
``await`` in it runs in a coroutine with an ``AsyncClient``, anything else with a ``Client``; what speaks of an
``attempt`` runs inside a handler.
"""

from __future__ import annotations

import ast
import asyncio
import doctest
import inspect
import re
import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from examples.media import Published, Resize, Thumbnail, job_types, publish, resize
from queuert import AsyncClient, Client, InProcessWorker, JobType, JobTypes, NewChain, PostgresState, Processors
from queuert.callbacks import CallbackUrls
from queuert.webhooks import new_secret
from queuert.worker.steps import AttemptSleeping
from tests.support.public_names import public_names

NO_EXAMPLE_NEEDED = {"CallNext", "ClientMiddleware", "Continues", "Outcome"}
"""Aliases, which have no docstring at run time. Errors need none: they say when they are raised, and what to do."""

CALLBACKS = CallbackUrls("https://example.org/callbacks", new_secret())

_BLOCK = re.compile(r"::\n\n((?:    .*\n|\n)+)")


def public_things() -> Iterator[tuple[str, Any]]:
    """What users see, by name: the names of the top level, and the public methods of its classes."""
    for name, value in public_names().items():
        yield name, value
        if inspect.isclass(value):
            for inner, member in inspect.getmembers(value):
                if not inner.startswith("_") and callable(member) and inspect.getdoc(member):
                    yield f"{name}.{inner}", member


def blocks(value: Any) -> list[str]:
    """The code blocks of a docstring."""
    text = inspect.getdoc(value) or ""
    found = [textwrap.dedent(match).strip() for match in _BLOCK.findall(text + "\n")]
    return [block for block in found if ">>>" not in block]


THINGS = dict(public_things())
ERRORS = {name for name, value in THINGS.items() if inspect.isclass(value) and issubclass(value, Exception)}
BLOCKS = [
    pytest.param(block, id=f"{name}-{number}")
    for name, value in THINGS.items()
    for number, block in enumerate(blocks(value))
]


@pytest.mark.parametrize("name", sorted(public_names().keys() - NO_EXAMPLE_NEEDED - ERRORS))
def test_every_public_name_has_an_example(name: str) -> None:
    value = THINGS[name]
    has_doctest = ">>>" in (inspect.getdoc(value) or "")
    assert has_doctest or blocks(value), f"{name} has no example in its docstring"


@pytest.mark.parametrize("name", [name for name, value in THINGS.items() if ">>>" in (inspect.getdoc(value) or "")])
def test_doctests(name: str) -> None:
    value = THINGS[name]
    parser = doctest.DocTestParser()
    names = {**public_names(), **vars(inspect.getmodule(value))}
    test = parser.get_doctest(inspect.getdoc(value) or "", names, name, None, 0)
    outcome = doctest.DocTestRunner().run(test)
    assert outcome.attempted
    assert not outcome.failed


class Namespace:
    """The names that examples may use."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        with psycopg.connect(dsn) as connection:
            connection.execute("CREATE TABLE pages (views integer)")
        self.state = PostgresState(dsn)
        self.doing: JobType[str, Any] = JobType(
            "doing", input=str, output=Published | str | None, continues_with=publish
        )
        self.report: JobType[str, int] = JobType("report", input=str, output=int)
        self.job_types = JobTypes(job_types, self.doing, self.report)
        self.processors = Processors(self.job_types)
        self.handled: asyncio.Queue[BaseException | None] = asyncio.Queue()
        self._handle()

    def _handle(self) -> None:
        @self.processors.handles(resize)
        async def resize_image(attempt: Any) -> Any:
            return attempt.continue_with(publish, Thumbnail(key=attempt.input.url))

        @self.processors.handles(publish)
        def publish_thumbnail(attempt: Any) -> Any:
            return Published(address=attempt.input.key)

    def names(self, **more: Any) -> dict[str, Any]:
        everything = public_names()
        media = {"Resize": Resize, "Thumbnail": Thumbnail, "Published": Published, "resize": resize, "publish": publish}
        url = "https://example.org/cat.png"
        idle = Processors(self.job_types)
        idle.handles(self.report)(lambda attempt: 0)
        models = dict.fromkeys(("Poll", "Fetch", "Done"), str)
        send_mail = JobType("send_mail", input=str, output=None)
        helpers: dict[str, Any] = {
            "NewChain": NewChain,
            "Sequence": Sequence,
            "asynccontextmanager": asynccontextmanager,
        }
        helpers |= {"Tenant": str, "response": SimpleNamespace(status=200, headers={})}
        given = {"job_types": self.job_types, "state": self.state, "dsn": self.dsn, "processors": idle, "url": url}
        types = {"report": self.report, "send_mail": send_mail}
        return {**everything, **media, **models, **helpers, **types, **given, "urls": [url], **more}


def _as_function(block: str, keyword: str) -> str:
    return f"{keyword} _example():\n{textwrap.indent(block, '    ')}\n"


@pytest.mark.parametrize("block", BLOCKS)
async def test_blocks_run(block: str, dsn: str) -> None:
    ast.parse(_as_function(block, "async def"))
    space = Namespace(dsn)
    shutdown = asyncio.Event()
    shutdown.set()
    if re.search(r"(?<![.\w])attempt\b", block) and not re.search(r"^(@processors|class )", block, re.MULTILINE):
        await _run_in_a_handler(space, block)
        return
    async with AsyncClient(space.state, space.job_types, callbacks=CALLBACKS) as client, AsyncExitStack() as stack:
        if not re.search(r"\.(send_event|edit_chain_input)\(", block):  # These need a chain that is still open.
            await stack.enter_async_context(InProcessWorker(client, space.processors))
        chain = await client.start_chain(resize, Resize(url="https://example.org/dog.png", width=100))
        if re.search(r"\b(await|async) ", block):
            names = space.names(client=client, chain=chain, order=chain, shutdown=shutdown)
            async with await psycopg.AsyncConnection.connect(dsn) as connection:
                exec(_as_function(block, "async def"), names := {**names, "connection": connection})
                await asyncio.wait_for(names["_example"](), 30)
        else:
            await asyncio.to_thread(_run_in_a_thread, space, block)


def _run_in_a_thread(space: Namespace, block: str) -> None:
    with Client(space.state, space.job_types, callbacks=CALLBACKS) as client, psycopg.connect(space.dsn) as connection:
        chain = client.start_chain(resize, Resize(url="https://example.org/dog.png", width=100))
        worker = InProcessWorker(client, space.processors)
        names = space.names(
            client=client, chain=chain, order=chain, connection=connection, threading=threading, worker=worker
        )
        exec(_as_function(block, "def"), names)
        names["_example"]()


async def _run_in_a_handler(space: Namespace, block: str) -> None:
    is_async = re.search(r"\b(await|async) ", block) is not None
    done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def settle(error: BaseException | None) -> None:
        if not done.done():
            done.set_result(error)

    def tell(error: BaseException | None) -> None:
        loop.call_soon_threadsafe(settle, error)

    if is_async:

        @space.processors.handles(space.doing)
        async def handle(attempt: Any) -> Any:
            names = space.names(attempt=attempt)
            exec(_as_function(block, "async def"), names)
            try:
                outcome = await names["_example"]()
            except BaseException as error:
                tell(None if isinstance(error, AttemptSleeping) else error)
                raise
            tell(None)
            return outcome

    else:

        @space.processors.handles(space.doing)
        def handle_in_thread(attempt: Any) -> Any:
            names = space.names(attempt=attempt)
            exec(_as_function(block, "def"), names)
            try:
                outcome = names["_example"]()
            except BaseException as error:
                tell(error)
                raise
            tell(None)
            return outcome

    async with AsyncClient(space.state, space.job_types) as client, InProcessWorker(client, space.processors):
        await client.start_chain(space.doing, "something")
        error = await asyncio.wait_for(done, 30)
        if error is not None:
            raise error
