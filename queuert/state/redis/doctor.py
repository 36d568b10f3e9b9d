"""The checks of ``queuert doctor`` on Redis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import redis

from queuert.errors import QueuertError, RightMissingError, StateUnavailableError
from queuert.state.diagnosis import (
    Finding,
    Thresholds,
    clock_finding,
    connection_findings,
    error,
    ok,
    skipped,
    store_findings,
    warning,
)
from queuert.state.redis.connections import Connections
from queuert.state.redis.errors import (
    lacks_right,
    mapped_errors,
    refuses_database,
    refuses_login,
    right_missing,
)
from queuert.state.redis.server_check import MINIMUM, Risk, ServerFindings, sync_server_findings
from queuert.state.redis.settings import RedisSettings, address_warnings
from queuert.state.redis.sync_store import RedisStore

_REMEDIES = {
    Risk.EVICTION: "CONFIG SET maxmemory-policy noeviction",
    Risk.NOT_PERSISTED: "CONFIG SET appendonly yes",
    Risk.SNAPSHOTS_ONLY: "CONFIG SET appendonly yes",
    Risk.NOT_FLUSHED: "CONFIG SET appendfsync everysec",
    Risk.UNKNOWN: "let the user read it: ACL SETUSER NAME +config|get +info",
}
_LOSES_JOBS = (Risk.EVICTION, Risk.NOT_PERSISTED)


def diagnose(settings: RedisSettings, thresholds: Thresholds) -> list[Finding]:
    """Make all checks.

    Raises:
        StateUnavailableError: the server cannot be reached.
    """
    connections = Connections(settings, 1)
    try:
        try:
            with mapped_errors(opening=True):
                client = connections.open()
                server = sync_server_findings(client)
        except QueuertError as failure:
            if (found := _refused(failure)) is None:
                raise
            return [found]
        with mapped_errors(opening=True):
            findings = [
                *_server(server),
                *connection_findings(address_warnings(settings), secure="local, or encrypted with a verified server"),
                *persistence_findings(server),
                _clock(client, thresholds),
                *_memory_and_disk(client, thresholds),
            ]
        if not server.replica:
            findings += _on_store(settings, thresholds)
        return findings
    finally:
        connections.close()


def _refused(failure: QueuertError) -> Finding | None:
    """The finding of a login, a database or a right that the server refuses; None for another error."""
    cause = failure.__cause__
    reason = "no job runs, since the server refuses what workers and clients do"
    if refuses_login(cause):
        remedy = "correct the user and the password in the address, or ACL SETUSER NAME on >PASSWORD"
        return error("login", f"the login is refused: {cause}", reason, remedy)
    if refuses_database(cause):
        remedy = "write /0 in the address, or raise databases in redis.conf"
        return error("server", f"the database of the address is refused: {cause}", reason, remedy)
    if lacks_right(cause):
        failure = right_missing(str(cause))
    if isinstance(failure, RightMissingError):
        return error("login", f"the user lacks a right: {failure.reason}", reason, str(failure.remedy))
    return None


def _clock(client: Any, thresholds: Thresholds) -> Finding:
    try:
        return clock_finding(lambda: _seconds(client.time()), thresholds)
    except redis.ResponseError as failure:
        if not lacks_right(failure):
            raise
        return skipped("clock", str(failure), "let the user read it: ACL SETUSER NAME +time")


def _seconds(time: tuple[int, int]) -> float:
    seconds, microseconds = time
    return seconds + microseconds / 1_000_000


def _server(server: ServerFindings) -> Iterator[Finding]:
    version = ".".join(map(str, server.version or ()))
    found = f"{server.kind or 'an unknown server'} {version}".strip()
    if server.kind == "redis" and server.version is not None and server.version < MINIMUM:
        yield error("server", found, "Queuert needs Redis 6.2 or newer, or Valkey", "upgrade the server")
    elif server.replica:
        reason = "a replica takes no writes, so no job runs"
        yield error("server", f"{found}, a replica", reason, "use the URL of the primary")
    else:
        yield ok("server", found)


def persistence_findings(server: ServerFindings) -> Iterator[Finding]:
    """The risks that a store reports when it is opened, with the command that ends each."""
    risks = server.risks
    if Risk.EVICTION not in risks and server.policy is not None:
        yield ok("eviction", f"maxmemory-policy is {server.policy}")
    if not set(risks) - {Risk.EVICTION}:
        yield ok("persistence", f"append-only file, appendfsync {server.flush or 'unknown'}")
    for risk in risks:
        check = "eviction" if risk is Risk.EVICTION else "persistence"
        make = error if risk in _LOSES_JOBS else warning
        command = _REMEDIES[risk]
        kept = "" if risk is Risk.UNKNOWN else _kept(command.removeprefix("CONFIG SET "), server.config_file)
        reason, _, _ = risk.advice.partition(": ")
        reason, _, _ = reason.partition(", so")
        yield make(check, str(risk), reason, f"{command}{kept}")


def _kept(setting: str, config_file: str | None) -> str:
    """How a setting is kept over a restart, after ``CONFIG SET``."""
    if config_file == "":
        return f"; to keep it over a restart, start the server with --{setting}, as it has no configuration file"
    written = f", which writes it to {config_file}" if config_file else ""
    return f"; then CONFIG REWRITE{written}, to keep it over a restart"


def _memory_and_disk(client: Any, thresholds: Thresholds) -> Iterator[Finding]:
    try:
        info: Mapping[str, Any] = client.info()
    except redis.ResponseError as failure:
        for check in ("memory", "disk"):
            yield skipped(check, str(failure), "let the user read it: ACL SETUSER NAME +info")
        return
    limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if limit and used > limit * thresholds.used_share:
        found = f"{used / 2**20:,.0f} of {limit / 2**20:,.0f} MiB are in use"
        reason = "when memory is full the server refuses starts, claims and finishes"
        remedy = "CONFIG SET maxmemory, to more; or give job types a retention"
        yield warning("memory", found, reason, remedy)
    else:
        yield ok(
            "memory", f"{used / 2**20:,.0f} MiB in use{f' of {limit / 2**20:,.0f}' if limit else ', no maxmemory'}"
        )
    failed = [
        name
        for name in ("rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status")
        if info.get(name, "ok") != "ok"
    ]
    if failed:
        reason = "what is not on the disk is lost by a restart; with snapshots the server also refuses writes"
        remedy = "look at the server's log and free space on its disk, then BGSAVE or BGREWRITEAOF"
        yield error("disk", f"the last write failed ({', '.join(failed)})", reason, remedy)
    else:
        yield ok("disk", "the last writes to the disk succeeded")


def _on_store(settings: RedisSettings, thresholds: Thresholds) -> Iterator[Finding]:
    # The risk of eviction has been told: the other checks need a store that opens in spite of it.
    store = RedisStore(replace(settings, allow_eviction=True, wait_for_flush=False), 1)
    try:
        store.open()
        yield from store_findings(store, thresholds)
        yield ok("login", "the user may read what the store keeps")
    except QueuertError as failure:
        if (found := _refused(failure)) is not None:
            yield found
            return
        if isinstance(failure, StateUnavailableError):
            raise
        yield skipped("workers", str(failure), "use a user who may run the store's scripts")
    finally:
        store.close()
