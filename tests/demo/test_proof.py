"""The proof finds what it is for: each kind of damage to the tables, and no other."""

from collections.abc import Iterator
from typing import LiteralString

import pytest

from queuert.demo import tables
from queuert.demo.database import Database
from queuert.demo.progress import read_snapshot
from queuert.demo.proof import Check, read_figures, run_checks, table, verdict
from queuert.demo.settings import DemoError

_JOB = """
INSERT INTO queuert_demo.job (id, chain_id, chain_index, type, chain_type, status, chain_status, attempt,
                              lease_expirations, input, started_at, finished_at, continued_by)
VALUES (%s, %s, %s, %s, 'measure', %s, %s, %s, %s, '{}', clock_timestamp(), clock_timestamp(), %s)
"""


@pytest.fixture
def database(bare_dsn: str) -> Iterator[Database]:
    """The tables after a run of two files, of which one was repeated and one is not Python."""
    with Database(bare_dsn) as database:
        database.require_absent()
        database.create()
        database.execute(tables.ADD_PLAN, (2, "plain Python"))
        database.execute(_JOB, ("a", "a", 0, "measure", "continued", "completed", 2, 1, "a2"))
        database.execute(_JOB, ("a2", "a", 1, "index", "completed", None, 1, 0, None))
        database.execute(_JOB, ("b", "b", 0, "measure", "completed", "completed", 1, 0, None))
        for job, chain in (("a2", "a"), ("b", "b")):
            database.execute(tables.ADD_EFFECT, (job, chain, 1, "worker"))
            database.execute(tables.ADD_FILE, (chain, chain, f"/lib/{chain}.py", 1, 1, "00", None))
        yield database


def wrong(database: Database) -> set[str]:
    return {check.what for check in run_checks(database) if not check.holds}


def test_an_honest_run_passes(database: Database) -> None:
    assert wrong(database) == set()
    database.execute(tables.ADD_ANSWERS, (2, 2, 0))
    assert wrong(database) == set()
    assert "The proof holds" in verdict(run_checks(database))


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        ("INSERT INTO queuert_demo.effect SELECT * FROM queuert_demo.effect LIMIT 1", {"effects committed twice"}),
        (
            "INSERT INTO queuert_demo.answers VALUES (2, 3, 0)",
            {"answers that Spark got, but the workers did not write"},
        ),
        (
            "INSERT INTO queuert_demo.answers VALUES (1, 2, 0)",
            {"answers that Spark got, but the workers did not write"},
        ),
        (
            "INSERT INTO queuert_demo.effect VALUES ('a', 'a', 1, 'worker')",
            {"effects committed twice", "effects of jobs that are not completed"},
        ),
        ("DELETE FROM queuert_demo.effect WHERE job_id = 'b'", {"effects missing"}),
        (
            "UPDATE queuert_demo.job SET chain_status = 'failed', status = 'failed' WHERE id = 'b'",
            {
                "chains started, but not completed",
                "files without exactly one completed chain",
                "effects of jobs that are not completed",
            },
        ),
        (
            """
            UPDATE queuert_demo.job SET status = 'running', lease_expires_at = now(), lease_token = gen_random_uuid()
            WHERE id = 'a2'
            """,
            {"jobs left running", "effects of jobs that are not completed"},
        ),
        ("UPDATE queuert_demo.plan SET files = 3", {"files without exactly one completed chain"}),
        (
            "INSERT INTO queuert_demo.source_file SELECT * FROM queuert_demo.source_file LIMIT 1",
            {"files without exactly one completed chain", "effects committed twice"},
        ),
    ],
)
def test_damage_is_found(damage: LiteralString, found: set[str], database: Database) -> None:
    database.execute(damage)
    assert wrong(database) == found
    assert "THE PROOF DOES NOT HOLD" in verdict(run_checks(database))


def test_figures(database: Database) -> None:
    (before,) = database.row("SELECT min(created_at) - interval '2 seconds' FROM queuert_demo.job")
    figures = read_figures(database, before)
    assert (figures.files, figures.chains_started, figures.chains_completed) == (2, 2, 2)
    assert (figures.jobs, figures.attempts, figures.attempts_lost) == (3, 4, 1)
    assert figures.reader == "plain Python"
    assert figures.seconds > 0
    assert figures.taken_over_after is not None
    assert figures.taken_over_after >= 2


def test_figures_of_a_run_without_a_kill(database: Database) -> None:
    database.execute("UPDATE queuert_demo.job SET lease_expirations = 0")
    figures = read_figures(database, None)
    assert figures.released_after is None
    assert dict(figures.lines())["seconds from the kill until all of them were taken over"] == "-"


def test_figures_of_nothing(database: Database) -> None:
    database.execute("DELETE FROM queuert_demo.job")
    database.execute("DELETE FROM queuert_demo.plan")
    figures = read_figures(database, None)
    assert (figures.files, figures.jobs, figures.rate) == (0, 0, 0.0)


def test_a_snapshot_counts(database: Database) -> None:
    snapshot = read_snapshot(database)
    assert (snapshot.files, snapshot.started, snapshot.closed, snapshot.open_chains) == (2, 2, 2, 0)
    assert (snapshot.done, snapshot.retried, snapshot.lost_leases) == (3, 1, 1)


def test_a_schema_that_is_there_is_left_alone(database: Database) -> None:
    with pytest.raises(DemoError, match="DROP SCHEMA queuert_demo"):
        database.require_absent()
    database.drop()
    database.require_absent()


def test_tables_of_text_are_aligned() -> None:
    assert table([("a", "1"), ("long", "2")]) == "  a     1\n  long  2"
    assert Check("x", 0).holds
    assert not Check("x", 1).holds
