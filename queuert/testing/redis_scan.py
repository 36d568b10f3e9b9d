"""The invariants of a namespace in Redis, checked over all of its keys.

Every operation of the store is one script, so the invariants hold between any two operations, whatever was killed,
disconnected or restarted meanwhile.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from redis.exceptions import ResponseError

from queuert.state.redis.settings import DEFAULT_NAMESPACE, key_prefix
from queuert.state.types import MAX_FAILURES
from queuert.testing._redis_snapshot import FINAL, RESTING, STATUSES, Snapshot, StoredJob, pair, text

__all__ = ["scan"]

_TAIL_OF = {"completed": "completed", "failed": "failed", "cancelled": "cancelled"}
_OPEN_TAILS = RESTING | {"running"}
_OF_JOBS = {
    "i": "input",
    "o": "output",
    "e": "error",
    "f": "failures",
    "s": "steps",
    "ve": "events",
    "vp": "payloads of events",
    "bl": "blockers",
    "bo": "open blockers",
}
"""Kinds of keys that end with the id of a job."""


def scan(client: Any, namespace: str = DEFAULT_NAMESPACE, *, alone: bool = False) -> list[str]:
    """Report jobs, lists, sets and numbers of a namespace that contradict each other.

    A job that has not ended is in exactly one list or set, and each of these has only the jobs that belong there;
    stored numbers equal the counted ones; chains agree with their jobs, and blockers with their dependents; every job
    has its payloads and every payload its job; only the records of rates expire by themselves. Dead entries of waiting
    lists, which the store drops later, are no fault.

    It reads in pieces (SCAN, never KEYS) and keeps all jobs in memory, without their payloads. No client may write
    meanwhile: changes between two pieces would be reported as faults.

    Args:
        client: a ``redis.Redis`` on the database, with or without ``decode_responses``.
        namespace: the namespace of the store.
        alone: the database holds nothing else, so that a key of another prefix is a fault as well.

    Returns:
        One sentence for each fault; an empty list when all is well.

    Raises:
        redis.exceptions.RedisError: the server could not be asked.
        ConfigurationError: there can be no such namespace.

    Example::

        assert scan(redis.Redis.from_url(url), "shop") == []
    """
    prefix = key_prefix(namespace)
    snapshot = Snapshot(client, prefix)
    found = list(snapshot.faults)
    for check in _CHECKS:
        found += check(snapshot)
    if alone:
        found += [f"{key!r}: a key without the prefix {prefix}" for key in _outside(client, prefix)]
    return found


def _outside(client: Any, prefix: str) -> Iterator[str]:
    for key in client.scan_iter(count=1000):
        if not text(key).startswith(prefix):
            yield text(key)


# --- keys and payloads ------------------------------------------------------------------------------------------------


def _strange_keys(found: Snapshot) -> Iterator[str]:
    for key in found.others:
        yield f"{key}: a key of no known kind"
    for key, life in found.lives.items():
        if not key.removeprefix(found.prefix).startswith("rate:"):
            yield f"{key}: has an end of its own, in {life} ms"
    for name in found.names("rate"):
        if f"{found.prefix}rate:{name}" not in found.lives:
            yield f"rate:{name}: is kept for ever"


def _payloads(found: Snapshot) -> Iterator[str]:
    for kind, what in _OF_JOBS.items():
        for id in found.names(kind) - found.jobs.keys():
            yield f"{kind}:{id}: {what} without a job"
    for job in found.jobs.values():
        if job.id not in found.names("i"):
            yield f"job {job.id}: its input is missing"
        if job.status == "completed" and job.id not in found.names("o"):
            yield f"job {job.id}: completed without an output"
    for id, failures in found.all("f").items():
        if len(failures) > MAX_FAILURES:
            yield f"f:{id}: {len(failures)} failures are kept, of at most {MAX_FAILURES}"


def _fields(found: Snapshot) -> Iterator[str]:
    for job in found.jobs.values():
        if job.status not in STATUSES:
            yield f"job {job.id}: its status is {job.status!r}"
        if not job.type or job.number("created") <= 0 or job.number("due") <= 0:
            yield f"job {job.id}: type or times are missing"
        if job.number("gen") > found.last_generation:
            yield f"job {job.id}: of generation {job.number('gen')}, but the last was {found.last_generation}"
        if (job.status in FINAL) != ("finished" in job.fields):
            yield f"job {job.id}: {job.status}, but its end is {job.fields.get('finished')}"
        if job.status == "running" and not (job.fields.get("token") and job.fields.get("holder")):
            yield f"job {job.id}: running without a token or a holder"


# --- places -----------------------------------------------------------------------------------------------------------


def _waiting_lists(found: Snapshot) -> Iterator[str]:
    times: Counter[str] = Counter()
    for name, entries in found.all("w").items():
        rank, _, type = name.partition(":")
        if rank not in found.scores("ranks", type):
            yield f"w:{name}: its rank is not among ranks:{type}, so nobody looks at it"
        for entry in entries:
            job = found.jobs.get(_id_in(entry))
            if job is None or job.status != "ready" or entry.partition(":")[0] != str(job.number("gen")):
                continue  # a dead entry
            times[job.id] += 1
            if (entry, type, rank) != (job.entry, job.type, str(job.rank)) or job.limit is not None:
                yield f"w:{name}: holds {entry}, which belongs elsewhere"
    for job in found.jobs.values():
        expected = 1 if job.status == "ready" and job.limit is None else 0
        if times[job.id] != expected:
            yield f"job {job.id}: {job.status}, but {times[job.id]} times in waiting lists"


def _keyed(found: Snapshot) -> Iterator[str]:
    of_types: dict[str, set[str]] = defaultdict(set)
    of_keys: dict[str, set[str]] = defaultdict(set)
    limit_keys: dict[str, set[str]] = defaultdict(set)
    for job in found.jobs.values():
        if job.status == "ready" and job.limit is not None:
            of_types[job.type].add(job.keyed_member)
            of_keys[pair(job.type, job.limit)].add(job.keyed_member)
            limit_keys[job.type].add(job.limit)
    yield from _same_members(found, "kz", of_types)
    yield from _same_members(found, "kk", of_keys)
    yield from _same_members(found, "keys", limit_keys)


def _scheduled(found: Snapshot) -> Iterator[str]:
    yield from _same_scores(found, "sched", _scores_of(found, "scheduled", "due"))


def _running(found: Snapshot) -> Iterator[str]:
    yield from _same_scores(found, "lease", _scores_of(found, "running", "leased"))
    expected: dict[str, list[str]] = defaultdict(list)
    for job in found.jobs.values():
        if job.status == "running":
            expected[job.fields.get("holder", "")].append(job.entry)
    for holder in expected.keys() | found.all("p").keys():
        listed = Counter(found.all("p").get(holder, []))
        for entry, times in (listed - Counter(expected[holder])).items():
            yield f"p:{holder}: holds {entry} {times} times too often"
        for entry in Counter(expected[holder]) - listed:
            yield f"p:{holder}: {entry} is running, and not in it"
    for holder in expected.keys() - found.members("holders"):
        yield f"holders: {holder} is missing"


def _blocked(found: Snapshot) -> Iterator[str]:
    expected = {job.id for job in found.jobs.values() if job.status == "blocked"}
    yield from _same_members(found, "blocked", {"": expected} if expected else {})
    for job in found.jobs.values():
        if job.status == "blocked" and job.number("open") < 1:
            yield f"job {job.id}: blocked by nothing"
        if job.status in _OPEN_TAILS - {"blocked"} and job.number("open") != 0:
            yield f"job {job.id}: {job.status}, with {job.number('open')} open blockers"


def _workers(found: Snapshot) -> Iterator[str]:
    yield from _same_members(found, "workers:until", {"": set(found.hash("workers"))} if found.hash("workers") else {})


def _activity(found: Snapshot) -> Iterator[str]:
    expected: dict[str, dict[str, int]] = defaultdict(dict)
    for name in found.names("activity"):
        seconds, _, begin = name.partition(":")
        expected[seconds][begin] = int(begin)
    yield from _same_scores(found, "periods", expected)


def _event_log(found: Snapshot) -> Iterator[str]:
    settings = found.hash("event_log")
    following: int | None = None
    try:
        for id, fields in found.entries():
            number = int(id.removesuffix("-0"))
            if following not in (None, number):
                yield f"events: {id} follows {following}"
            following = number + sum(len(group[10]) for group in json.loads(fields["e"])[1]) // 3
    except (ValueError, KeyError, TypeError, LookupError, ResponseError) as fault:
        yield f"events: not an event log ({type(fault).__name__}: {fault})"
        return
    last = int(settings.get("last", "0"))
    if following not in (None, last + 1) or ("id" not in settings and following is not None):
        yield f"event_log: the last number is {last}, and the next one {following}"


# --- numbers ----------------------------------------------------------------------------------------------------------


def _counters(found: Snapshot) -> Iterator[str]:
    numbers: dict[str, Counter[str]] = defaultdict(Counter)
    by_key: dict[str, Counter[str]] = defaultdict(Counter)
    for job in found.jobs.values():
        numbers[job.type][job.status] += 1
        if job.status == "running" and job.limit is not None:
            by_key[job.type][job.limit] += 1
    yield from _same_numbers(found, "n", numbers)
    yield from _same_numbers(found, "rk", by_key)


def _indexes(found: Snapshot) -> Iterator[str]:
    created: dict[str, dict[str, int]] = defaultdict(dict)
    for job in found.jobs.values():
        created[job.type][job.id] = job.number("created")
    yield from _same_scores(found, "ix", created)
    if found.members("types") != set(created):
        yield f"types: {sorted(found.members('types') ^ set(created))} are missing, or too many"


# --- chains -----------------------------------------------------------------------------------------------------------


def _chains(found: Snapshot) -> Iterator[str]:
    chains: dict[str, list[StoredJob]] = defaultdict(list)
    for job in found.jobs.values():
        chains[job.chain].append(job)
    for chain, jobs in chains.items():
        jobs.sort(key=lambda job: job.index)
        yield from _one_chain(found, chain, jobs)
    for chain in found.names("c") - {chain for chain, jobs in chains.items() if len(jobs) > 1}:
        yield f"c:{chain}: of no chain with two jobs"


def _one_chain(found: Snapshot, chain: str, jobs: list[StoredJob]) -> Iterator[str]:
    first, tail = jobs[0], jobs[-1]
    if [job.index for job in jobs] != list(range(len(jobs))) or first.id != chain:
        yield f"chain {chain}: its jobs are {[(job.index, job.id) for job in jobs]}"
        return
    if len(jobs) > 1 and found.scores("c", chain) != {job.id: job.index for job in jobs}:
        yield f"c:{chain}: is not what the jobs say"
    for job, following in itertools.pairwise(jobs):
        if (job.status, job.fields.get("next")) != ("continued", following.id):
            yield f"job {job.id}: {job.status}, continued by {job.fields.get('next')} instead of {following.id}"
    status = first.fields.get("chain_status", "")
    if tail.status not in (_OPEN_TAILS if status == "open" else {_TAIL_OF.get(status)}):
        yield f"chain {chain}: {status!r}, but its last job {tail.id} is {tail.status}"
    if (status == "open") == ("closed" in first.fields):
        yield f"chain {chain}: {status!r}, closed at {first.fields.get('closed')}"


def _ends_of_chains(found: Snapshot) -> Iterator[str]:
    closed: dict[str, dict[str, int]] = defaultdict(dict)
    ends: dict[str, int] = {}
    for first in _firsts(found):
        if not first.is_open:
            closed[pair(first.type, first.fields.get("chain_status", ""))][first.id] = first.number("created")
        if "expires" in first.fields:
            ends[first.id] = first.number("expires")
            if first.is_open:
                yield f"chain {first.id}: open, and has an end"
    yield from _same_scores(found, "closed", closed)
    yield from _same_scores(found, "expires", {"": ends} if ends else {})


def _deduplication(found: Snapshot) -> Iterator[str]:
    of_all: dict[str, dict[str, int]] = defaultdict(dict)
    of_open: dict[str, dict[str, int]] = defaultdict(dict)
    for first in _firsts(found):
        if "dedup" in first.fields:
            name = pair(first.type, first.fields["dedup"])
            of_all[name][first.id] = first.number("created")
            if first.is_open:
                of_open[name][first.id] = first.number("created")
    yield from _same_scores(found, "d", of_all)
    yield from _same_scores(found, "do", of_open)


def _attributes(found: Snapshot) -> Iterator[str]:
    started: dict[str, dict[str, int]] = defaultdict(dict)
    for chain, stored in found.all("a").items():
        first = found.jobs.get(chain)
        if first is None or first.index != 0:
            yield f"a:{chain}: attributes without a chain"
            continue
        for name, value in json.loads(stored).items():
            for one in value if isinstance(value, list) else [value]:
                started[pair(name, str(one))][chain] = first.number("created")
    yield from _same_scores(found, "at", started)


def _blockers(found: Snapshot) -> Iterator[str]:
    waiting: dict[str, set[str]] = defaultdict(set)
    for id, chains in found.all("bl").items():
        for chain in chains:
            waiting[chain].add(id)
    yield from _same_members(found, "bb", waiting)
    for chain in waiting:
        first = found.jobs.get(chain)
        if first is None or first.index != 0:
            yield f"bb:{chain}: there is no such chain"
        elif "dependents" not in first.fields:
            yield f"chain {chain}: does not know that jobs wait for it"
    for job in found.jobs.values():
        yield from _blockers_of(found, job)


def _blockers_of(found: Snapshot, job: StoredJob) -> Iterator[str]:
    named = found.scores("bl", job.id).keys()
    noted = found.members("bo", job.id)
    open = {chain for chain in named if chain in found.jobs and found.jobs[chain].is_open}
    # A chain that was retried while the job ran is open again, and the job does not wait for it: see `wait_for`.
    if noted - open or (job.status == "blocked" and not noted):
        yield f"bo:{job.id}: {sorted(noted)}, but open are {sorted(open)}"
    if job.number("open") != len(noted):
        yield f"job {job.id}: counts {job.number('open')} open blockers, but bo: has {len(noted)}"
    if job.number("blockers") < len(named):
        yield f"job {job.id}: counts {job.number('blockers')} blockers, but bl: has {len(named)}"


# --- comparing --------------------------------------------------------------------------------------------------------


def _id_in(entry: str) -> str:
    return entry.split(":", 2)[-1]


def _firsts(found: Snapshot) -> Iterator[StoredJob]:
    return (job for job in found.jobs.values() if job.index == 0)


def _scores_of(found: Snapshot, status: str, field: str) -> dict[str, dict[str, int]]:
    scores: dict[str, dict[str, int]] = defaultdict(dict)
    for job in found.jobs.values():
        if job.status == status:
            scores[job.type][job.id] = job.number(field)
    return scores


def _same_members(found: Snapshot, kind: str, expected: dict[str, set[str]]) -> Iterator[str]:
    for name in expected.keys() | found.names(kind):
        stored, wanted = found.scores(kind, name).keys(), expected.get(name, set())
        for member in stored - wanted:
            yield f"{kind}:{name}: {member} does not belong there"
        for member in wanted - stored:
            yield f"{kind}:{name}: {member} is missing"


def _same_scores(found: Snapshot, kind: str, expected: dict[str, dict[str, int]]) -> Iterator[str]:
    yield from _same_members(found, kind, {name: set(scores) for name, scores in expected.items()})
    for name, scores in expected.items():
        for member, score in found.scores(kind, name).items():
            if scores.get(member, score) != score:
                yield f"{kind}:{name}: {member} has {score:.0f} instead of {scores[member]}"


def _same_numbers(found: Snapshot, kind: str, expected: dict[str, Counter[str]]) -> Iterator[str]:
    for name in expected.keys() | found.names(kind):
        stored, wanted = found.hash(kind, name), expected.get(name, Counter())
        for field in stored.keys() | wanted.keys():
            if stored.get(field, "0") != str(wanted[field]):
                yield f"{kind}:{name}: {field} is {stored.get(field)}, but there are {wanted[field]}"


_CHECKS: tuple[Callable[[Snapshot], Iterator[str]], ...] = (
    _strange_keys,
    _payloads,
    _fields,
    _waiting_lists,
    _keyed,
    _scheduled,
    _running,
    _blocked,
    _workers,
    _activity,
    _event_log,
    _counters,
    _indexes,
    _chains,
    _ends_of_chains,
    _deduplication,
    _attributes,
    _blockers,
)
