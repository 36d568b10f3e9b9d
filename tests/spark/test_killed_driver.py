"""A driver that is killed while several pieces of work are each at a moment that matters: what is found, and goes on.

It is one driver, since each takes half a minute of a processor to start. Each piece has a database of its own, and is
held where it is by a lock in there, or stops by itself. When all are where they should be, the driver and all that
belongs to it are killed.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from queuert.spark import enqueue, sweep_staging
from queuert.spark.datasource import register
from queuert.spark.history import run_archive
from queuert.testing.databases import TemplateDatabases
from tests.spark.children import run_stream
from tests.spark.history_support import add_chains, archived, left
from tests.spark.killed_child import read_stream
from tests.spark.read_support import add_event, connected
from tests.spark.support import (
    kill,
    locked,
    module,
    numbers,
    query,
    stages,
    wait_for_commit_to_block,
    wait_for_no_clients,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.timeout(1800)]

FILES, ROWS, EVENTS, CHAINS = 3, 40, 18, 12

BLOCK_FORGETTING = b"""
CREATE FUNCTION queuert.block() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN OLD; END $$;
CREATE TRIGGER block BEFORE DELETE ON queuert.bulk_stage FOR EACH ROW EXECUTE FUNCTION queuert.block();
"""
"""Only the forgetting of a staging table, which comes after the commit, meets the trigger."""


@dataclass
class Piece:
    """A piece of the driver's work: its database, its directory, and what it is told beside them."""

    dsn: str
    path: Path
    locks: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    found: Any = None


def write(piece: Piece, stack: ExitStack) -> None:
    if piece.locks == "bulk_stage":
        with psycopg.connect(piece.dsn) as connection:
            connection.execute(BLOCK_FORGETTING)
        stack.enter_context(psycopg.connect(piece.dsn)).execute("SELECT pg_advisory_xact_lock(4711)")
    else:
        stack.enter_context(locked(piece.dsn, piece.locks))


def stream(piece: Piece, stack: ExitStack) -> None:
    source = piece.path / "source"
    source.mkdir()
    for number in range(FILES):
        lines = [json.dumps({"n": n}) for n in range(number * ROWS, (number + 1) * ROWS)]
        (source / f"{number}.json").write_text("\n".join(lines))
    piece.arguments = {"source": str(source), "checkpoint": str(piece.path / "checkpoint")}
    stack.enter_context(locked(piece.dsn, piece.locks))


def read(piece: Piece, stack: ExitStack) -> None:
    with connected(piece.dsn) as connection:
        piece.found = [[*add_event(connection, f"j{n}"), f"j{n}"] for n in range(EVENTS)]
    piece.arguments = {**piece.arguments, "folder": str(piece.path)}


def archive(piece: Piece, stack: ExitStack) -> None:
    add_chains(piece.dsn, CHAINS)
    piece.found = left(piece.dsn)
    piece.arguments = {"output": str(piece.path), "step": "archive.deleting"}


PREPARE: dict[str, Callable[[Piece, ExitStack], None]] = {
    "write": write, "stream": stream, "read": read, "archive": archive,
}  # fmt: skip

# What reads comes first: the open transaction of any other would hide from it what is written later.
PIECES: dict[str, dict[str, Any]] = {
    "read:before": {"arguments": {"before": 1}},
    "read:after": {"arguments": {"after": 2}},
    "archive": {},
    "write:before": {"locks": "bulk_write"},
    "write:during": {"locks": "job"},
    "stream:before": {"locks": "stream_write"},
    "stream:during": {"locks": "job"},
    # The last, as its wait is the only one with an end: a staging table that is in use is forgotten later.
    "write:after": {"locks": "bulk_stage"},
}


def pieces_of(items: list[pytest.Item]) -> list[str]:
    """The pieces that the tests of a run look at: each takes some seconds."""
    own = [item for item in items if isinstance(item, pytest.Function) and item.path == Path(__file__)]
    names = {str(item.callspec.params["piece"]) for item in own}
    return [name for name in PIECES if name in names]


@pytest.fixture(scope="module")
def killed(
    request: pytest.FixtureRequest, template_databases: TemplateDatabases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Piece]]:
    """The pieces, of which the driver is dead, and nobody is connected any more."""
    with ExitStack() as databases:
        pieces = {
            name: Piece(
                databases.enter_context(template_databases.database()), tmp_path_factory.mktemp("piece"), **PIECES[name]
            )
            for name in pieces_of(request.session.items)
        }
        with ExitStack() as locks, module("tests.spark.killed_child") as child:
            # One after the other: together they would start more processes than Spark has the timeout for.
            for name, piece in pieces.items():
                PREPARE[name.partition(":")[0]](piece, locks)
                start(child, name, piece)
            kill(child)
        for piece in pieces.values():
            wait_for_no_clients(piece.dsn)
        yield pieces


def start(child: subprocess.Popen[str], name: str, piece: Piece) -> None:
    """Let the driver begin with a piece, and wait until that is where it should be."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps([name, {"dsn": piece.dsn, **piece.arguments}]) + "\n")
    child.stdin.flush()
    if piece.locks:
        wait_for_commit_to_block(piece.dsn)
    else:
        assert child.stdout.readline() == f"{name}\n"


@pytest.mark.quick
@pytest.mark.parametrize("piece", ["write:before", "write:during", "write:after"])
def test_a_write_killed_around_its_commit(killed: dict[str, Piece], spark: SparkSession, piece: str) -> None:
    dsn = killed[piece].dsn
    assert numbers(dsn) == (list(range(200)) if piece == "write:after" else [])
    query(dsn, "UPDATE queuert.bulk_stage SET touched_at = touched_at - interval '2 days' RETURNING 1")
    assert enqueue(spark.range(200).toDF("n"), "resize", url=dsn, write_id="once").rows == 200
    assert numbers(dsn) == list(range(200))
    sweep_staging(url=dsn)
    assert stages(dsn) == []


@pytest.mark.parametrize("piece", ["stream:before", "stream:during"])
def test_a_stream_killed_around_a_commit_goes_on_from_its_checkpoint(
    killed: dict[str, Piece], spark: SparkSession, piece: str
) -> None:
    dsn = killed[piece].dsn
    assert numbers(dsn) == []
    assert query(dsn, "SELECT count(*) FROM queuert.stream_stage") == [ROWS]
    run_stream(spark, dsn, **killed[piece].arguments)
    assert numbers(dsn) == list(range(FILES * ROWS))
    assert query(dsn, "SELECT count(*) FROM queuert.stream_stage") == [0]


@pytest.mark.parametrize(("piece", "batches"), [("read:before", 1), ("read:after", 3)])
def test_a_stream_of_events_killed_around_a_batch(
    killed: dict[str, Piece], spark: SparkSession, piece: str, batches: int
) -> None:
    dsn, path = killed[piece].dsn, killed[piece].path
    assert len(list(path.glob("batch-*.json"))) == batches
    with connected(dsn) as connection:
        expected = [*killed[piece].found, [*add_event(connection, "more"), "more"]]
    register(spark)
    read_stream(spark, dsn, str(path), lambda batch, written: None)
    found = [row for file in path.glob("batch-*.json") for row in json.loads(file.read_text())]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("piece", ["archive"])
def test_an_archive_killed_while_it_deletes(killed: dict[str, Piece], spark: SparkSession, piece: str) -> None:
    """When some are deleted and others are not, the next run goes on: all are in the archive, each once."""
    dsn, path, before = killed[piece].dsn, str(killed[piece].path), killed[piece].found
    # The first five chains, of which two have a second job.
    assert len(left(dsn)) == len(before) - 7
    results = run_archive(spark, dsn, path, older_than=0, partitions=1)
    assert [(one.resumed, one.chains, one.jobs) for one in results] == [(True, CHAINS, 16), (False, 0, 0)]
    assert (archived(killed[piece].path, "jobs"), left(dsn)) == (before, [])
