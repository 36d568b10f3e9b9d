"""All keys of a namespace in Redis, read in pieces, for :mod:`queuert.testing.redis_scan`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from redis.exceptions import ResponseError

PIECE = 1000
"""How many keys or entries one command reads."""

HASHES = frozenset(
    {"j", "n", "rk", "limits", "paused", "schedules", "workers", "activity", "vp", "turn", "worse_turn", "event_log"}
    | {"traits", "webhooks", "webhook_logs"}
)
LISTS = frozenset({"w", "p", "f", "s", "ve"})
SETS = frozenset({"bo", "types", "holders"})
SORTED_SETS = frozenset(
    {"kz", "kk", "keys", "ranks", "sched", "lease", "blocked", "c", "bl", "bb", "d", "do", "closed", "expires"}
) | {"ix", "rate", "workers:until", "at", "periods"}
STRINGS = frozenset({"i", "o", "e", "gen"})
TEXTS = frozenset({"a"})
"""The kinds of strings whose values are read."""
STREAMS = frozenset({"events", "webhook_log"})
KINDS = HASHES | LISTS | SETS | SORTED_SETS | STRINGS | TEXTS | STREAMS

RESTING = frozenset({"ready", "scheduled", "blocked"})
FINAL = frozenset({"continued", "completed", "failed", "cancelled"})
STATUSES = RESTING | FINAL | {"running"}


def text(value: bytes | str) -> str:
    """Return a value as text, from a client that decodes and from one that does not."""
    return value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")


def pair(first: str, second: str) -> str:
    """Join two texts as the scripts do: with their lengths in bytes."""
    return f"{len(first.encode())}:{first}:{second}"


@dataclass(frozen=True)
class StoredJob:
    """A job as stored in its hash; fields that are not stored are zero."""

    id: str
    fields: Mapping[str, str]

    def number(self, name: str) -> int:
        """Return a field as a whole number; 0 if it does not exist, -1 if it is no number."""
        try:
            return int(self.fields.get(name, "0"))
        except ValueError:
            return -1

    @property
    def type(self) -> str:
        """Its job type."""
        return self.fields.get("type", "")

    @property
    def status(self) -> str:
        """Its status."""
        return self.fields.get("status", "")

    @property
    def index(self) -> int:
        """Its index in the chain."""
        return self.number("index")

    @property
    def chain(self) -> str:
        """The id of the chain's first job."""
        return self.fields.get("chain", self.id)

    @property
    def limit(self) -> str | None:
        """Its limit key."""
        return self.fields.get("limit")

    @property
    def rank(self) -> int:
        """Its rank; less is better."""
        return self.number("attempt") - self.number("uncounted") - self.number("expired") - self.number("priority")

    @property
    def entry(self) -> str:
        """Its entry in a list."""
        return f"{self.number('gen')}:{self.number('due')}:{self.id}"

    @property
    def keyed_member(self) -> str:
        """Its entry in the sorted sets of limit keys."""
        return f"{self.rank + 5_000_000_000:011d}:{self.number('due'):017d}:{self.number('gen'):015d}:{self.id}"

    @property
    def is_open(self) -> bool:
        """Whether the chain of this first job is open."""
        return self.fields.get("chain_status") == "open"


class Snapshot:
    """The keys of a namespace by kind and name, with the contents of all that are not payloads."""

    def __init__(self, client: Any, prefix: str) -> None:
        self._client = client
        self.prefix = prefix
        """The prefix of the keys."""
        self.faults: list[str] = []
        """Keys whose values have a wrong type or format."""
        self.others: list[str] = []
        """Keys of no known kind."""
        self.lives: dict[str, int] = {}
        """Milliseconds until keys expire, for those that do."""
        self._names: dict[str, set[str]] = {kind: set() for kind in KINDS}
        self._held: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
        for piece in self._pieces():
            self._read(piece)

    def names(self, kind: str) -> set[str]:
        """Return the names of the keys of a kind: the part after ``kind:``."""
        return self._names[kind]

    def all(self, kind: str) -> dict[str, Any]:
        """Return the contents of the keys of a kind, by name: dicts of hashes and sorted sets, lists, sets."""
        if kind not in KINDS:
            raise ValueError(f"{kind!r} must be a kind of key: add it to the kinds in _redis_snapshot.py")
        return self._held[kind]

    def hash(self, kind: str, name: str = "") -> dict[str, str]:
        """Return one hash, empty if it does not exist."""
        found: dict[str, str] = self.all(kind).get(name, {})
        return found

    def scores(self, kind: str, name: str = "") -> dict[str, float]:
        """Return one sorted set, empty if it does not exist."""
        found: dict[str, float] = self.all(kind).get(name, {})
        return found

    def members(self, kind: str, name: str = "") -> set[str]:
        """Return one set, empty if it does not exist."""
        found: set[str] = self.all(kind).get(name, set())
        return found

    @cached_property
    def jobs(self) -> dict[str, StoredJob]:
        """Return all jobs by id."""
        return {id: StoredJob(id, fields) for id, fields in self._held["j"].items()}

    @cached_property
    def last_generation(self) -> int:
        """Return the last generation."""
        found = self._client.get(f"{self.prefix}gen")
        return int(found) if found else 0

    def entries(self) -> Iterator[tuple[str, dict[str, str]]]:
        """Read the entries of the event log: the id and the fields of each, the oldest first."""
        after = "-"
        while found := self._client.xrange(f"{self.prefix}events", after, "+", count=100):
            for id, fields in found:
                after = f"({text(id)}"
                yield text(id), {text(name): text(value) for name, value in fields.items()}

    def _pieces(self) -> Iterator[list[str]]:
        escaped = "".join(f"\\{one}" if one in "*?[]\\^-" else one for one in self.prefix)
        piece: dict[str, None] = {}
        for key in self._client.scan_iter(match=f"{escaped}*", count=PIECE):
            piece[text(key)] = None
            if len(piece) >= PIECE:
                yield list(piece)
                piece.clear()
        yield list(piece)

    def _read(self, keys: Iterable[str]) -> None:
        wanted: list[tuple[str, str, str]] = []
        for key in keys:
            kind, _, name = key.removeprefix(self.prefix).partition(":")
            if kind == "workers" and name:
                kind, name = f"{kind}:{name}", ""
            if kind in KINDS:
                self._names[kind].add(name)
                wanted.append((key, kind, name))
            else:
                self.others.append(key)
        self._read_lives([key for key, _, _ in wanted])
        left = [(key, kind, name, 0) for key, kind, name in wanted if kind not in STRINGS | STREAMS]
        while left:
            left = self._read_on(left)

    def _read_lives(self, keys: list[str]) -> None:
        with self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.pttl(key)
            self.lives |= {key: life for key, life in zip(keys, pipe.execute(), strict=True) if life >= 0}

    def _read_on(self, wanted: list[tuple[str, str, str, int]]) -> list[tuple[str, str, str, int]]:
        """Read a piece of each of these keys; return those with more entries, with their cursors."""
        with self._client.pipeline(transaction=False) as pipe:
            for key, kind, _, cursor in wanted:
                if kind in LISTS:
                    pipe.lrange(key, cursor, cursor + PIECE - 1)
                elif kind in TEXTS:
                    pipe.get(key)
                else:
                    read = pipe.hscan if kind in HASHES else pipe.sscan if kind in SETS else pipe.zscan
                    read(key, cursor, count=PIECE)
            answers = pipe.execute(raise_on_error=False)
        left: list[tuple[str, str, str, int]] = []
        for (key, kind, name, cursor), answer in zip(wanted, answers, strict=True):
            if isinstance(answer, ResponseError):
                self.faults.append(f"{key}: not of the type that its kind has ({answer})")
            elif isinstance(answer, Exception):
                raise answer
            elif following := self._keep(kind, name, cursor, answer):
                left.append((key, kind, name, following))
        return left

    def _keep(self, kind: str, name: str, cursor: int, answer: Any) -> int:
        held = self._held[kind]
        if kind in LISTS:
            held.setdefault(name, []).extend(map(text, answer))
            return cursor + PIECE if len(answer) == PIECE else 0
        if kind in TEXTS:
            held[name] = text(answer)
            return 0
        following, piece = int(answer[0]), answer[1]
        if kind in SETS:
            held.setdefault(name, set()).update(map(text, piece))
        elif kind in HASHES:
            held.setdefault(name, {}).update((text(field), text(value)) for field, value in piece.items())
        else:
            held.setdefault(name, {}).update((text(member), score) for member, score in piece)
        return following
