"""Checks the kind, version and configuration of the server once, when a store is opened.

Many managed servers forbid these queries. What cannot be read counts as unknown, and no server is refused for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from queuert.errors import StateUnavailableError, UnsuitableServerError
from queuert.state.redis.connections import in_time

MINIMUM = (6, 2)
"""The oldest Redis with LMOVE; every Valkey has it."""

SAFE_POLICY = "noeviction"

_QUESTIONS = (
    ("HELLO",),  # Every user may call this.
    ("INFO",),
    # Redis 6.2 allows one name at a time.
    ("CONFIG", "GET", "maxmemory-policy"),
    ("CONFIG", "GET", "appendonly"),
    ("CONFIG", "GET", "appendfsync"),
    ("CONFIG", "GET", "save"),
)

_MAY_WAIT = ("WAITAOF", "1", "0", "1")
"""A connection that has written nothing gets an answer at once, or a refusal."""

_REPLICAS = ("slave", "replica")
_LIKE_REDIS = ("valkey", "dragonfly", "garnet", "kvrocks")


class Risk(StrEnum):
    """How a server's configuration may lose acknowledged jobs."""

    EVICTION = "eviction"
    """The server evicts keys when its memory is full: jobs, parts of jobs, leases."""
    NOT_PERSISTED = "not persisted"
    """The server has neither an append-only file nor snapshots: a restart loses all jobs."""
    SNAPSHOTS_ONLY = "snapshots only"
    """The server has no append-only file: a crash loses all changes since the last snapshot."""
    NOT_FLUSHED = "not flushed"
    """The operating system decides when the append-only file is flushed (``appendfsync no``)."""
    UNKNOWN = "unknown"
    """The server does not show its configuration."""

    @property
    def advice(self) -> str:
        """The problem, and what to do about it, in one line."""
        return _ADVICE[self]


_ADVICE: Mapping[Risk, str] = {
    Risk.EVICTION: f"it evicts keys when memory is full, which loses jobs: set maxmemory-policy {SAFE_POLICY}",
    Risk.NOT_PERSISTED: "it writes nothing to disk, so a restart loses all jobs: set appendonly yes",
    Risk.SNAPSHOTS_ONLY: "it writes snapshots only, so a crash loses all changes since the last: set appendonly yes",
    Risk.NOT_FLUSHED: "it leaves flushing to the operating system, whose crash loses changes: set appendfsync everysec",
    Risk.UNKNOWN: f"it does not show its configuration: check that it has maxmemory-policy {SAFE_POLICY} and"
    " appendonly yes",
}


@dataclass(frozen=True, slots=True)
class ServerFindings:
    """What a server reports about itself; None for what it does not report."""

    kind: str | None = None
    """The name of the server, in lower case: ``redis``, ``valkey`` or another."""
    version: tuple[int, ...] | None = None
    """The version; for Valkey its own, not that of the Redis that it is compatible with."""
    replica: bool | None = None
    cluster: bool | None = None
    policy: str | None = None
    """``maxmemory-policy``."""
    append_only: bool | None = None
    flush: str | None = None
    """``appendfsync``."""
    snapshots: bool | None = None
    """Whether the server makes snapshots by itself."""
    config_file: str | None = None
    """The path of its configuration file; empty if it was started without one."""
    no_waiting: str | None = None
    """The reason why it refuses WAITAOF, if it does."""

    @property
    def risks(self) -> tuple[Risk, ...]:
        """The risks of the configuration."""
        risks = []
        if self.policy not in (None, SAFE_POLICY):
            risks.append(Risk.EVICTION)
        if self.append_only is False and self.snapshots is not None:
            risks.append(Risk.SNAPSHOTS_ONLY if self.snapshots else Risk.NOT_PERSISTED)
        if self.append_only and self.flush == "no":
            risks.append(Risk.NOT_FLUSHED)
        if self.policy is None or self.append_only is None or (not self.append_only and self.snapshots is None):
            risks.append(Risk.UNKNOWN)
        return tuple(risks)

    def check(self, *, allow_eviction: bool = False, wait_for_flush: bool = False) -> None:
        """Check that the server can store jobs safely.

        Raises:
            StateUnavailableError: it is a replica. It may be promoted, or the URL may lead to the primary later.
            UnsuitableServerError: it is older than Redis 6.2, evicts keys and ``allow_eviction`` is false, makes no
                flushes to wait for, or refuses WAITAOF.
        """
        if self.kind == "redis" and self.version is not None and self.version < MINIMUM:
            raise UnsuitableServerError(
                f"the server must be Redis {_dotted(MINIMUM)} or newer, or Valkey, got Redis {_dotted(self.version)}"
            )
        if self.replica:
            raise StateUnavailableError("the server is a replica and takes no writes: use the URL of the primary")
        if Risk.EVICTION in self.risks and not allow_eviction:
            raise UnsuitableServerError(
                f"the server has maxmemory-policy {self.policy}: {Risk.EVICTION.advice}, or pass allow_eviction=True"
            )
        if wait_for_flush:
            self._check_flushes()

    def _check_flushes(self) -> None:
        if self.append_only is False or self.flush == "no":
            setting = "appendonly no" if self.append_only is False else "appendfsync no"
            raise UnsuitableServerError(
                f"wait_for_flush=True needs a server that flushes, but this one has {setting}: set appendonly yes and"
                " appendfsync everysec or always"
            )
        if self.no_waiting is not None:
            raise UnsuitableServerError(
                f"wait_for_flush=True needs WAITAOF, which the server refuses ({self.no_waiting}): use Redis 7.2 or"
                " newer, or Valkey, and a user who may call it (ACL SETUSER ... +waitaof)"
            )


def sync_server_findings(client: Any, *, wait_for_flush: bool = False) -> ServerFindings:
    """Query a server by a ``redis.Redis``, which may decode responses or not, in one round trip.

    With ``wait_for_flush`` it also checks whether the client may call WAITAOF.

    Raises:
        redis.RedisError: the connection failed. A refusal is not an error.
    """
    return _findings(_requests(client, wait_for_flush).execute(raise_on_error=False))


async def async_server_findings(client: Any, *, wait_for_flush: bool = False) -> ServerFindings:
    """Query a server by a ``redis.asyncio.Redis``, which may decode responses or not, in one round trip.

    With ``wait_for_flush`` it also checks whether the client may call WAITAOF.

    Raises:
        redis.RedisError: the connection failed. A refusal is not an error.
        TimeoutError: the pool's timeout is over.
    """
    async with in_time(client):
        return _findings(await _requests(client, wait_for_flush).execute(raise_on_error=False))


def _requests(client: Any, wait_for_flush: bool) -> Any:
    pipeline = client.pipeline(transaction=False)
    for question in (*_QUESTIONS, *([_MAY_WAIT] if wait_for_flush else [])):
        pipeline.execute_command(*question)
    return pipeline


def _findings(answers: Sequence[object]) -> ServerFindings:
    hello, info, *settings = map(_known, answers[: len(_QUESTIONS)])
    refusals = [str(answer) for answer in answers[len(_QUESTIONS) :] if isinstance(answer, Exception)]
    config = {name: value for setting in settings for name, value in setting.items()}
    kind, version = _identity(hello, info)
    role = info.get("role", hello.get("role"))
    append_only = config.get("appendonly", {"0": "no", "1": "yes"}.get(info.get("aof_enabled", "")))
    return ServerFindings(
        kind=kind,
        version=version,
        replica=None if role is None else role in _REPLICAS,
        cluster=_is_cluster(hello, info),
        policy=config.get("maxmemory-policy", info.get("maxmemory_policy")),
        append_only=None if append_only is None else append_only == "yes",
        flush=config.get("appendfsync"),
        snapshots=config["save"] != "" if "save" in config else None,
        config_file=info.get("config_file"),
        no_waiting=refusals[0] if refusals else None,
    )


def _identity(hello: Mapping[str, str], info: Mapping[str, str]) -> tuple[str | None, tuple[int, ...] | None]:
    """Return the server's name and its own version, even if it also reports the Redis version it is compatible with."""
    for name in info:
        if name.endswith("_version") and name.removesuffix("_version") in _LIKE_REDIS:
            return name.removesuffix("_version"), _numbers(info[name])
    kind = hello.get("server", "redis" if "redis_version" in info else None)
    version = info.get("redis_version", hello.get("version"))
    return None if kind is None else kind.lower(), None if version is None else _numbers(version)


def _is_cluster(hello: Mapping[str, str], info: Mapping[str, str]) -> bool | None:
    if "cluster_enabled" in info:
        return info["cluster_enabled"] == "1"
    return hello["mode"] == "cluster" if "mode" in hello else None


def _known(answer: object) -> dict[str, str]:
    """Return an answer as a dict, whatever its form in the driver; an empty one if the server refused."""
    if isinstance(answer, Mapping):
        return {_text(name): _text(value) for name, value in answer.items()}
    if isinstance(answer, list):
        return {_text(name): _text(value) for name, value in zip(answer[::2], answer[1::2], strict=False)}
    return {}


def _text(part: object) -> str:
    return part.decode(errors="replace") if isinstance(part, bytes) else str(part)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
