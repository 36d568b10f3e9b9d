"""What must hold of a run when it is over: the invariants that a worker can break.

Each check is given a run and names what is wrong. The history is the store's own record, what the workers told, and
the desk at which the handlers are noted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from queuert.jobs import JobStatus
from queuert.observability import events
from tests.model.simulation.plain_store import RETURNING, Entry
from tests.model.simulation.scenario import Machine, Scenario

Faults = Iterator[str]

FINISHES = {
    events.AttemptCompleted: "end complete",
    events.AttemptContinued: "end continue",
    events.AttemptRetried: "end retry",
    events.AttemptFailed: "end fail",
    events.AttemptCancelled: "end cancel",
    events.AttemptInterrupted: "end interrupt",
    events.AttemptWaiting: "end wait",
}


def _by_job(run: Scenario) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = defaultdict(list)
    for entry in run.server.store.record:
        found[entry.job_id].append(entry)
    return found


def nobody_noticed(run: Scenario) -> Faults:
    """No exception ends up in the event loop, or at the end of a thread; what loops fail with is the store's."""
    yield from run.world.accidents
    for machine in run.machines:
        for _, event in machine.reported.events:
            if isinstance(event, events.LoopFailed) and not event.error.startswith("State"):
                yield f"loop {event.loop} of {machine.process.name}: {event.error}"


def acknowledged_starts_are_there(run: Scenario) -> Faults:
    """I1: no acknowledged start is lost."""
    for id in run.acknowledged:
        if id not in run.server.store.jobs:
            yield f"the start of {id} was acknowledged, and is not there"


def everything_ends(run: Scenario) -> Faults:
    """I4: once faults stop, every job reaches a final status."""
    missing = {one.id for one in run.plan.starts} - set(run.acknowledged)
    if missing:
        yield f"these could never be started: {sorted(missing)}"
    for row in run.server.store.jobs.values():
        if not row.status.final:
            yield f"job {row.id} is {row.status} in the end"


def attempts_go_up_by_one(run: Scenario) -> Faults:
    """I9, and I10: each claim counts one, also those whose worker died; what was released unstarted does not."""
    for id, entries in _by_job(run).items():
        attempt = 0
        for entry in entries:
            if entry.what == "claim":
                if entry.attempt != attempt + 1:
                    yield f"job {id}: attempt {entry.attempt} was claimed after {attempt}"
                attempt = entry.attempt
            elif entry.what == "release":
                attempt = entry.attempt
        if attempt != run.server.store.jobs[id].attempt:
            yield f"job {id} says {run.server.store.jobs[id].attempt} attempts, and had {attempt}"


def leases_do_not_overlap(run: Scenario) -> Faults:
    """I5, I16: a job is claimed again only when its lease was released or reaped, and reaped only when it is over."""
    for id, entries in _by_job(run).items():
        held: Entry | None = None
        for entry in entries:
            if entry.what == "claim" and held is not None:
                yield f"job {id} was claimed at {entry.at:.3f} under the lease of {held.token}"
            if entry.what == "reap" and held is not None and entry.at < held.until:
                yield f"job {id} was reaped at {entry.at:.3f}, its lease lasts until {held.until:.3f}"
            if entry.what in ("claim", "renew"):
                held = entry
            elif entry.what not in ("start", "trigger"):
                held = None


def only_the_holder_ends(run: Scenario) -> Faults:
    """I6, I7, I8: a finish is its holder's, there is one, and nothing comes after the end of a job but a retry."""
    for id, entries in _by_job(run).items():
        token: str | None = None
        final = False
        for entry in entries:
            if entry.what == "retry":
                final = False
            elif final:
                yield f"job {id}: {entry.what} after its end, at {entry.at:.3f}"
            if entry.what == "claim":
                token = entry.token
            elif entry.what.startswith("end ") and entry.token != token:
                yield f"job {id} was ended by {entry.token}, and held by {token}"
            final = final or entry.what.partition(" ")[2] in _FINAL


_FINAL = {"complete", "continue", "fail", "cancel", *(status.value for status in JobStatus if status.final)}


def outputs_are_of_the_last_attempt(run: Scenario) -> Faults:
    """I6: what is kept is what the attempt returned that ended the job."""
    for row in run.server.store.jobs.values():
        expected = (f'"{row.id}/{row.attempt}"', f'"{row.id}/outside"')
        if row.status is JobStatus.COMPLETED and row.output not in expected:
            yield f"job {row.id} of attempt {row.attempt} has output {row.output}"


def effects_stand_once(run: Scenario) -> Faults:
    """I7: what a handler wrote in ``complete()`` is there once, and exactly if the attempt's finish is."""
    ended = {(one.job_id, one.token) for one in run.server.store.record if one.what.startswith("end ")}
    for (job_id, token, attempt), count in Counter(run.server.effects).items():
        if count != 1 or (job_id, token) not in ended:
            yield f"the writes of attempt {attempt} of job {job_id} stand {count} times"


def handlers_are_reported_in_time(run: Scenario) -> Faults:
    """I5, I17: no handler works on untold when its job is claimed anew, nor for longer than a lease after a cancel."""
    yield from run.observed


def cancelled_before_it_began(run: Scenario) -> Faults:
    """I17: a job that was cancelled is not claimed any more, unless it is retried."""
    for id, entries in _by_job(run).items():
        cancelled = False
        for entry in entries:
            if entry.what == "outside cancelled":
                cancelled = True
            elif entry.what == "retry":
                cancelled = False
            elif cancelled and entry.what == "claim":
                yield f"job {id} was cancelled, and claimed at {entry.at:.3f}"


def pauses_are_kept(run: Scenario) -> Faults:
    """I18, I19: nothing is claimed before its time, nor before the pause after a failed attempt is over."""
    for id, entries in _by_job(run).items():
        floor = 0.0
        for entry in entries:
            if entry.what == "claim" and entry.at < floor:
                yield f"job {id} was claimed at {entry.at:.3f}, before {floor:.3f}"
            if entry.what == "start" or entry.what == "end retry":
                floor = entry.until
            elif entry.what in ("trigger", "retry", "release", "end interrupt", "end wait"):
                floor = 0.0


def every_end_is_reported(run: Scenario) -> Faults:
    """What a worker tells of finishes is true, and it tells of each that it wrote, unless it was killed."""
    ends = [one for one in run.server.store.record if one.what.startswith("end ")]
    written: Counter[tuple[Any, ...]] = Counter((one.holder, one.job_id, one.attempt, one.what) for one in ends)
    reported: Counter[tuple[Any, ...]] = Counter(
        (machine.holder, one.job_id, one.attempt, what)
        for machine in run.machines
        for one in _attempt_events(machine)
        if (what := FINISHES.get(type(one))) is not None
    )
    resting = {f"end {kind}" for kind in RETURNING}
    for key in reported - written:
        # A finish whose answer was lost, and another from a client: the store takes the second for the first.
        if key[3] in resting and any((*key[:3], what) in written for what in resting):
            continue
        yield f"{key} was told {reported[key]} times, and written {written[key]} times"
    alive = {one.holder: one for one in run.machines if one.process.alive}
    for key in written - reported:
        if key[0] in alive and key[1:3] not in _broken(alive[key[0]]):
            yield f"{key} was written {written[key]} times, and told {reported[key]} times"


def _attempt_events(machine: Machine) -> list[Any]:
    return [event for _, event in machine.reported.events if hasattr(event, "attempt")]


def _broken(machine: Machine) -> set[tuple[str, int]]:
    """Attempts of which a worker said that it did not learn their end, or that somebody else has the job since.

    Both may be said of a finish that stands, when the answer was lost.
    """
    return _whose(_attempt_events(machine), (events.FinishFailed, events.AttemptAborted, events.FinishRejected))


def _whose(reported: list[Any], kinds: tuple[type[events.Event], ...]) -> set[tuple[str, int]]:
    return {(one.job_id, one.attempt) for one in reported if type(one) in kinds}


def every_attempt_is_reported_of(run: Scenario) -> Faults:
    """Each attempt that a worker told of as begun has an end there: written, refused, told to stop, or in doubt."""
    ends = (*FINISHES, events.FinishRejected, events.FinishFailed, events.AttemptAborted)
    for machine in run.machines:
        reported = list[Any](_attempt_events(machine))
        begun = {(one.job_id, one.attempt): None for one in reported if isinstance(one, events.AttemptStarted)}
        ended = _whose(reported, ends)
        for job_id, attempt in begun if machine.process.alive else ():
            if (job_id, attempt) not in ended:
                yield f"{machine.process.name} never told how attempt {attempt} of job {job_id} ended"


def stopped_workers_hold_nothing(run: Scenario) -> Faults:
    """I25: a worker that stopped while all was well has no lease, no handler, no thread and no task left."""
    for machine in run.machines:
        if machine.stopping is None or not machine.process.alive:
            continue
        if not machine.stopped:
            yield f"{machine.process.name} has not stopped: {_failure(machine)}"
        else:
            yield from _left_behind(machine)


def _failure(machine: Machine) -> str:
    task = machine.stopping
    return repr(task.exception()) if task is not None and task.done() else "it is still at it"


def _left_behind(machine: Machine) -> Faults:
    runtime, name = machine.worker._runtime, machine.process.name
    if runtime is not None:
        slots = runtime.prefetch.slots
        counts = {
            "attempts": runtime.running,
            "leases to look after": len(runtime.leases),
            "slots taken": slots.running,
            "finishes to be written": len(runtime.completer._pending),
        }
        for what, count in counts.items():
            if count:
                yield f"{name} has stopped, with {count} {what}"
    for task in machine.process.loop.tasks:
        if not task.done() and task is not machine.stopping:
            yield f"{name} has stopped, and this goes on: {task!r}"
    for thread in machine.process.threads:
        if not thread.over and "leases" in thread.name:
            yield f"{name} has stopped, and its thread {thread.name} goes on"
    if machine.kept is not None and runtime is not None and len(runtime.prefetch):
        yield f"{name} has stopped, with {len(runtime.prefetch)} jobs claimed ahead"
    if machine.kept:
        yield f"{name} has stopped, and holds the jobs {machine.kept}"


CHECKS: tuple[Callable[[Scenario], Faults], ...] = (
    nobody_noticed,
    acknowledged_starts_are_there,
    everything_ends,
    attempts_go_up_by_one,
    leases_do_not_overlap,
    only_the_holder_ends,
    outputs_are_of_the_last_attempt,
    effects_stand_once,
    handlers_are_reported_in_time,
    pauses_are_kept,
    cancelled_before_it_began,
    every_end_is_reported,
    every_attempt_is_reported_of,
    stopped_workers_hold_nothing,
)


def faults(run: Scenario) -> list[str]:
    """Everything that is wrong with a run."""
    return [f"{check.__name__}: {fault}" for check in CHECKS for fault in check(run)]
