"""Parameters that statements of several groups share. Pure functions.

Many rows are sent as one JSON text. One parameter is cheaper to make and to read than a dozen arrays, and inputs, which
are JSON text already, are copied as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from json.encoder import encode_basestring_ascii
from typing import Any

from queuert.attributes import attributes_text, pairs_of
from queuert.jobs import JobError
from queuert.run_at import RunAt
from queuert.state.steps import MAX_EVENT_BYTES, MAX_EVENTS, EventWait, NewEvent, NewStep
from queuert.state.types import Finish, FinishKind, Lease, NewJob, ReapRequest, Renewal, failure_error

Parameters = dict[str, Any]

MAX_STATEMENT_CHARACTERS = 32 * 1024 * 1024
"""Larger batches are split into several statements: Postgres limits a parameter to 1 GB and needs a multiple of its
size."""


_ROW_CHARACTERS = 4_000
"""An upper limit of a job's row besides its input and trace context: ids, keys and types are of bounded length."""


def quoted(text: str | None) -> str:
    """Return a JSON string, or null."""
    return "null" if text is None else encode_basestring_ascii(text)


def number(value: float | None) -> str:
    """Return a JSON number, or null."""
    return "null" if value is None else repr(value)


def array(rows: Iterable[str]) -> str:
    """Return a JSON array of JSON texts."""
    return f"[{','.join(rows)}]"


def text_array(texts: Sequence[str]) -> str:
    """Return an array of Postgres as text, in a fraction of the time of psycopg's adapter, which examines each
    element."""
    if not texts:
        return "{}"
    joined = '","'.join(texts)
    if "\\" in joined or joined.count('"') > 2 * (len(texts) - 1):
        joined = '","'.join(text.replace("\\", "\\\\").replace('"', '\\"') for text in texts)
    return f'{{"{joined}"}}'


def nullable_text_array(texts: Sequence[str | None]) -> str:
    """Return an array of Postgres, whose elements may be null, as text."""
    return f"{{{','.join('NULL' if text is None else text_array([text])[1:-1] for text in texts)}}}"


def _run_at(run_at: RunAt | None) -> tuple[str, str]:
    if run_at is None:
        return "0", "null"
    moment = "null" if run_at.moment is None else f'"{run_at.moment.isoformat()}"'
    return repr(run_at.delay or 0.0), moment


def new_job(job: NewJob, *, awaited: bool = False) -> str:
    """Return one row of ``start_jobs``; ``awaited`` says that another job will wait for its chain."""
    delay, moment = _run_at(job.run_at)
    attributes = f'"attributes":{attributes_text(job.attributes)},' if job.attributes else ""
    attempts = "" if job.max_attempts is None else f'"max_attempts":{job.max_attempts},'
    return (
        f'{{{attributes}{attempts}"id":{quoted(job.id)},"type":{quoted(job.type)},"priority":{job.priority},"delay":{delay},'
        f'"moment":{moment},"input":{job.input},"trace_context":{quoted(job.trace_context)},'
        f'"limit_key":{quoted(job.limit_key)},"awaited":{"true" if awaited else "false"},'
        f'"result_ttl":{number(job.result_ttl)},'
        f'"deduplication_key":{quoted(None if job.deduplication is None else job.deduplication.key)}}}'
    )


def chunks(rows: Iterable[str]) -> Iterator[list[str]]:
    """Yield JSON texts in lists, each small enough for one statement."""
    chunk: list[str] = []
    size = 0
    for row in rows:
        if chunk and size + len(row) > MAX_STATEMENT_CHARACTERS:
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += len(row)
    if chunk:
        yield chunk


def start_chunks(jobs: Sequence[NewJob], *, awaited: bool = False, before: int = 0) -> Iterator[Parameters]:
    """Yield the parameters of ``start_jobs`` and ``start_if_absent``, in as few statements as the size allows.

    ``before`` is the number of jobs of the same call in earlier statements.
    """
    for rows in chunks(new_job(job, awaited=awaited) for job in jobs):
        yield {"jobs": array(rows), "before": before}
        before += len(rows)


def plain_start(jobs: Sequence[NewJob], *, awaited: bool = False, before: int = 0) -> Parameters | None:
    """Return the parameters of ``start_uniform``, or of ``start_one`` for one job; None if these statements cannot
    write the jobs.

    ``before`` is as in :func:`start_chunks`.
    """
    first = jobs[0]
    shared = (first.type, first.priority, first.trace_context, first.limit_key, first.result_ttl)
    size = 0
    for job in jobs:
        if job.run_at is not None or job.deduplication is not None or job.attributes or job.max_attempts is not None:
            return None
        if (job.type, job.priority, job.trace_context, job.limit_key, job.result_ttl) != shared:
            return None
        size += len(job.input)
    if size > MAX_STATEMENT_CHARACTERS:
        return None
    common = {
        "type": first.type,
        "priority": first.priority,
        "trace_context": first.trace_context,
        "limit_key": first.limit_key,
        "result_ttl": first.result_ttl,
        "awaited": awaited,
        "before": before,
    }
    if len(jobs) == 1:
        return {**common, "id": first.id, "input": first.input}
    return {
        **common,
        "ids": text_array([job.id for job in jobs]),
        "inputs": text_array([job.input for job in jobs]),
    }


def is_large(jobs: Sequence[NewJob]) -> bool:
    """Whether starting these jobs may take more than one statement."""
    size = 0
    for job in jobs:
        size += len(job.input) + len(job.trace_context or "") + _ROW_CHARACTERS
        for name, value in pairs_of(job.attributes) if job.attributes else ():
            size += len(name) + 2 * len(value)
    return size > MAX_STATEMENT_CHARACTERS


def blockers(jobs: Iterable[NewJob]) -> Parameters:
    """Return the parameters of ``add_blockers``."""
    rows = (
        f'{{"job_id":{quoted(job.id)},"chain_id":{quoted(chain_id)},"position":{position}}}'
        for job in jobs
        for position, chain_id in enumerate(job.blockers)
    )
    return {"blockers": array(rows)}


def error_json(error: JobError | None) -> str:
    """Return the error of a job as it is stored."""
    if error is None:
        return "null"
    type = "" if error.type is None else f',"type":{quoted(error.type)}'
    traceback = "" if error.traceback is None else f',"traceback":{quoted(error.traceback)}'
    return f'{{"kind":{quoted(error.kind)},"message":{quoted(error.message)}{type}{traceback}}}'


def closing_root(finish: Finish) -> str | None:
    """Return the id of the chain's first job if the finish of a later one closes the chain."""
    return finish.job.chain_id if finish.kind.closes_chain and finish.job.chain_index > 0 else None


def _finish_row(finish: Finish) -> str:
    job = finish.job
    short_error = _short_error(finish, '"short_error":')
    row = (
        f'{{"id":{quoted(job.id)},"token":"{job.token}","kind":"{finish.kind.value}","delay":{finish.delay!r},'
        f'"output":{finish.output or "null"},"error":{error_json(finish.error)},"root":{quoted(closing_root(finish))},'
        f'"crashed":{"true" if finish.crashed else "false"},"ttl":{number(finish.result_ttl)},'
        f'"trace":{quoted(job.attempt_trace_context)}{short_error}'
    )
    following = finish.continuation
    if finish.kind is FinishKind.SNOOZE:
        delay, moment = _run_at(finish.run_at)
        return f'{row},"next_delay":{delay},"next_moment":{moment}}}'
    if following is None:
        return row + "}"
    delay, moment = _run_at(following.run_at)
    inherits = ',"next_inherits":true' if following.inherit_limit_key else ""
    return (
        f'{row}{inherits},"next_id":{quoted(following.id)},"next_type":{quoted(following.type)},"next_input":{following.input},'
        f'"next_priority":{following.priority},"next_delay":{delay},"next_moment":{moment},'
        f'"next_trace":{quoted(following.trace_context)},"next_limit":{quoted(following.limit_key)}}}'
    )


def new_step(lease: Lease, step: NewStep) -> Parameters:
    """Return the parameters of ``record_step``, or of ``record_phase``."""
    wake_at = step.wake_at or RunAt()
    given = {
        "id": lease.job_id,
        "token": lease.token,
        "number": step.number,
        "name": step.name,
        "attempt": step.attempt,
        "result": step.result,
    }
    if step.started_at is not None:
        return {**given, "started_at": step.started_at, "progress": step.progress}
    return {**given, "moment": wake_at.moment, "delay": wake_at.delay}


def event_wait(lease: Lease, chain_id: str, wait: EventWait) -> Parameters:
    """Return the parameters of ``record_wait`` and ``answer_wait``."""
    return {
        "id": lease.job_id,
        "chain": chain_id,
        "number": wait.number,
        "name": wait.name,
        "attempt": wait.attempt,
        "event": wait.event,
        "timeout": wait.timeout,
    }


def sent_event(chain_id: str, tail_id: str, event: NewEvent) -> Parameters:
    """Return the parameters of ``send_event``."""
    return {
        "chain": chain_id,
        "tail": tail_id,
        "id": event.id,
        "name": event.name,
        "size": event.size,
        "payload": event.payload,
        "most": MAX_EVENTS,
        "most_bytes": MAX_EVENT_BYTES,
    }


def finish(finishes: Sequence[Finish], *, closes_awaited: bool) -> Parameters:
    """Return the parameters of ``finish``."""
    roots = {root for root in map(closing_root, finishes) if root is not None}
    return {
        "finishes": array(map(_finish_row, finishes)),
        "rows": text_array(list({one.job.id for one in finishes} | roots)),
        "roots": text_array(list(roots)),
        "tokens": text_array(list({one.job.token for one in finishes})),
        "closes_awaited": "true" if closes_awaited else "false",
    }


def locks(rows: Iterable[str], *, awaited: Iterable[str] = (), closing: Sequence[str] = ()) -> Parameters:
    """Return the parameters of ``lock_in_order``."""
    return {"rows": text_array(list(rows)), "awaited": text_array(list(awaited)), "closing": text_array(closing)}


def closed_chains(chains: Sequence[str]) -> Parameters:
    """Return the parameters of ``release_dependents``."""
    return {"chains": text_array(chains)}


def complete(finishes: Sequence[Finish]) -> Parameters:
    """Return the parameters of ``complete``."""
    params, traced = _completed(finishes)
    return {"params": params, "traced": traced}


def finish_simple(finishes: Sequence[Finish]) -> Parameters:
    """Return the parameters of ``finish_simple``."""
    completed = [one for one in finishes if one.kind is FinishKind.COMPLETE]
    failed = [one for one in finishes if one.kind is not FinishKind.COMPLETE]
    params, traced = _completed(completed)
    return {"completed": params, "traced": traced, "failed": f"{{{','.join(map(_failed_entry, failed))}}}"}


def _completed(finishes: Iterable[Finish]) -> tuple[str, str]:
    """Tokens, outputs and trace contexts by job id, as one JSON object; and whether any has a trace context."""
    entries, traced = [], "false"
    for finish in finishes:
        job = finish.job
        trace = ""
        if job.attempt_trace_context is not None:
            trace, traced = f",{quoted(job.attempt_trace_context)}", "true"
        entries.append(f'{encode_basestring_ascii(job.id)}:["{job.token}",{finish.output or "null"}{trace}]')
    return f"{{{','.join(entries)}}}", traced


def _failed_entry(finish: Finish) -> str:
    job = finish.job
    delay = repr(finish.delay) if finish.kind is FinishKind.RETRY else "null"
    error = "" if finish.error is None else f",{error_json(finish.error)}{_short_error(finish)}"
    trace = quoted(job.attempt_trace_context)
    return f'{quoted(job.id)}:["{job.token}",{delay},{finish.crashed:d},{trace}{error}]'


def _short_error(finish: Finish, name: str = "") -> str:
    """The error as it is kept among the failures, after a comma; nothing if it is the error itself."""
    error = failure_error(finish.error)
    return "" if error is finish.error else f",{name}{error_json(error)}"


def leases(held: Sequence[Lease]) -> Parameters:
    """Return the parameters of ``release``, ``fail_expired`` and ``lease_states``."""
    return {
        "ids": text_array([lease.job_id for lease in held]),
        "tokens": text_array([lease.token for lease in held]),
    }


def renewals(params: Sequence[Renewal]) -> Parameters:
    """Return the parameters of ``renew``."""
    reported = [renewal.progress for renewal in params]
    logged = [renewal.lease.job_id for renewal in params if renewal.logs_progress]
    return {
        **({"logged": text_array(logged)} if logged else {}),
        **leases([renewal.lease for renewal in params]),
        "seconds": text_array([str(renewal.seconds) for renewal in params]),
        "progress": nullable_text_array(reported) if any(one is not None for one in reported) else None,
    }


def reap(request: ReapRequest, after: tuple[datetime, str] | None = None) -> Parameters:
    """Return the parameters of ``reap``. Jobs that are to fail begin with those after this position."""
    time, id = after or (None, None)
    policies = request.policies.values()
    return {
        "types": list(request.policies),
        "max_attempts": [policy.max_attempts for policy in policies],
        "initials": [policy.initial_delay for policy in policies],
        "multipliers": [policy.multiplier for policy in policies],
        "maximums": [policy.max_delay for policy in policies],
        "jitters": [policy.jitter for policy in policies],
        "max_crashes": [policy.max_crashes for policy in policies],
        "limit": request.limit,
        "after": time,
        "after_id": id,
    }
