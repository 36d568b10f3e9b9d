"""A Redis server of the run's own. Its append-only file is the history: every write, in order, script by script."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis

from queuert.embedded import EmbeddedRedis
from queuert.embedded.server import wait_until
from queuert.state.redis.settings import DEFAULT_NAMESPACE, key_prefix
from queuert.testing.chaos.history import History
from queuert.testing.chaos.workload import LEASE
from queuert.testing.fault_proxy import FaultProxy
from queuert.testing.redis_scan import scan

_OPTIONS: Mapping[str, str | int] = {
    "appendonly": "yes",
    "appendfsync": "always",
    "aof-timestamp-enabled": "yes",
    "auto-aof-rewrite-percentage": 0,
    "aof-use-rdb-preamble": "no",
}
_OPEN = ("blocked", "scheduled", "ready", "running")
_NOBODY = "chaos.nobody"
_FIELDS = {
    "status": "status", "token": "token", "attempt": "attempt", "lease": "leased", "scheduled": "due",
    "uncounted": "uncounted", "expirations": "expired",
}  # fmt: skip
_TIMES = frozenset({"lease", "scheduled"})
_CLOCK = "chaos:clock"
_TICK = 0.02
"""Seconds between two times in the file, whose own timestamps are whole seconds."""
_TELL_TIME = """local now = redis.call('TIME')
redis.call('SET', KEYS[1], string.format('%.0f', now[1] * 1000000 + now[2]))"""
_LATE = 15.0
_STRANGER = "chaos"
_NUMBERS = frozenset({"attempt", "uncounted", "expirations"})


class OwnedRedis:
    """An embedded server that appends each change to its file before it answers; the file is never rewritten.

    If it is durable, the file is on the run's disk, otherwise in memory: a killed server loses neither.
    """

    name = "redis"
    has_server = True
    broken_since: float | None = None

    def __init__(self, directory: Path, *, durable: bool) -> None:
        self._server = EmbeddedRedis(directory / "redis" if durable else None, options=_OPTIONS)
        self._ended = threading.Event()
        self._clock = threading.Thread(target=self._keep_time, name="queuert-chaos-clock", daemon=True)
        self._prefix = key_prefix(DEFAULT_NAMESPACE)

    @property
    def url(self) -> str:
        """The address of the server itself."""
        return self._server.url()

    def start(self) -> None:
        """Start the server, and the thread that writes times into the file."""
        self._server.start()
        self._clock.start()

    def _keep_time(self) -> None:
        """Let the server write its time between the writes of others, whenever it is available."""
        with self._client() as client:
            while not self._ended.wait(_TICK):
                with suppress(redis.RedisError, OSError):
                    client.eval(_TELL_TIME, 1, _CLOCK)

    def _stop_clock(self) -> None:
        self._ended.set()
        if self._clock.is_alive():
            self._clock.join()

    def close(self) -> None:
        """Stop the server, and remove its data."""
        self._stop_clock()
        self._server.close()

    def proxy(self) -> FaultProxy:
        """A proxy before the server."""
        return FaultProxy.before(self.url)

    def address_in(self, proxy: FaultProxy) -> str:
        """The address through a proxy."""
        return proxy.address_in(self.url)

    def open_jobs(self) -> int:
        """Return how many jobs have not ended, without those that no worker handles, by the store's own counters."""
        with self._client() as client:
            types = client.smembers(f"{self._prefix}types") - {_NOBODY}
            numbers = [client.hmget(f"{self._prefix}n:{type}", _OPEN) for type in types]
            return sum(int(number or 0) for of_type in numbers for number in of_type)

    def leases_of(self, pid: int) -> list[tuple[str, int]]:
        """Return the jobs in the lists of this process's worker. Jobs that other workers have taken since are not its
        own any more."""
        with self._client() as client:
            own = [one for one in client.smembers(f"{self._prefix}holders") if one.startswith(f"chaos-{pid}-")]
            entries = [entry for one in own for entry in client.lrange(f"{self._prefix}p:{one}", 0, -1)]
            # An entry is the generation, the due time and the id of a job.
            ids = [entry.split(":", 2)[2] for entry in entries]
            jobs = [(id, client.hmget(f"{self._prefix}j:{id}", "status", "holder", "attempt")) for id in ids]
            return [
                (id, int(attempt)) for id, (status, holder, attempt) in jobs if status == "running" and holder in own
            ]

    def waits_for(self, pid: int) -> bool:
        """Return False: no process holds a lock that all others need."""
        return False

    def sessions(self) -> int | None:
        """Return the number of clients, without those of the run itself."""
        with self._client() as client:
            return len([one for one in client.client_list() if one["name"] != _STRANGER])

    def stands_in(self, pid: int, what: str) -> bool:
        """Return False: one call is one transaction."""
        return False

    def session_list(self) -> list[str]:
        """Describe what each client did last, and how long ago."""
        names = ("id", "name", "age", "idle", "flags", "cmd")
        with suppress(redis.RedisError), self._client() as client:
            return [" | ".join(f"{name} {one[name]}" for name in names) for one in client.client_list()]
        return []

    def break_it(self, kind: str, measure: float) -> tuple[float | None, str]:
        """Break the server."""
        if kind in ("kill redis", "restart redis"):
            self._server.kill() if kind == "kill redis" else self._server.stop()
            self._server.start()
            return time.time(), "serves again"
        with self._client() as client:
            match kind:
                case "pause redis":
                    milliseconds = int(1000 * LEASE.seconds * (1.2 + measure))
                    client.client_pause(milliseconds)
                    time.sleep(milliseconds / 1000)
                case "flush scripts":
                    client.script_flush()
                case _:
                    client.client_kill_filter(_type="normal", skipme=True)
                    client.client_kill_filter(_type="pubsub", skipme=True)
        return None, ""

    def last_words(self) -> dict[str, Any]:
        """Return no facts: the scan of the keys has them all."""
        return {}

    def collect(self, history: History) -> None:
        """Read the file, and the keys."""
        self._stop_clock()
        history.add("c", _changes(self._prefix, self._append_only()))
        with self._client() as client:
            wait_until(lambda: len(client.client_list()) == 1, _LATE)
            left = len(client.client_list()) - 1
            history.add("facts", [{"name": "connections left", "value": left}])
            faults = scan(client)
            history.add("facts", ({"name": "fault of a key", "value": fault} for fault in faults))
            jobs = list(_jobs(client, self._prefix))
            history.add("s", jobs)
            for job in jobs:
                waits = client.zrange(f"{self._prefix}bl:{job['id']}", 0, -1) if job["blockers"] else []
                history.add("b", ({"job_id": job["id"], "chain_id": chain} for chain in waits))

    def _append_only(self) -> Iterator[tuple[float, int, list[str]]]:
        directory = self._server.data_dir / "appendonlydir"
        number = 0
        for path in sorted(directory.glob("*.incr.aof"), key=lambda path: int(path.name.split(".")[-3])):
            for at, transaction, command in commands_in(path.read_bytes()):
                yield at, number + transaction, command
            number += 1_000_000_000

    def _client(self) -> Any:
        return redis.Redis.from_url(self.url, decode_responses=True, socket_timeout=10, client_name=_STRANGER)


def commands_in(data: bytes) -> Iterator[tuple[float, int, list[str]]]:
    """The commands of an append-only file, each with its second and the number of its script or transaction."""
    at, place, transaction, inside = 0.0, 0, 0, False
    while place < len(data):
        end = data.find(b"\r\n", place)
        if end < 0:
            return
        line = data[place:end]
        place = end + 2
        if line.startswith(b"#TS:"):
            # The second ends later than the timestamp of its beginning.
            at = float(line[4:]) + 1.0
            continue
        words: list[str] = []
        for _ in range(int(line[1:])):
            end = data.index(b"\r\n", place)
            length = int(data[place + 1 : end])
            words.append(data[end + 2 : end + 2 + length].decode("utf-8", "backslashreplace"))
            place = end + 4 + length
        name = words[0].upper()
        if name in ("MULTI", "EXEC"):
            inside = name == "MULTI"
            transaction += 1
            continue
        transaction += not inside
        yield at, transaction, words


def _changes(prefix: str, commands: Iterator[tuple[float, int, list[str]]]) -> Iterator[dict[str, Any]]:
    """The changes of jobs' hashes, as a trigger would record them, once for each job and script.

    Each change happened between two times of the clock: not before ``began``, and not after ``at``. Most have a time of
    their own in the hash.
    """
    waiting: list[dict[str, Any]] = []
    began = 0.0
    for number, change in enumerate(_undated(prefix, commands)):
        if isinstance(change, dict):
            waiting.append(change | {"number": number})
        else:
            yield from ({"began": began, "at": change} | one for one in waiting)
            began, waiting = change, []
    yield from ({"began": began, "at": one["second"]} | one for one in waiting)


def _undated(prefix: str, commands: Iterator[tuple[float, int, list[str]]]) -> Iterator[dict[str, Any] | float]:
    """Yield the changes, and the times of the clock between them."""
    hashes: dict[str, dict[str, str]] = {}
    touched: dict[str, dict[str, str] | None] = {}
    current, last = 0, 0.0
    for at, transaction, words in commands:
        if transaction != current:
            yield from _noted(touched, hashes, current, last)
            touched, current = {}, transaction
        last = at
        if words[:2] == ["SET", _CLOCK]:
            yield int(words[2]) / 1e6
        else:
            _apply(prefix, words, hashes, touched)
    yield from _noted(touched, hashes, current, last)


def _apply(
    prefix: str, words: list[str], hashes: dict[str, dict[str, str]], touched: dict[str, dict[str, str] | None]
) -> None:
    name, of_jobs = words[0].upper(), f"{prefix}j:"
    for key in words[1:] if name in ("DEL", "UNLINK") else words[1:2]:
        if not key.startswith(of_jobs):
            continue
        id = key.removeprefix(of_jobs)
        touched.setdefault(id, dict(hashes[id]) if id in hashes else None)
        if name in ("HSET", "HMSET"):
            hashes.setdefault(id, {}).update(zip(words[2::2], words[3::2], strict=True))
        elif name == "HDEL":
            for field in words[2:]:
                hashes.get(id, {}).pop(field, None)
        elif name in ("DEL", "UNLINK"):
            hashes.pop(id, None)


def _noted(
    touched: dict[str, dict[str, str] | None], hashes: dict[str, dict[str, str]], transaction: int, at: float
) -> Iterator[dict[str, Any]]:
    for id, was in touched.items():
        now = hashes.get(id)
        kind = "insert" if was is None else "delete" if now is None else "update"
        watched = ("status", "token", "attempt")
        if now is None and was is None:
            continue
        if was and now and all(was.get(name) == now.get(name) for name in watched):
            continue
        one = now or was or {}
        change: dict[str, Any] = {"kind": kind, "job_id": id, "chain_id": one.get("chain", id), "tx": transaction}
        change |= {"type": one.get("type"), "chain_index": int(one.get("index", "0")), "holder": one.get("holder")}
        change |= {f"old_{name}": _value(name, was, field) for name, field in _FIELDS.items()}
        change |= {f"new_{name}": _value(name, now, field) for name, field in _FIELDS.items()}
        exact = (now or {}).get("started") if change["new_status"] == "running" else (now or {}).get("finished")
        if exact and kind == "update":
            change |= {"at": int(exact) / 1e6, "began": int(exact) / 1e6}
        yield {**change, "second": at}


def _value(name: str, fields: Mapping[str, str] | None, field: str) -> Any:
    if fields is None:
        return None
    if name in _NUMBERS:
        return int(fields.get(field, "0"))
    if name in _TIMES:
        return int(fields[field]) / 1e6 if field in fields else None
    return fields.get(field)


def _jobs(client: Any, prefix: str) -> Iterator[dict[str, Any]]:
    of_jobs = f"{prefix}j:"
    for key in client.scan_iter(match=f"{_escaped(of_jobs)}*", count=1000):
        fields: dict[str, str] = client.hgetall(key)
        id = key.removeprefix(of_jobs)
        numbers = {name: int(fields.get(name, "0")) for name in ("index", "attempt", "uncounted", "expired", "open")}
        yield {
            "id": id, "type": fields.get("type"), "chain_id": fields.get("chain", id), "status": fields.get("status"),
            "chain_index": numbers["index"], "chain_status": fields.get("chain_status"), "attempt": numbers["attempt"],
            "uncounted": numbers["uncounted"], "lease_expirations": numbers["expired"],
            "open_blockers": numbers["open"], "key": fields.get("dedup"), "continued_by": fields.get("next"),
            "created_at": _seconds(fields.get("created")), "scheduled_at": _seconds(fields.get("due")),
            "finished_at": _seconds(fields.get("finished")), "chain_closed_at": _seconds(fields.get("closed")),
            "holder": fields.get("holder"), "limit_key": fields.get("limit"),
            "blockers": int(fields.get("blockers", "0")),
        }  # fmt: skip


def _seconds(text: str | None) -> float | None:
    return None if text is None else int(text) / 1e6


def _escaped(prefix: str) -> str:
    return "".join(f"\\{one}" if one in "*?[]\\^-" else one for one in prefix)
