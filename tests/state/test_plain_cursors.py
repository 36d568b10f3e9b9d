"""Without the private parts of psycopg all statements go through its cursors, with the same results."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from typing import Any

import psycopg.generators
import psycopg.waiting
import pytest

from queuert.errors import LeaseLostError
from queuert.jobs import JobStatus
from queuert.state.postgres import psycopg_internals
from queuert.state.types import NewJob
from queuert.testing.conformance import Stores
from queuert.testing.conformance.builders import claim_one, complete, read, started_and_claimed
from tests.state.test_prepared_statements import NAMES, run


def fresh() -> Any:
    """The module as it would be if it were imported now."""
    spec = importlib.util.spec_from_file_location("fresh_internals", psycopg_internals.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def plain_cursors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psycopg_internals, "PLAIN_CURSORS", True)


def test_the_installed_psycopg_has_all_parts() -> None:
    assert psycopg_internals.missing_parts() == []


@pytest.mark.parametrize(
    ("owner", "name", "missing"),
    [
        (psycopg.BaseConnection, "_deallocate", "BaseConnection._deallocate"),
        (psycopg.Connection, "wait", "Connection.wait"),
        (psycopg.generators, "execute", "psycopg.generators.execute"),
        (psycopg.waiting, "Ready", "cannot import name 'Ready' from 'psycopg.waiting'"),
    ],
)
def test_plain_cursors_are_used_when_a_part_is_missing(
    owner: object, name: str, missing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(owner, name)
    internals = fresh()
    assert internals.PLAIN_CURSORS is True
    assert missing in ", ".join(internals.missing_parts())
    assert missing in caplog.text


@pytest.mark.parametrize(("value", "used"), [("1", True), ("0", False), ("", False)])
def test_the_environment_turns_plain_cursors_on(value: str, used: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUERT_PLAIN_CURSORS", value)
    assert fresh().PLAIN_CURSORS is used


@pytest.mark.usefixtures("plain_cursors")
async def test_a_store_works_by_plain_cursors(stores: Stores) -> None:
    """Starts, claims, finishes, blockers, and blocks that commit with the finish or roll back."""
    store = await stores.open(max_connections=1)
    for _ in range(3):
        [held] = await started_and_claimed(store)
        await store.start_jobs([NewJob("w" + held.id, "waits", "1", blockers=(held.id,))])
        with suppress(ZeroDivisionError):
            async with store.transaction(held) as transaction:
                await run(transaction.connection, "UPDATE queuert.job SET lease_token = gen_random_uuid()")
                raise ZeroDivisionError
        async with store.transaction(held) as transaction:
            await transaction.finish(complete(held), last=True)
        waiting = await claim_one(store, "waits")
        async with store.transaction(waiting) as transaction:
            assert await run(transaction.connection, NAMES) == []
            await transaction.finish(complete(waiting), last=True)
        assert (await read(store, held.id)).status is JobStatus.COMPLETED
        assert (await read(store, waiting.id)).status is JobStatus.COMPLETED


@pytest.mark.usefixtures("plain_cursors")
async def test_a_block_by_plain_cursors_is_fenced(stores: Stores) -> None:
    """The finish that goes with the commit is rejected, and nothing of the block is committed."""
    store = await stores.open()
    [held] = await started_and_claimed(store)

    async def block() -> None:
        async with store.transaction(held) as transaction:
            await run(transaction.connection, "UPDATE queuert.job SET lease_token = gen_random_uuid()")
            await transaction.finish(complete(held), last=True)

    with pytest.raises(LeaseLostError):
        await block()
    assert (await store.finish([complete(held)]))[0].written
