"""The OpenAPI document: what it says of the routes holds for the requests that schemathesis makes of it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, given, settings
from pydantic import PlainValidator
from schemathesis.core.parameters import ParameterLocation
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from queuert import AsyncClient, JobType, JobTypes
from queuert.state.sqlite import SQLiteState
from queuert.web import FULL_ACCESS, WebApp, bearer_tokens
from queuert.web.api import OPERATIONS, Operation
from queuert.web.openapi import document
from tests.support.job_types import JOB_TYPES, anything, number, order

TOKEN = "schemathesis-" + "0" * 20
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def web_schema(tmp_path: Path) -> Iterator[Any]:
    """The schema of a served application with some chains."""
    listening = socket.create_server(("127.0.0.1", 0))
    server: list[uvicorn.Server] = []

    async def serve() -> None:
        job_types = JobTypes(number, order, anything)
        async with AsyncClient(SQLiteState(tmp_path / "jobs.db"), job_types) as client:
            await client.start_chain(number, 1, id="0")
            app = WebApp(client, access=bearer_tokens({TOKEN: FULL_ACCESS}), max_wait=0.01)
            server.append(uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="error")))
            await server[0].serve(sockets=[listening])

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    host, port = listening.getsockname()
    try:
        yield schemathesis.openapi.from_url(f"http://{host}:{port}/openapi.json", headers=HEADERS)
    finally:
        server[0].should_exit = True
        thread.join()


# A stream does not end: those have tests of their own.
ANSWERED = [one for one in OPERATIONS if one.media_type == "application/json"]


def has_a_wrong_query_alone(case: Any) -> bool:
    wrong = [location for location, component in case.meta.components.items() if component.mode.is_negative]
    return wrong == [ParameterLocation.QUERY]


@pytest.mark.parametrize("operation", ANSWERED, ids=lambda operation: operation.handler.__name__)
@pytest.mark.parametrize("valid", [True, False])
def test_requests_are_answered_as_documented(web_schema: Any, operation: Operation, valid: bool) -> None:
    mode = schemathesis.GenerationMode.POSITIVE if valid else schemathesis.GenerationMode.NEGATIVE
    documented = web_schema[operation.path.replace(":id}", "}")][operation.method]

    @settings(
        max_examples=15,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(case=documented.as_strategy(generation_mode=mode))
    def answers(case: Any) -> None:
        # A schema cannot say which cursors, ids, job types and outputs there are. And what breaks the schema of a query
        # may be sent as a valid one: an array that was made a text, an empty one that is sent as nothing. Invalid
        # queries are refused by test_api.py.
        excluded = [positive_data_acceptance, *([negative_data_rejection] if has_a_wrong_query_alone(case) else [])]
        case.call_and_validate(headers=HEADERS, excluded_checks=excluded)

    answers()


def test_an_input_without_a_schema_is_documented_as_any_value() -> None:
    plain = JobType("plain", input=Annotated[int, PlainValidator(int)], output=int)
    [start] = document(JobTypes(plain), "")["components"]["schemas"]["StartBody"]["oneOf"]
    assert start["properties"]["input"] == {}


def test_each_route_is_documented() -> None:
    paths = document(JOB_TYPES, "/queue")["paths"]
    documented = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert documented == {(one.method, one.path.replace(":id}", "}")) for one in OPERATIONS}
    starts = document(JOB_TYPES, "")["components"]["schemas"]["StartBody"]["oneOf"]
    assert [one["properties"]["type"]["const"] for one in starts] == list(JOB_TYPES.names)
