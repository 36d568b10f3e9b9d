"""What a history must never contain: one function for each invariant, which queries the tables of a history.

A function returns the contradictions, a sentence each; the invariant holds if there are none. Invariants about features
that do not exist here are in :data:`NOT_APPLICABLE`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from queuert.testing.chaos.history import History
from queuert.testing.chaos.workload import PATIENT, WITH_EFFECT
from queuert.webhooks.endpoints import DELIVERY_TYPE

Check = Callable[[History], list[str]]

INVARIANTS: dict[str, Check] = {}
"""The checks by id, such as ``I1``."""

TITLES: dict[str, str] = {}
"""The invariants in words, by id."""

NOT_APPLICABLE: Mapping[str, str] = {
    "I23": "there is no stream of server-sent events in this run",
    "I30": "starts from Spark are not part of this run",
}
"""Why some invariants have no check here."""

_FINAL = "('continued', 'completed', 'failed', 'cancelled')"
_EPSILON = 0.001


def invariant(id: str, title: str) -> Callable[[Callable[[History], Iterator[str]]], Check]:
    """Register a check under its id."""

    def register(check: Callable[[History], Iterator[str]]) -> Check:
        def all_of(history: History) -> list[str]:
            return list(check(history))

        all_of.__doc__ = check.__doc__
        INVARIANTS[id], TITLES[id] = all_of, title
        return all_of

    return register


def check_all(history: History) -> dict[str, list[str]]:
    """Return the contradictions to each invariant."""
    return {id: check(history) for id, check in INVARIANTS.items()}


def _names(types: frozenset[str]) -> str:
    return "(" + ", ".join(f"'{name}'" for name in sorted(types)) + ")"


def _reported(history: History, query: str, sentence: str) -> Iterator[str]:
    for row in history.rows(query):
        yield sentence.format(*row)


_DELETED = "SELECT job_id FROM c WHERE kind = 'delete'"

# --- starts -----------------------------------------------------------------------------------------------------------


@invariant("I1", "no start that was acknowledged is lost")
def nothing_is_lost(history: History) -> Iterator[str]:
    """Report acknowledged ids that are neither in the store nor deleted."""
    yield from _reported(
        history,
        f"""SELECT DISTINCT result_id FROM a WHERE outcome = 'ack' AND how NOT IN ('outside', 'rollback')
            AND result_id NOT IN (SELECT id FROM s) AND result_id NOT IN ({_DELETED})""",
        "{} was acknowledged and is not there",
    )


@invariant("I2", "a start commits with the caller's own rows, or not at all")
def starts_commit_with_rows(history: History) -> Iterator[str]:
    """Report rows without their chains, chains without their rows, and parts of transactions that were rolled back."""
    ids = "SELECT id FROM a WHERE how IN ('transaction', 'rollback')"
    there = f"SELECT id FROM s UNION {_DELETED}"
    yield from _reported(
        history, f"SELECT id FROM business WHERE id NOT IN ({there})", "{}: the row is there, and not its chain"
    )
    yield from _reported(
        history,
        f"SELECT id FROM s WHERE id IN ({ids}) AND id NOT IN (SELECT id FROM business)",
        "{}: the chain is there, and not its row",
    )
    yield from _reported(
        history,
        f"SELECT DISTINCT id FROM a WHERE how = 'rollback' AND id IN ({there})",
        "{} was rolled back, and is there",
    )


@invariant("I3", "nothing is there that no client asked for; a repeated start adds nothing")
def nothing_is_invented(history: History) -> Iterator[str]:
    """Report chains that no client started, and chains whose start was rejected."""
    requested = (
        "SELECT id FROM a WHERE outcome IN ('ack', 'unknown') UNION SELECT result_id FROM a WHERE outcome = 'ack'"
    )
    yield from _reported(
        history,
        f"""SELECT id FROM s WHERE chain_index = 0 AND id NOT IN (SELECT id FROM ({requested}) WHERE id IS NOT NULL)
            AND NOT (key <> '' AND key IN (SELECT key FROM a WHERE outcome = 'unknown'))
            AND type <> '{DELIVERY_TYPE}'""",
        "{} is there, and no client had an answer, or a doubt, about it",
    )
    yield from _reported(history, "SELECT id FROM s GROUP BY id HAVING count(*) > 1", "{} is there twice")


@invariant("I14", "chains of one deduplication key are never open at the same time")
def keys_are_unique(history: History) -> Iterator[str]:
    """Report overlapping windows of one key. The window of a reopened chain is not known, so these are left out."""
    yield from _reported(
        history,
        """SELECT one.key, one.id, other.id FROM s AS one JOIN s AS other
               ON one.key = other.key AND one.type = other.type AND one.id <> other.id
           WHERE one.key <> '' AND one.chain_index = 0 AND other.chain_index = 0
               AND (one.created_at < other.created_at OR one.created_at = other.created_at AND one.id < other.id)
               AND (one.chain_closed_at IS NULL OR other.created_at < one.chain_closed_at)
               AND one.id NOT IN (SELECT id FROM a WHERE how = 'outside' AND op = 'retry')
               AND other.id NOT IN (SELECT id FROM a WHERE how = 'outside' AND op = 'retry')""",
        "key {}: {} was open when {} was started",
    )


@invariant("I15", "a start that another stood in for got a chain that stands")
def stand_ins_stand(history: History) -> Iterator[str]:
    """Report ids that callers got from deduplication but that do not exist."""
    yield from _reported(
        history,
        f"""SELECT result_id, key FROM a WHERE outcome = 'ack' AND deduplicated = 1
            AND result_id NOT IN (SELECT id FROM s) AND result_id NOT IN ({_DELETED})""",
        "{} stood in for a start of key {}, and is not there",
    )


# --- leases and attempts ----------------------------------------------------------------------------------------------


@invariant("I4", "every job ends once the faults have stopped")
def everything_ends(history: History) -> Iterator[str]:
    """Report jobs that have not ended, except those without a handler; and failed jobs of types that retry for ever."""
    yield from _reported(
        history,
        f"SELECT id, type, status FROM s WHERE status NOT IN {_FINAL} AND type <> 'chaos.nobody'",
        "{} ({}) is still {}",
    )
    yield from _reported(
        history,
        f"""SELECT s.id, s.type FROM s WHERE status = 'failed' AND type IN {_names(PATIENT)}
            AND NOT EXISTS (SELECT 1 FROM b JOIN s AS chain ON chain.id = b.chain_id
                            WHERE b.job_id = s.id AND (chain.chain_status IN ('failed', 'cancelled') OR chain.id IN (
                                SELECT id FROM a WHERE how = 'outside' AND op = 'retry')))""",
        "{} ({}) failed, and never should",
    )


@invariant("I5", "a job has one live lease at a time")
def leases_do_not_overlap(history: History) -> Iterator[str]:
    """Report claims of a job that was under a lease, and claims of jobs that could not be claimed."""
    yield from _reported(
        history,
        """SELECT job_id, new_attempt, old_status FROM c
           WHERE kind = 'update' AND new_status = 'running' AND old_status NOT IN ('ready', 'scheduled')""",
        "{}: attempt {} was claimed while the job was {}",
    )


@invariant("I6", "only the newest attempt writes")
def only_the_holder_writes(history: History) -> Iterator[str]:
    """Report finishes with another token than the lease's, and effects of another attempt than the one that ended the
    job."""
    yield from _reported(
        history,
        """SELECT job_id, new_attempt FROM c WHERE kind = 'update' AND old_status = 'running'
               AND new_status IN ('completed', 'continued') AND new_token IS NOT NULL AND old_token <> new_token""",
        "{}: attempt {} was ended by another than its holder",
    )
    yield from _reported(
        history,
        """SELECT e.job_id, e.attempt, c.new_attempt FROM e_lives AS e
               JOIN c_lives AS c ON c.job_id = e.job_id AND c.life = e.life AND c.kind = 'update'
                   AND c.old_status = 'running' AND c.new_status IN ('completed', 'continued')
           WHERE c.new_token IS NOT NULL AND (e.token <> c.new_token OR e.attempt <> c.new_attempt)""",
        "{}: an effect of attempt {} stands, and attempt {} ended the job",
    )


@invariant("I7", "the effect of a completion stands exactly once")
def effects_stand_once(history: History) -> Iterator[str]:
    """Report two effects of a job, effects without a completion, and completions without an effect."""
    yield from _reported(
        history,
        "SELECT job_id, count(*) FROM e_lives GROUP BY job_id, life HAVING count(*) > 1",
        "{} has {} effects",
    )
    yield from _reported(
        history,
        """SELECT e.job_id, s.status FROM e_lives AS e JOIN s_lives AS s ON s.id = e.job_id AND s.life = e.life
           WHERE s.status NOT IN ('completed', 'continued')""",
        "{} has an effect and is {}",
    )
    if history.store != "redis":
        by_hand = """SELECT 1 FROM c_lives AS c WHERE c.job_id = s.id AND c.life = s.life
            AND c.new_status IN ('completed', 'continued') AND c.new_token IS NULL"""
        yield from _reported(
            history,
            f"""SELECT id, status FROM s_lives AS s WHERE type IN {_names(WITH_EFFECT)}
                AND status IN ('completed', 'continued')
                AND NOT EXISTS (SELECT 1 FROM e_lives AS e WHERE e.job_id = s.id AND e.life = s.life)
                AND NOT EXISTS ({by_hand})""",
            "{} is {} and has no effect",
        )


@invariant("I8", "what has ended stays as it is")
def finishes_are_final(history: History) -> Iterator[str]:
    """Report changes after the end that no client requested, and outputs that differ from those of the completion."""
    reopened = "SELECT id FROM a WHERE how = 'outside' AND op = 'retry' AND outcome IN ('ack', 'unknown')"
    yield from _reported(
        history,
        f"""SELECT job_id, old_status, new_status FROM c WHERE kind = 'update' AND old_status IN {_FINAL}
            AND NOT (old_status IN ('failed', 'cancelled') AND new_status IN ('ready', 'blocked', 'scheduled')
                     AND chain_id IN ({reopened}))""",
        "{} was {} and became {}",
    )
    yield from _reported(
        history,
        """SELECT s.id FROM s_lives AS s JOIN c_lives AS c ON c.job_id = s.id AND c.life = s.life
               AND c.new_status = 'completed' AND c.kind = 'update'
           WHERE c.output IS NOT s.output""",
        "{} has another output than it was completed with",
    )


@invariant("I9", "attempts count up by one")
def attempts_count_up(history: History) -> Iterator[str]:
    """Report claims that skip or repeat an attempt's number, and jobs whose number differs from that of their
    claims."""
    yield from _reported(
        history,
        """SELECT job_id, old_attempt, new_attempt FROM c
           WHERE kind = 'update' AND new_status = 'running' AND new_attempt <> old_attempt + 1""",
        "{}: attempt {} was followed by {}",
    )
    yield from _reported(
        history,
        """SELECT s.id, s.attempt, count(c.job_id) AS claims FROM s_lives AS s
           JOIN (SELECT job_id, life, CASE WHEN new_status = 'running' THEN 1 ELSE -1 END AS step FROM c_lives
                 WHERE kind = 'update' AND (new_status = 'running'
                     OR old_status = 'running' AND new_attempt = old_attempt - 1)) AS c
               ON c.job_id = s.id AND c.life = s.life
           GROUP BY s.id HAVING sum(c.step) <> s.attempt""",
        "{} counts {} attempts, of {} claims and releases",
    )
    yield from _reported(
        history,
        "SELECT id, attempt, uncounted FROM s WHERE type = 'chaos.poison' AND attempt - uncounted > 2",
        "{} is at attempt {} ({} uncounted), of 2",
    )


@invariant("I10", "the death of a process counts as an attempt")
def deaths_count(history: History) -> Iterator[str]:
    """Report poisonous jobs that ended otherwise than as a dead letter, after all their attempts."""
    yield from _reported(
        history,
        """SELECT id, status, attempt - uncounted FROM s WHERE type = 'chaos.poison'
           AND status NOT IN ('cancelled') AND (status <> 'failed' OR attempt - uncounted <> 2)
           AND id NOT IN (SELECT id FROM a WHERE how = 'outside' AND outcome IN ('ack', 'unknown'))""",
        "{} is {} after {} attempts that counted",
    )


@invariant("I16", "a lease is reaped after its end, by the store's clock, and never when it was renewed")
def reaped_after_the_end(history: History) -> Iterator[str]:
    """Report leases that were taken over before they had expired."""
    yield from _reported(
        history,
        f"""SELECT job_id, old_attempt, round(old_lease - at, 3) FROM c WHERE kind = 'update'
            AND old_status = 'running' AND new_expirations > old_expirations AND new_token IS NULL
            AND old_lease > at + {_EPSILON}""",
        "{}: the lease of attempt {} was reaped {} s before its end",
    )


@invariant("I18", "no job is claimed before its time")
def nothing_is_early(history: History) -> Iterator[str]:
    """Report claims before the time for which the job was scheduled."""
    yield from _reported(
        history,
        f"""SELECT job_id, round(old_scheduled - at, 3) FROM c
            WHERE kind = 'update' AND new_status = 'running' AND at < old_scheduled - {_EPSILON}""",
        "{} was claimed {} s before its time",
    )


@invariant("I19", "the pause before a retry is kept")
def pauses_are_kept(history: History) -> Iterator[str]:
    """Report pauses after failures of the flaky jobs that are shorter than their policy requires."""
    began, slack = "coalesce(began, at)", 0.0
    if history.store == "sqlite":
        # The trigger reads the clock when its statement ends, the store when its transaction begins, and on a crowded
        # machine time may pass between the two. The trigger's time is later than the claim; these jobs fail at once.
        began = """(SELECT max(at) FROM c AS claim WHERE claim.job_id = c.job_id AND claim.number < c.number
            AND claim.new_status = 'running')"""
        slack = _EPSILON
    yield from _reported(
        history,
        f"""SELECT job_id, round(new_scheduled - {began}, 3) FROM c
            WHERE kind = 'update' AND type = 'chaos.flaky' AND old_status = 'running' AND new_status = 'scheduled'
                AND new_scheduled - {began} < 0.2 - {slack}""",
        "{} was to pause for {} s alone",
    )
    yield from _reported(
        history,
        """SELECT job_id FROM c WHERE kind = 'update' AND type = 'chaos.flaky' AND old_status = 'running'
               AND new_status = 'ready' AND new_uncounted = old_uncounted AND new_attempt = old_attempt""",
        "{} failed and was due at once",
    )
