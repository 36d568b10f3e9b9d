"""Endings that close chains which others wait for, and need nothing else: one transaction in one round trip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from queuert.state.adapter import Finish, FinishResult, Lease
from queuert.state.postgres import parameters
from queuert.state.postgres.bounds import LOCK_SOON, Bounds
from queuert.state.postgres.finishing import DUE, closing_chains, finish_results, started_by, waiting_jobs
from queuert.state.postgres.protocol import COMMIT, Step, text_rows
from queuert.state.postgres.statements import Statements

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult


def closes_only(finishes: Sequence[Finish]) -> bool:
    """Whether no step of these endings hangs on what the one before it has found: none waits for other chains."""
    return not waiting_jobs(finishes) and not started_by(finishes)


def closing_steps(sql: Statements, finishes: Sequence[Finish], bounds: Bounds, *, wait: bool) -> list[Step]:
    """After BEGIN: lock the chains and who waits for them, write the endings, release who waited, and commit."""
    closing = closing_chains(finishes)
    held = {one.job.id for one in finishes}.union(closing)
    return [
        Step(sql.named("lock_soon"), bounds.parameters(None if wait else LOCK_SOON)),
        Step(sql.named("lock_rows"), parameters.locks(held, closing=closing)),
        Step(sql.named("finish"), parameters.finish(finishes, closes_awaited=True)),
        Step(sql.named("unblock"), parameters.closed_chains(closing)),
        Step(COMMIT, {}),
    ]


def closing_results(finishes: Sequence[Finish], answers: Sequence[PGresult]) -> dict[Lease, FinishResult]:
    """What came of the endings that were written, from the answers to all steps."""
    *_, ended, released, _ = answers
    freed = [row[0] for row in text_rows(released) if row[0] is not None and row[1] in DUE]
    return finish_results(finishes, text_rows(ended), freed)
