"""Why a job does not run: what ``client.explain`` returns. See ``docs/design/why.md``."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from queuert.job_types import BULK_OPERATION_TYPE
from queuert.jobs import ChainRecord, ChainStatus, Job, JobStatus, overdue_at
from queuert.limits import ClientType, PausedType
from queuert.state.types import COUNTED_WAIT, BlockerRecord, HeldJob, WaitFacts
from queuert.workers import (
    EVERY_WORKER_HANDLES,
    HEARTBEAT_SECONDS,
    WorkerRecord,
    claimed_types,
    named,
    stopping_workers,
)

MAX_DEPTH = 10
"""How many levels of blockers are explained."""

MAX_CHAINS = 100
"""How many chains one explanation has at most."""

MAX_CLOSED = 20
"""How many of the failed or cancelled chains that made one fail are looked at."""

_NAMED_TO_RETRY = 5

_MAX_ERROR = 200

_RUN = "queuert operations run"
"""The command that does batches of bulk operations beside workers."""

SILENT_AFTER = timedelta(seconds=1.5 * HEARTBEAT_SECONDS)
"""How long a worker that lives is silent, at most: one heartbeat may be late, or fail once and be tried again."""


class Cause(StrEnum):
    """What holds a job, or why nothing has to happen.

    Example:
        >>> Cause("type_paused") is Cause.TYPE_PAUSED
        True
    """

    CLOSED = "closed"
    """Its chain is closed."""
    RUNNING = "running"
    """A worker has its lease."""
    LEASE_EXPIRED = "lease_expired"
    """Its worker has not renewed the lease in time: the next reaper takes the job."""
    BLOCKED = "blocked"
    """It waits for other chains."""
    WAITS_IN_CIRCLE = "waits_in_circle"
    """A chain that it waits for waits for it in turn: none of them can ever run."""
    SCHEDULED = "scheduled"
    """Its time has not come."""
    WAITS_FOR_CLIENT = "waits_for_client"
    """A client is to complete it, or to continue its chain: no worker runs it."""
    WAITS_FOR_EVENT = "waits_for_event"
    """It waits until an event is sent to its chain, or a timeout."""
    RETRY_DELAYED = "retry_delayed"
    """The pause after a failed attempt is not over."""
    TYPE_PAUSED = "type_paused"
    """An operator has paused its type."""
    NO_WORKER = "no_worker"
    """No live worker handles its type."""
    WORKERS_SILENT = "workers_silent"
    """The workers that handle its type have died, or hang, or cannot reach the store: their heartbeats are overdue."""
    WORKERS_BUSY = "workers_busy"
    """All workers that handle its type have no free slot."""
    CONCURRENCY_LIMIT = "concurrency_limit"
    """As many jobs of its type run as may run at once."""
    KEY_LIMIT = "key_limit"
    """As many jobs of its limit key run as may run at once."""
    RATE_LIMIT = "rate_limit"
    """As many attempts have begun as may begin within the window of the rate."""
    KEY_ORDER = "key_order"
    """A chain of the same limit key goes first, and is not closed."""
    KEY_TURN = "key_turn"
    """The keys of its type take turns."""
    BEHIND_OTHERS = "behind_others"
    """Other ready jobs of its type are claimed first."""
    DUE = "due"
    """Nothing holds it: the next claim of its type takes it."""


RETRIABLE = (ChainStatus.FAILED, ChainStatus.CANCELLED)


@dataclass(frozen=True, slots=True)
class Reason:
    """One cause, in words.

    Attributes:
        cause: what it is, for programs.
        text: a sentence for people, without a full stop.
        until: when it ends, if that is known. UTC.
    """

    cause: Cause
    text: str
    until: datetime | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a chain is not closed yet: all that holds the job that it stands at.

    Attributes:
        chain_id: the id of the chain.
        chain_type: the job type of its first job.
        chain_status: the status of the chain.
        job_id: the id of its last job.
        job_type: the job type of that job.
        job_status: the status of that job.
        reasons: what holds the job; one of ``closed`` or ``due`` if nothing does.
        blockers: the explanations of the open chains that the job waits for, with the one that goes first in the order
            of its key.
        more_blockers: how many open chains it waits for that are not explained, for their number or depth.

    Example::

        for held in client.explain(chain).leaves():
            print(held.chain_id, *held.reasons)
    """

    chain_id: str
    chain_type: str
    chain_status: ChainStatus
    job_id: str
    job_type: str
    job_status: JobStatus
    reasons: tuple[Reason, ...]
    blockers: tuple[Explanation, ...] = ()
    more_blockers: int = 0

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The causes of the reasons, for programs."""
        return tuple(reason.cause for reason in self.reasons)

    def leaves(self) -> Iterator[Explanation]:
        """The explanations that have no blockers: what must be mended first."""
        if not self.blockers:
            yield self
        for blocker in self.blockers:
            yield from blocker.leaves()

    def __str__(self) -> str:
        return "\n".join(self._lines(""))

    def _lines(self, indent: str) -> Iterator[str]:
        job = "" if self.job_id == self.chain_id else f", at job {self.job_id} of type {self.job_type}"
        status = self.job_status if self.chain_status is ChainStatus.OPEN else self.chain_status
        yield f"{indent}chain {self.chain_id} of type {self.chain_type}{job}: {status}"
        for reason in self.reasons:
            yield f"{indent}  - {reason}"
        for blocker in self.blockers:
            yield from blocker._lines(f"{indent}    ")
        if self.more_blockers:
            yield f"{indent}    and {self.more_blockers} more open {_chains(self.more_blockers)}"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is the same for all jobs of one explanation: the paused types, and the workers that are listed.

    How many jobs a worker runs is read from the jobs, where it is known at once; its heartbeat may be 20 seconds old.
    """

    paused: Mapping[str, PausedType]
    workers: Sequence[WorkerRecord]
    client_types: Mapping[str, ClientType] = field(default_factory=dict)
    closing_types: frozenset[str] = frozenset()
    """Those that close with their parents: a cascade of retries opens them with these."""


def reasons(
    chain: ChainRecord,
    job: Job,
    facts: WaitFacts,
    around: Surroundings,
    blockers: Sequence[BlockerRecord],
    closed: Sequence[ChainRecord] = (),
) -> list[Reason]:
    """What holds the last job of a chain. Pure function.

    Args:
        blockers: the chains that the job waits for, or waited for if one of them made it fail.
        closed: those of them that are failed or cancelled, and such ones that made these fail; ``MAX_CLOSED`` at most.
    """
    if chain.status is not ChainStatus.OPEN:
        return [_closed(chain, blockers, closed, around)]
    open_blockers = sum(one.status is ChainStatus.OPEN for one in blockers)
    if job.status.final:
        # The chain goes on so fast that it has, while it was read, each time.
        return [Reason(Cause.DUE, f"the chain has gone on while it was read: job {job.id} is {job.status}; look again")]
    is_running = job.status is JobStatus.RUNNING
    first, *others = _running(job, facts, around) if is_running else _waiting(job, facts, around, open_blockers)
    return [replace(first, text=_and(first.text, _crashes(job))), *others]


def _waiting(job: Job, facts: WaitFacts, around: Surroundings, open_blockers: int) -> list[Reason]:
    found: list[Reason] = []
    if job.status is JobStatus.BLOCKED:
        found.append(_blocked(open_blockers))
    elif job.scheduled_at > facts.now:
        found.append(_scheduled(job, facts))
    if job.type in around.client_types:
        return found or [_waits_for_client(job, facts.now, around.client_types[job.type].overdue_after)]
    found += _type_reasons(job.type, facts.now, around)
    is_claimable = not found
    # Also of a job that is not claimable yet: who mends that should know of them.
    limiting = _limit_reasons(job, facts)
    found += limiting
    if not is_claimable:
        return found
    who = _who(job.type, facts.now, around)
    if not limiting and facts.limits is not None and facts.limits.fair:
        found.append(_turn(job, facts, who))
    elif not limiting and facts.ahead:
        found.append(Reason(Cause.BEHIND_OTHERS, f"{_ready(facts)} claimed before it, of type {job.type}; {who}"))
    heard_of = _heard_of(job.type, facts.now, around)
    # A batch of a bulk operation needs no slot.
    if job.type != BULK_OPERATION_TYPE and not any(worker.running < worker.concurrency for worker in heard_of):
        names = named(f"{one.id} ({one.running} of {one.concurrency})" for one in heard_of)
        text = _and(
            f"no worker of type {job.type} has a free slot: {names}", stopping_workers(around.workers, job.type)
        )
        found.append(Reason(Cause.WORKERS_BUSY, text))
    return found or [Reason(Cause.DUE, f"nothing holds it: the next claim of its type takes it; {who}")]


def circles(ids: Iterable[str | None]) -> list[Reason]:
    """What holds a job that waits for these chains, each of which waits for its chain. Pure function."""
    return [
        Reason(Cause.WAITS_IN_CIRCLE, f"chain {id} waits for it in turn: neither can ever run; cancel one of them")
        for id in ids
    ]


def in_a_line(explanation: Explanation) -> str:
    """What holds a chain, and if that waits for others the first leaf of them, in a line. Pure function."""
    text = "; ".join(map(str, explanation.reasons))
    leaf = next(explanation.leaves())
    if leaf is not explanation:
        verb = "is one that it waits for" if leaf.more_blockers else "holds it"
        text += f"; chain {leaf.chain_id} of type {leaf.chain_type} {verb}: {'; '.join(map(str, leaf.reasons))}"
    return text


def _closed(
    chain: ChainRecord, blockers: Sequence[BlockerRecord], closed: Sequence[ChainRecord], around: Surroundings
) -> Reason:
    error = "" if chain.error is None else f": {_short(chain.error)}"
    text = f"the chain is {chain.status} since {_time(chain.closed_at)}{error}"
    if failed_for_blocker(chain):
        text = _and(text, _blockers_since(chain, blockers, closed, around))
    return Reason(Cause.CLOSED, text)


def failed_for_blocker(chain: ChainRecord) -> bool:
    """Whether a chain failed since its last job waited for one that did."""
    return chain.status is ChainStatus.FAILED and chain.error is not None and chain.error.kind == "blocker_failed"


def _blockers_since(
    chain: ChainRecord, blockers: Sequence[BlockerRecord], closed: Sequence[ChainRecord], around: Surroundings
) -> str:
    """What has become of the chains that made one fail, and which command does all: its error says what they were."""
    direct = [one for one in blockers if one.status in RETRIABLE]
    waits = named(one.chain_id for one in blockers if one.status is ChainStatus.OPEN)
    if not direct:
        if waits:
            return f"{_are(waits, 'open again')}: {_retry([chain.id])} makes this one wait for it"
        # A retry fails again if one of them was deleted, and the job does not say how many there were.
        runs = f"{_retry([chain.id])} runs it again, unless one was deleted"
        return f"what it waited for is completed now: {runs}" if blockers else ""
    of_id = {one.chain_id: one.status for one in direct} | {one.id: one.status for one in closed}
    failed = [id for id, status in of_id.items() if status is ChainStatus.FAILED]
    cancelled = [id for id, status in of_id.items() if status is ChainStatus.CANCELLED]
    states = ((failed, "failed"), (cancelled, "cancelled"))
    said = ", ".join(_are(named(ids), status) for ids, status in states if ids)
    closing = {one.id for one in closed if one.type in around.closing_types}
    closing.update(one.chain_id for one in direct if one.type in around.closing_types)
    # A cascade retries blockers that failed, or that close with their parents. Others must be given.
    given = [id for id in cancelled if id not in closing]
    if len(closed) >= MAX_CLOSED or len(given) > _NAMED_TO_RETRY:
        if not given:
            return f"{said}: {_retry([chain.id], cascade=True)} retries this one with them"
        return f"{said}: retry all that are cancelled, and then {_retry([chain.id], cascade=True)} retries this one"
    ids, before = {one.chain_id for one in direct}, {one.id for one in closed if _closed_before(one, chain)}
    # What has closed again since does not count as the cause: a cascade of it does not reach this chain.
    if ids <= before and len(ids) <= _NAMED_TO_RETRY:
        all = list(dict.fromkeys([*(one.chain_id for one in direct), *given]))
        them = "it" if len(all) == 1 else "them"
        return f"{said}: {_retry(all, cascade=True)} retries {them} and what failed because of {them}"
    return f"{said}: {_retry([chain.id, *given], cascade=True)} retries this one with what it waits for"


def _closed_before(blocker: ChainRecord, chain: ChainRecord) -> bool:
    return blocker.closed_at is not None and chain.closed_at is not None and blocker.closed_at <= chain.closed_at


def _are(names: str, status: str) -> str:
    """That chains, as ``named`` returns them, are failed, cancelled or open again."""
    return f"chains {names} are {status}" if ", " in names or " and " in names else f"chain {names} is {status}"


def _retry(ids: Sequence[str], *, cascade: bool = False) -> str:
    """The command that retries chains, to be given to a shell as it is: ids are text of any kind."""
    return f"queuert chains retry {shlex.join(ids)}{' --cascade' if cascade else ''}"


def _crashes(job: Job) -> str:
    """That a job may be the one that kills its workers; empty if none of its attempts crashed."""
    number = job.lease_expirations
    if not number:
        return ""
    have = "has" if number == 1 else "have"
    return f"{number} of its attempts {have} crashed or lost the lease: queuert jobs show {job.id} names the workers"


def _blocked(open_blockers: int) -> Reason:
    if open_blockers:
        return Reason(Cause.BLOCKED, f"waits for {open_blockers} open {_chains(open_blockers)}")
    return Reason(
        Cause.BLOCKED, "is blocked, and no chain that it waits for is open: the maintenance of a worker releases it"
    )


def _running(job: Job, facts: WaitFacts, around: Surroundings) -> list[Reason]:
    worker = next((one for one in around.workers if one.id == job.holder), None)
    is_operation = job.type == BULK_OPERATION_TYPE
    whose, holder = "that worker", f"worker {job.holder}"
    if worker is not None:
        heard = f"was last heard of {_time(worker.seen_at)}"
    elif is_operation:
        # Clients carry out operations as well, and have no heartbeat.
        whose, holder = "it", f"{job.holder}"
        heard = "is no live worker: it is a client, or has stopped or died"
    else:
        heard = "is not listed: it has stopped or died"
    ends = job.lease_expires_at
    if ends is not None and ends <= facts.now:
        # Any worker takes it back if its type has become one of clients, and the worker knows that.
        type = None if job.type in around.client_types else job.type
        heard_of = _heard_of(type, facts.now, around)
        others = [one for one in heard_of if one.id != job.holder]
        taken = "a reaper takes the job next" if others else "no other worker of its type is there to take the job"
        if is_operation and not others:
            taken = f"no other worker is there to take the job: start one, or run {_RUN}"
        text = f"the lease of {holder} expired {_time(ends)}; {whose} {heard}; {taken}"
        return [Reason(Cause.LEASE_EXPIRED, text), *_type_reasons(job.type, facts.now, around)]
    text = (
        f"{holder} runs attempt {job.attempt} since {_time(job.started_at)}, and has the lease until "
        f"{_time(ends)}; {whose} {heard}"
    )
    return [Reason(Cause.RUNNING, text, ends)]


def _scheduled(job: Job, facts: WaitFacts) -> Reason:
    at = job.scheduled_at
    failure = job.failures[-1] if job.failures else None
    # A job that sleeps or was snoozed may have failed in an earlier attempt.
    if failure is not None and failure.attempt == job.attempt:
        text = f"waits until {_time(at)} after attempt {job.attempt} failed: {_short(failure.error)}"
        return Reason(Cause.RETRY_DELAYED, text, at)
    if facts.event is not None:
        # A misspelt name is kept until the chain is deleted, and nobody else tells.
        others = [repr(name) for name in facts.kept_events if name != facts.event]
        text = f"waits for the event {facts.event!r} until {_time(at)}"
        sent = f"events that were sent to it, and that no job has taken: {named(others)}" if others else ""
        return Reason(Cause.WAITS_FOR_EVENT, _and(text, sent), at)
    if facts.sleep is not None:
        return Reason(Cause.SCHEDULED, f"sleeps until {_time(at)}, in step {facts.sleep!r}", at)
    return Reason(Cause.SCHEDULED, f"is scheduled for {_time(at)}", at)


def _waits_for_client(job: Job, now: datetime, overdue_after: float | None) -> Reason:
    text = f"waits for a client to complete it, since {_time(job.scheduled_at)}"
    overdue = overdue_at(job.status, job.scheduled_at, overdue_after)
    if overdue is not None:
        text += f"; overdue {'since' if overdue <= now else 'after'} {_time(overdue)}"
    return Reason(Cause.WAITS_FOR_CLIENT, text)


def _type_reasons(type: str, now: datetime, around: Surroundings) -> list[Reason]:
    found = []
    paused = around.paused.get(type)
    if paused is not None:
        reason = "" if paused.reason is None else f": {_short(paused.reason)}"
        since = f"since {_time(paused.paused_at)}{'' if paused.by is None else f' by {paused.by}'}"
        text = f"type {type} is paused {since}{reason}"
        if type == BULK_OPERATION_TYPE:
            text += f"; neither workers nor {_RUN} do batches until queuert job-types resume {type}"
        found.append(Reason(Cause.TYPE_PAUSED, text))
    remedy = f"any worker does batches, whatever it handles: start one, or run {_RUN}"
    if not _claiming(type, around):
        stopping = stopping_workers(around.workers, type)
        others = sorted(claimed_types(around.workers) - EVERY_WORKER_HANDLES)
        whose = "the other workers handle" if stopping else "the live workers handle"
        handled = _and(stopping, f"{whose} {', '.join(others)}" if others else "")
        if not handled:
            handled = "all live workers are stopping" if around.workers else "no worker is alive"
        text = f"no live worker handles type {type}: {handled}"
        found.append(Reason(Cause.NO_WORKER, _and(text, remedy if type == BULK_OPERATION_TYPE else "")))
    elif not _heard_of(type, now, around):
        often = f"{_heard(type, now, around)}, and write every {HEARTBEAT_SECONDS:g} s"
        text = _and(f"{often}: they have died, hang, or cannot reach the store", stopping_workers(around.workers, type))
        found.append(Reason(Cause.WORKERS_SILENT, _and(text, remedy if type == BULK_OPERATION_TYPE else "")))
    return found


def _limit_reasons(job: Job, facts: WaitFacts) -> list[Reason]:
    limits = facts.limits
    if limits is None:
        return []
    found = []
    if facts.behind_chain is not None:
        text = f"waits for its turn behind chain {facts.behind_chain} of key {job.limit_key!r}"
        found.append(Reason(Cause.KEY_ORDER, text))
    if limits.concurrency is not None and facts.running >= limits.concurrency:
        used = f"{facts.running} of {limits.concurrency} run{_held(facts.running, facts.held)}"
        text = f"the limit of type {job.type} is used up: {used}"
        found.append(Reason(Cause.CONCURRENCY_LIMIT, text))
    if limits.per_key is not None and job.limit_key is not None and facts.running_of_key >= limits.per_key:
        used = f"{facts.running_of_key} of {limits.per_key} run{_held(facts.running_of_key, facts.held_of_key)}"
        text = f"the limit of key {job.limit_key!r} is used up: {used}"
        found.append(Reason(Cause.KEY_LIMIT, text))
    rate, free_at = limits.rate, facts.rate_free_at
    # A job that is due later than that is not held by the rate.
    if rate is not None and free_at is not None and free_at > max(facts.now, job.scheduled_at):
        whose = "jobs without a key" if job.limit_key is None else f"key {job.limit_key!r}"
        used = f"{facts.begun} of {rate.count} attempts began within {rate.seconds:g} s"
        text = f"the rate of {whose} is used up: {used}, the next may begin {_time(free_at)}"
        found.append(Reason(Cause.RATE_LIMIT, text, free_at))
    return found


def _held(count: int, held: Sequence[HeldJob]) -> str:
    """Whose jobs use up a limit."""
    jobs = ", ".join(f"{one.id} at worker {one.holder}" for one in held)
    rest = f" and {count - len(held)} more" if count > len(held) else ""
    return f" ({jobs}{rest})" if held else ""


def _turn(job: Job, facts: WaitFacts, who: str) -> Reason:
    whose = "jobs without a key" if job.limit_key is None else f"key {job.limit_key!r}"
    before = f"{_ready(facts)} claimed before it" if facts.ahead else "it is the next"
    return Reason(Cause.KEY_TURN, f"the keys of type {job.type} take turns: of {whose}, {before}; {who}")


def _who(type: str, now: datetime, around: Surroundings) -> str:
    """Who claims jobs of a type: of bulk operations that is not seen from the handlers of the workers."""
    heard = _and(_heard(type, now, around), stopping_workers(around.workers, type))
    if type != BULK_OPERATION_TYPE:
        return heard
    ids = named(one.id for one in _heard_of(type, now, around))
    return f"any live worker ({ids}) does the next batch, or {_RUN}; {heard}"


def _and(text: str, more: str) -> str:
    return "; ".join(filter(None, (text, more)))


def _heard(type: str, now: datetime, around: Surroundings) -> str:
    """When the workers of a type last wrote a heartbeat: those that died are listed for a minute."""
    seconds = min((now - one.seen_at).total_seconds() for one in _claiming(type, around))
    return f"its workers were last heard of {max(0, round(seconds))} s ago"


def _ready(facts: WaitFacts) -> str:
    number = f"{facts.ahead:,} or more" if facts.ahead >= COUNTED_WAIT else f"{facts.ahead:,}"
    return f"{number} ready {'job is' if facts.ahead == 1 else 'jobs are'}"


def _claiming(type: str, around: Surroundings) -> list[WorkerRecord]:
    return [one for one in around.workers if type in one.claimed_types]


def _heard_of(type: str | None, now: datetime, around: Surroundings) -> list[WorkerRecord]:
    """The workers of a type, or of any, that have written a heartbeat in time."""
    workers = around.workers if type is None else _claiming(type, around)
    return [one for one in workers if now - one.seen_at <= SILENT_AFTER]


def _chains(count: int) -> str:
    return "chain" if count == 1 else "chains"


def _short(error: object) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _MAX_ERROR else f"{text[: _MAX_ERROR - 4]} ..."


def _time(at: datetime | None) -> str:
    return "?" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"
