"""The invariants of chains, management calls and workers; see :mod:`queuert.testing.chaos.invariants`."""

from __future__ import annotations

from collections.abc import Iterator

from queuert.testing.chaos.history import History
from queuert.testing.chaos.invariants import _reported, invariant

_DEATHS = (-9, -11, 9)
_POISONED = "SELECT x.pid FROM x JOIN s ON s.id = x.job_id WHERE s.type = 'chaos.poison' AND mark = 'began'"
"""Stops that a poisonous job made impossible because it killed the worker first, and the workers' exit codes."""
_REQUESTED = "SELECT id FROM a WHERE how = 'outside' AND op = '{}' AND outcome IN ('ack', 'unknown')"


@invariant("I11", "a chain goes on in the transaction that ends its last job")
def chains_are_whole(history: History) -> Iterator[str]:
    """Report gaps, jobs before the last that are not `continued`, and continuations by another transaction than the
    finish."""
    yield from _reported(
        history,
        """SELECT chain_id, count(*), max(chain_index) FROM s GROUP BY chain_id
           HAVING max(chain_index) + 1 <> count(*) OR min(chain_index) <> 0""",
        "{} has {} jobs, and the last has the index {}",
    )
    yield from _reported(
        history,
        """SELECT one.id, one.status FROM s AS one JOIN s AS next
               ON next.chain_id = one.chain_id AND next.chain_index = one.chain_index + 1
           WHERE one.status <> 'continued' OR one.continued_by <> next.id""",
        "{} is {}, and a job follows it that it did not continue with",
    )
    yield from _reported(
        history,
        """SELECT ended.job_id FROM c_lives AS ended
           JOIN s_lives AS one ON one.id = ended.job_id AND one.life = ended.life
           JOIN c AS born ON born.job_id = one.continued_by AND born.kind = 'insert'
           WHERE ended.new_status = 'continued' AND ended.kind = 'update' AND ended.tx <> born.tx""",
        "{} was continued in another transaction than its successor was made in",
    )
    yield from _reported(
        history,
        """SELECT s.id, s.chain_status, last.status FROM s
           JOIN (SELECT chain_id, status, max(chain_index) FROM s GROUP BY chain_id) AS last ON last.chain_id = s.id
           WHERE s.chain_index = 0 AND last.status IN ('completed', 'failed', 'cancelled')
               AND s.chain_status <> last.status""",
        "chain {} is {}, and its last job {}",
    )


@invariant("I12", "a job has one successor at most")
def one_successor(history: History) -> Iterator[str]:
    """Report two jobs at one index of a chain, or continuations that were created one after the other."""
    yield from _reported(
        history,
        """SELECT chain_id, chain_index, count(DISTINCT job_id) FROM c WHERE kind = 'insert'
               AND chain_id NOT IN (SELECT chain_id FROM c WHERE kind = 'delete')
           GROUP BY chain_id, chain_index HAVING count(DISTINCT job_id) > 1""",
        "chain {} got {}. jobs: {} of them",
    )


@invariant("I13", "a job waits for all its blockers, and never when they have closed")
def blockers_are_waited_for(history: History) -> Iterator[str]:
    """Report blocked jobs of closed chains, claims before a blocker had closed, and wrong counters of open blockers."""
    yield from _reported(
        history,
        """SELECT id FROM s WHERE status = 'blocked' AND id NOT IN (
               SELECT b.job_id FROM b JOIN s AS chain ON chain.id = b.chain_id WHERE chain.chain_status = 'open')""",
        "{} is blocked, and all that it waits for has closed",
    )
    yield from _reported(
        history,
        """SELECT s.id, s.open_blockers FROM s WHERE s.open_blockers <> (
               SELECT count(*) FROM b JOIN s AS chain ON chain.id = b.chain_id
               WHERE b.job_id = s.id AND chain.chain_status = 'open')""",
        "{} counts {} open blockers, and has another number",
    )
    yield from _reported(
        history,
        f"""SELECT claim.job_id, b.chain_id FROM b JOIN s_lives AS s ON s.id = b.job_id
            JOIN (SELECT job_id, life, min(number) AS number FROM c_lives WHERE new_status = 'running'
                  AND kind = 'update' GROUP BY job_id, life) AS claim ON claim.job_id = s.id AND claim.life = s.life
            JOIN (SELECT chain_id, min(number) AS number FROM c
                  WHERE new_status IN ('completed', 'failed', 'cancelled') AND kind = 'update' GROUP BY chain_id)
                AS closed ON closed.chain_id = b.chain_id
            WHERE claim.number < closed.number AND b.chain_id NOT IN ({_REQUESTED.format("retry")})""",
        "{} was claimed before {} had closed",
    )


@invariant("I17", "what was cancelled before it began never begins, and no effect of it stands")
def cancelled_is_cancelled(history: History) -> Iterator[str]:
    """Report cancelled jobs that were claimed later, or have an effect."""
    reopened = _REQUESTED.format("retry")
    yield from _reported(
        history,
        f"""SELECT claim.job_id FROM c_lives AS claim
                JOIN c_lives AS over ON over.job_id = claim.job_id AND over.life = claim.life
            WHERE over.new_status = 'cancelled' AND over.kind = 'update' AND claim.new_status = 'running'
                AND claim.kind = 'update' AND claim.number > over.number AND claim.chain_id NOT IN ({reopened})""",
        "{} was claimed after it was cancelled",
    )
    yield from _reported(
        history,
        """SELECT s.id FROM s_lives AS s JOIN e_lives AS e ON e.job_id = s.id AND e.life = s.life
           WHERE s.status = 'cancelled'""",
        "{} is cancelled and has an effect",
    )


@invariant("I20", "jobs that nobody handles stop nobody")
def unknown_types_wait(history: History) -> Iterator[str]:
    """Report changes of jobs without a handler. I4 checks that all other jobs have ended."""
    yield from _reported(
        history,
        """SELECT id, status, attempt FROM s WHERE type = 'chaos.nobody' AND (attempt > 0 OR status <> 'ready')
               AND id NOT IN (SELECT id FROM a WHERE how = 'outside')""",
        "{} has no handler, and is {} after {} attempts",
    )


@invariant("I21", "notifications are nothing but notifications")
def notifications_are_notifications(history: History) -> Iterator[str]:
    """Report times without notifications in which no attempt began, although jobs were due: workers must poll."""
    yield from _reported(
        history,
        """SELECT f.number FROM f WHERE f.kind = 'cut listeners' AND f.happened = 1
               AND NOT EXISTS (SELECT 1 FROM p WHERE p.name = 'AttemptStarted' AND p.at > f.began)
               AND EXISTS (SELECT 1 FROM c WHERE c.kind = 'insert' AND c.new_status = 'ready' AND c.at > f.began)""",
        "nothing began after fault {} had cut the notifications off",
    )


@invariant("I24", "events tell of what is stored, and of nothing else")
def events_are_true(history: History) -> Iterator[str]:
    """Report completions that a worker reported, but that are not committed as that attempt's."""
    yield from _reported(
        history,
        """SELECT p.job_id, p.attempt FROM p WHERE p.name = 'AttemptCompleted' AND NOT EXISTS (
               SELECT 1 FROM c WHERE c.job_id = p.job_id AND c.new_attempt = p.attempt AND c.kind = 'update'
                   AND c.new_status = 'completed')""",
        "a worker told that attempt {1} of {0} had completed it, and it had not",
    )


@invariant("I25", "a worker that is asked to stop ends cleanly, and leaves no lease")
def stops_are_clean(history: History) -> Iterator[str]:
    """Report exit codes that nothing explains, and leases that the worker could have released.

    Exit code 4 is right if a handler ignored its cancellation, 3 if the worker had not begun. A lease may be left if
    the worker reported that it gave the lease up because it could not renew it in time, or that it could not release it
    although it tried for the whole shutdown timeout. No fault by itself explains anything; but a worker that a
    poisonous job has killed did not stop.
    """
    yield from _reported(
        history,
        # A process that is frozen in a transaction holds SQLite's only write lock, and the handlers of all workers wait
        # for it.
        f"""SELECT pid, code FROM stops WHERE code IS NOT 0 AND killed IS NOT 1
            AND NOT (code = 4 AND ({int(history.store == "sqlite")}
                OR EXISTS (SELECT 1 FROM x WHERE x.pid = stops.pid AND mark = 'reported')))
            AND NOT (code = 3 AND NOT EXISTS (SELECT 1 FROM p WHERE p.pid = stops.pid AND name = 'WorkerStarted'))
            AND NOT (code IN {_DEATHS} AND pid IN ({_POISONED}))""",
        "worker {} was asked to stop, and ended with {}",
    )
    yield from _reported(
        history,
        "SELECT pid, round(ended - began, 1) FROM stops WHERE killed = 1",
        "worker {} was asked to stop, and had to be killed after {} s: the report has its stacks",
    )
    yield from _reported(
        history,
        f"""SELECT stops.pid, job_id, attempt FROM leftover JOIN stops ON stops.pid = leftover.pid
           WHERE killed IS NOT 1 AND NOT (code IN {_DEATHS} AND stops.pid IN ({_POISONED})) AND NOT EXISTS (
                   SELECT 1 FROM p WHERE p.pid = stops.pid AND name = 'AttemptAborted'
                       AND p.detail = 'lease_not_renewed'
                       AND p.job_id = leftover.job_id AND p.attempt = leftover.attempt)
               AND NOT EXISTS (
                   SELECT 1 FROM p WHERE p.pid = stops.pid AND name = 'StoreCallFailed'
                       AND p.operation IN ('stop_claiming', 'abandon_attempts'))""",
        "worker {} stopped, and left the lease of {}, attempt {}",
    )


@invariant("I26", "no transaction is left idle, and no connection of the dead")
def connections_are_let_go(history: History) -> Iterator[str]:
    """Report transactions that are idle after the run has drained, and connections that are open after all processes
    ended."""
    idle = history.fact("idle transactions", 0)
    if idle:
        yield f"{idle} transactions idle after the drain"
    left = history.fact("connections left", 0)
    if left:
        yield f"{left} connections are left when everybody is gone"


@invariant("I27", "only what has closed is cleaned up")
def only_the_closed_go(history: History) -> Iterator[str]:
    """Report open chains that were deleted although no client asked for it."""
    yield from _reported(
        history,
        f"""SELECT job_id, old_status FROM c WHERE kind = 'delete'
                AND old_status NOT IN ('continued', 'completed', 'failed', 'cancelled')
                AND chain_id NOT IN ({_REQUESTED.format("delete")})""",
        "{} was {} and went, and nobody had asked for it",
    )


@invariant("I28", "migrations at the same time are one migration")
def one_migration(history: History) -> Iterator[str]:
    """Report migrations that failed because others ran at the same time."""
    failed = history.fact("migrations that failed", 0)
    if failed:
        yield f"{failed} of the migrations that ran at the same time failed"


@invariant("I29", "in Redis a job is in exactly one place")
def places_are_right(history: History) -> Iterator[str]:
    """Report what the scan of all keys found."""
    for row in history.rows("SELECT value FROM facts WHERE name = 'fault of a key'"):
        yield str(row[0])
