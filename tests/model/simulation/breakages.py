"""Defects of a worker, each planted in one place: the simulation must find every one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from queuert.errors import StateUnavailableError
from queuert.state.types import FinishResult
from queuert.worker import leases
from queuert.worker.completer import Completer
from queuert.worker.leases import HeldLease, LeaseRegistry, LeaseRenewer
from queuert.worker.prefetch import Prefetch
from queuert.worker.reaper import Reaper
from queuert.worker.releases import ReleaseQueue
from queuert.worker.runner import AttemptRunner
from queuert.worker.runtime import WorkerRuntime
from queuert.worker.supervisor import SupervisedLoop
from queuert.worker.telemetry import AttemptReporter


def _now() -> float:
    """The worker's clock, which is simulated."""
    return float(vars(leases)["time"].monotonic())


async def _write_once(self: Completer, batch: Sequence[Any]) -> None:
    try:
        results = await self._store.finish([one.finish for one in batch], wait=False)
    except StateUnavailableError:
        return
    self._decide(batch, results)


def completer_drops_a_batch() -> AbstractContextManager[Any]:
    """A batch whose answer is lost is not asked for again."""
    return patch.object(Completer, "_write", _write_once)


@contextmanager
def pending_counts_as_written() -> Iterator[None]:
    """A finish that was postponed is told as written."""
    decide = Completer._decide

    def decided(self: Completer, batch: Sequence[Any], results: Sequence[FinishResult]) -> None:
        decide(self, batch, [replace(one, locked=False) for one in results])

    with patch.object(Completer, "_decide", decided):
        yield


def claimed_ahead_is_kept() -> AbstractContextManager[Any]:
    """What waits for a place without result is not released."""
    return patch.object(ReleaseQueue, "put", lambda self, type, lease, expires_at: None)


def given_back_is_started() -> AbstractContextManager[Any]:
    """What was claimed ahead is released, and run all the same."""
    return patch.object(Prefetch, "release_waiting", lambda self: [runner.release() for runner in self._waiting])


def _renew_until_an_error(self: LeaseRenewer) -> None:
    while not self._stopped.is_set():
        try:
            self._renew_due()
        except Exception:
            return
        self._wake.wait(self._tick)
        self._wake.clear()


def renewer_ends_at_an_error() -> AbstractContextManager[Any]:
    """The first renewal that fails is the last one."""
    return patch.object(LeaseRenewer, "_renew_until_stopped", _renew_until_an_error)


def refused_renewals_count() -> AbstractContextManager[Any]:
    """A renewal that was refused counts as one."""
    renew = LeaseRenewer._renew

    def renewed(self: LeaseRenewer, store: Any, due: Sequence[HeldLease], sent_at: float) -> list[HeldLease]:
        for held in renew(self, store, due, sent_at):
            held.renewed(_now())
        return []

    return patch.object(LeaseRenewer, "_renew", renewed)


def nobody_watches() -> AbstractContextManager[Any]:
    """Leases that come to their end are not given up."""
    return patch.object(LeaseRenewer, "_watch_until_stopped", lambda self: None)


@contextmanager
def deadlines_count_from_the_answer() -> Iterator[None]:
    """A lease counts from when the worker heard of it, not from when it asked."""
    made, renewed = WorkerRuntime.make_runners, HeldLease.renewed

    def made_late(self: WorkerRuntime, jobs: Any, sent_at: float) -> Any:
        return made(self, jobs, _now())

    def renewed_late(self: HeldLease, sent_at: float) -> None:
        renewed(self, _now())

    with patch.object(WorkerRuntime, "make_runners", made_late), patch.object(HeldLease, "renewed", renewed_late):
        yield


async def _rest(self: Reaper) -> float:
    return 30.0


def nobody_reaps() -> AbstractContextManager[Any]:
    """Expired leases stay as they are."""
    return patch.object(Reaper, "_step", _rest)


async def _run_until_it_fails(self: SupervisedLoop) -> None:
    with suppress(Exception):
        while not self.stopping:
            rest = await self._step()
            if rest is not None:
                await self.pause(rest)


def loops_end_at_an_error() -> AbstractContextManager[Any]:
    """A loop whose step fails ends, in silence."""
    return patch.object(SupervisedLoop, "_run", _run_until_it_fails)


async def _wait_for_idle(self: WorkerRuntime, shutdown_timeout: float) -> None:
    await self._wait_until_idle(shutdown_timeout, self._hurry)


def stop_leaves_what_runs() -> AbstractContextManager[Any]:
    """After the grace the worker goes, and what still runs is not released."""
    return patch.object(WorkerRuntime, "_drain", _wait_for_idle)


def leases_are_not_forgotten() -> AbstractContextManager[Any]:
    """The lease of an attempt that is over is looked after."""
    return patch.object(LeaseRegistry, "remove", lambda self, held: None)


def refused_finishes_are_reported() -> AbstractContextManager[Any]:
    """A finish that the store refused is told as written."""
    ended = AttemptReporter.finished

    def reported(self: AttemptReporter, finishes: Sequence[Any]) -> None:
        ended(self, [one._replace(result=replace(one.result, lost=None)) for one in finishes])

    return patch.object(AttemptReporter, "finished", reported)


def aborts_do_not_cancel() -> AbstractContextManager[Any]:
    """A handler is told to stop, and its coroutine goes on."""
    return patch.object(AttemptRunner, "_cancel_handler", lambda self: None)


def doubtful_claims_are_kept() -> AbstractContextManager[Any]:
    """What a claim took whose answer was lost, or came after the stop, is not released."""
    return patch.object(ReleaseQueue, "put_claim", lambda self, request, answered: None)


@contextmanager
def late_claims_are_run() -> Iterator[None]:
    """An attempt begins whose lease was over before its claim was answered."""
    run = AttemptRunner.run

    async def run_anyway(self: AttemptRunner, task: asyncio.Task[None]) -> bool:
        deadline, self.held.deadline = self.held.deadline, _now() + 0.001
        self._worker.event_loop.call_soon(setattr, self.held, "deadline", deadline)
        return await run(self, task)

    with patch.object(AttemptRunner, "run", run_anyway):
        yield


BREAKAGES: tuple[Callable[[], AbstractContextManager[Any]], ...] = (
    completer_drops_a_batch,
    pending_counts_as_written,
    claimed_ahead_is_kept,
    given_back_is_started,
    renewer_ends_at_an_error,
    refused_renewals_count,
    nobody_watches,
    deadlines_count_from_the_answer,
    nobody_reaps,
    loops_end_at_an_error,
    stop_leaves_what_runs,
    leases_are_not_forgotten,
    refused_finishes_are_reported,
    aborts_do_not_cancel,
    doubtful_claims_are_kept,
    late_claims_are_run,
)
