"""This library on tables that hold very many jobs: claims from a long backlog, and a long history."""

from __future__ import annotations

from benchmarks.child import Request
from benchmarks.contestants.bare_statements import FILL_FINISHED, OWN
from benchmarks.contestants.filling import CLAIM, fill, portions, rows_to_fill, times_of, without_flushes
from queuert import PostgresState
from queuert.ids import new_token
from queuert.state.sync_store import Store
from queuert.state.types import ClaimedJob, ClaimRequest, Finish, FinishKind

_LEASE = 60.0


def load_rows(request: Request) -> None:
    """A backlog, made by the server itself, of one type or several."""
    fill(request, OWN.fill, rows_to_fill(request), types=request.option("types", 1))


def load_finished(request: Request) -> None:
    """Jobs that have ended."""
    fill(request, FILL_FINISHED, int(request.option("rows")))


def claim(request: Request) -> dict[str, float]:
    """How long claims take, after some jobs have come and gone."""
    types = request.option("types", 1)
    names = ["noop"] if types == 1 else [f"type{number}" for number in range(types)]
    without_flushes(request)
    store: Store = PostgresState(request.server).sync_store()
    store.open()
    try:
        for limit in portions(request):
            store.finish([Finish(job, FinishKind.COMPLETE, output="0") for job in _claim(store, names, limit)])
        return times_of(lambda: len(_claim(store, names, CLAIM)), request.jobs)
    finally:
        store.close()


def _claim(store: Store, names: list[str], limit: int) -> list[ClaimedJob]:
    return store.claim(ClaimRequest(dict.fromkeys(names, _LEASE), limit, "benchmark", new_token()))
