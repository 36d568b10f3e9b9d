"""Nothing that is stored becomes code: no pickle, no eval, no import of a name that a row or a notification holds."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel

from queuert import AsyncClient, Client, InProcessWorker, JobType, JobTypes, PostgresState
from queuert.errors import JobFailedError
from queuert.notify.encoding import decode
from queuert.notify.in_process import InProcessNotify
from queuert.worker import Processors
from tests.security.test_statements import sources
from tests.support.waiting import WAIT

NEVER = {"eval", "exec", "compile", "__import__", "execfile"}
NEVER_IMPORTED = {"marshal", "shelve", "dill", "jsonpickle", "yaml", "cPickle"}

UNPICKLES = {
    # Between a worker and the child processes that it starts itself, over a socket pair that nobody else has.
    "queuert/worker/processes/child.py",
    "queuert/worker/processes/executor.py",
    "queuert/worker/processes/handle.py",
    "queuert/worker/processes/child_attempt.py",
}

IMPORTS_BY_NAME = {
    "queuert/__init__.py",  # Its own stores, whose names stand in it.
    "queuert/cli/application.py",  # MODULE:ATTRIBUTE of the command line.
    "queuert/cli/history.py",  # Names that stand in it.
    "queuert/spark/__init__.py",
    "queuert/spark/history/__init__.py",
    "queuert/spark/write/batch.py",  # The option jobTypes, of the command line's form.
}


def calls_of(tree: ast.Module) -> set[str]:
    """What is called, as it is written."""
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


def imported(tree: ast.Module) -> set[str]:
    """The modules that are imported."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found


def test_nothing_is_evaluated() -> None:
    found = {(name, call) for name, tree in sources() for call in calls_of(tree) & NEVER}
    assert found == set()
    assert {(name, each) for name, tree in sources() for each in imported(tree) & NEVER_IMPORTED} == set()


@pytest.mark.quick
def test_pickles_are_read_in_known_places_alone() -> None:
    words = {"pickle.loads", "pickle.load", "pickle.Unpickler", "cloudpickle.loads", "_Unpickler", "loads"}
    found = {name for name, tree in sources() if "pickle" in imported(tree) and calls_of(tree) & words}
    assert found == UNPICKLES


def test_modules_are_imported_by_name_in_known_places_alone() -> None:
    words = {"importlib.import_module", "import_module"}
    assert {name for name, tree in sources() if calls_of(tree) & words} == IMPORTS_BY_NAME


def test_no_state_adapter_and_no_notification_knows_pickle() -> None:
    apart = (
        "queuert/state/",
        "queuert/notify/",
        "queuert/client/",
        "queuert/codecs/",
        "queuert/payloads",
        "queuert/jobs",
    )
    assert {name for name, tree in sources() if name.startswith(apart) and "pickle" in imported(tree)} == set()


# --- as it runs -------------------------------------------------------------------------------------------------------


class Order(BaseModel):
    name: str


order = JobType("order", input=Order, output=Any)
anything = JobType("anything", input=Any, output=Any)
TYPES = JobTypes(order, anything)

HOSTILE: list[Any] = [
    {"py/object": "os.system", "py/reduce": [{"py/type": "os.system"}, {"py/tuple": ["exit 9"]}]},
    {"__class__": "subprocess.Popen", "__init__": ["touch", "/tmp/x"]},
    {"__reduce__": ["os.system", ["exit 9"]]},
    "!!python/object/apply:os.system ['exit 9']",
    "cos\nsystem\n(S'exit 9'\ntR.",
    "gASVIAAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjAZleGl0IDmUhZRSlC4=",
]


async def test_payloads_that_look_like_objects_stay_what_they_are(dsn: str) -> None:
    seen: list[Any] = []
    processors = Processors(TYPES)

    @processors.handles(anything)
    def handler(attempt: Any) -> Any:
        seen.append(attempt.input)
        return attempt.input

    async with AsyncClient(PostgresState(dsn), TYPES, notify=InProcessNotify()) as client:
        chains = [await client.start_chain(anything, value) for value in HOSTILE]
        async with InProcessWorker(client, processors):
            assert [await chain.result(WAIT) for chain in chains] == HOSTILE
    assert seen == HOSTILE


@pytest.mark.parametrize("kind", ["os.system", "builtins.SystemExit", "queuert.errors.LeaseLostError", "app.NotThere"])
def test_an_error_is_reported_and_not_raised_again(dsn: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a row says of an exception is text: nobody looks for its class."""
    monkeypatch.setattr(os, "system", lambda command: pytest.fail("it was called"))
    error = {"kind": "handler", "type": kind, "message": "exit 9", "traceback": "x"}
    with Client(PostgresState(dsn), TYPES, notify=InProcessNotify()) as client:
        chain = client.start_chain(order, Order(name="x"))
        client.cancel_chain(chain)
        with psycopg.connect(dsn) as connection:
            connection.execute(
                "update queuert.job set error = %s, status = 'failed', chain_status = 'failed'", [json.dumps(error)]
            )
        with pytest.raises(JobFailedError, match="exit 9") as caught:
            chain.result()
        assert type(caught.value) is JobFailedError
        assert client.get_job(chain.id).last_error is not None


@pytest.mark.parametrize("value", HOSTILE)
def test_notifications_are_names_of_what_to_look_for(value: Any) -> None:
    found = decode(json.dumps(value))
    assert found is None or all(isinstance(key, str) for key in found)


def test_the_lists_are_of_files_that_exist() -> None:
    root = Path(__file__).parents[2]
    assert all((root / name).exists() for name in UNPICKLES | IMPORTS_BY_NAME)
