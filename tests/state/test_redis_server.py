"""What a server tells of itself when a store is opened, and what is refused or warned of."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import httpx
import pytest
import redis
import redis.asyncio

from queuert import AsyncClient, JobTypes
from queuert.cli import main
from queuert.cli.exit_codes import Exit
from queuert.embedded.ports import ReservedPort
from queuert.errors import StateError, StateUnavailableError, UnsuitableServerError
from queuert.state.redis import RedisState
from queuert.state.redis.server_check import Risk, ServerFindings, async_server_findings, sync_server_findings
from tests.conftest import StartRedis
from tests.web.applications import app_of, problem

SAFE: dict[str, str | int] = {"appendonly": "yes", "appendfsync": "everysec"}


@contextmanager
def connected(url: str, **settings: Any) -> Iterator[Any]:
    """A client, of any type: the driver does not tell those of free commands."""
    with redis.Redis.from_url(url, **settings) as client:
        yield client


def found(start: StartRedis, **options: str | int) -> ServerFindings:
    """What a new server with these options tells."""
    server = start(options={name.replace("_", "-"): value for name, value in options.items()})
    with connected(server.url()) as client:
        return sync_server_findings(client)


def test_a_server_that_keeps_all(private_redis: StartRedis) -> None:
    findings = found(private_redis, **SAFE)
    assert findings.kind in ("redis", "valkey")
    assert findings.version is not None
    assert findings.version >= (6, 2)
    assert (findings.replica, findings.cluster) == (False, False)
    assert (findings.policy, findings.append_only, findings.flush) == ("noeviction", True, "everysec")
    assert findings.risks == ()
    findings.check()


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decode_responses", [True, False])
async def test_any_client_will_do(private_redis: StartRedis, protocol: int, decode_responses: bool) -> None:
    url = private_redis(options={**SAFE, "save": "60 1"}).url()
    settings: dict[str, Any] = {"protocol": protocol, "decode_responses": decode_responses}
    with connected(url, **settings) as client:
        findings = sync_server_findings(client)
    assert findings.snapshots
    assert findings.append_only
    async with redis.asyncio.Redis.from_url(url, **settings) as asynchronous:
        assert await async_server_findings(asynchronous) == findings


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl", "allkeys-random", "volatile-lfu"])
def test_a_server_that_evicts_is_refused_unless_that_is_allowed(private_redis: StartRedis, policy: str) -> None:
    findings = found(private_redis, maxmemory_policy=policy, **SAFE)
    assert findings.policy == policy
    assert findings.risks == (Risk.EVICTION,)
    with pytest.raises(UnsuitableServerError, match=f"{policy}.*noeviction.*allow_eviction=True"):
        findings.check()
    findings.check(allow_eviction=True)


async def test_a_refused_server_is_no_mistake_of_a_request_or_a_command(
    private_redis: StartRedis, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = private_redis(options={"maxmemory-policy": "allkeys-lru", **SAFE}).url()
    client = AsyncClient(RedisState(url), JobTypes())
    transport = httpx.ASGITransport(app_of(client))
    async with httpx.AsyncClient(transport=transport, base_url="http://queue.test") as http:
        assert problem(await http.get("/chains")) == (503, "store-unavailable")
    await client.aclose()
    monkeypatch.setenv("QUEUERT_URL", url)
    assert await asyncio.to_thread(main, ["chains", "list"]) == Exit.UNAVAILABLE
    assert "noeviction" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "risks"),
    [
        ({"appendonly": "no", "save": ""}, (Risk.NOT_PERSISTED,)),
        ({"appendonly": "no", "save": "3600 1"}, (Risk.SNAPSHOTS_ONLY,)),
        ({"appendonly": "yes", "appendfsync": "no"}, (Risk.NOT_FLUSHED,)),
        ({"appendonly": "yes", "appendfsync": "always"}, ()),
        ({"appendonly": "yes", "save": "3600 1"}, ()),
    ],
)
def test_what_is_not_kept_is_warned_of(
    private_redis: StartRedis, options: dict[str, str], risks: tuple[Risk, ...]
) -> None:
    findings = found(private_redis, **options)
    assert findings.risks == risks
    assert all(risk.advice for risk in risks)
    findings.check()


def test_a_replica_is_refused_until_it_is_promoted(private_redis: StartRedis) -> None:
    primary, replica = private_redis(options=SAFE), private_redis(options=SAFE)
    with connected(replica.url()) as client:
        client.execute_command("REPLICAOF", "127.0.0.1", str(primary.port))
        findings = sync_server_findings(client)
        assert findings.replica
        with pytest.raises(StateUnavailableError, match="replica"):
            findings.check()
        client.execute_command("REPLICAOF", "NO", "ONE")
        sync_server_findings(client).check()


def test_a_cluster_is_reported(private_redis: StartRedis) -> None:
    with closing(ReservedPort()) as port:
        assert found(private_redis, cluster_enabled="yes", cluster_port=port.number).cluster


# --- what is forbidden ------------------------------------------------------------------------------------------------


def as_user(start: StartRedis, *rules: str, **options: str | int) -> ServerFindings:
    """What a new server with these options tells a user with these rights."""
    server = start(options={name.replace("_", "-"): value for name, value in options.items()})
    with connected(server.url()) as admin:
        admin.execute_command("ACL", "SETUSER", "limited", "on", ">word", "~*", "&*", *rules)
    with connected(server.url(user="limited", password="word")) as client:
        return sync_server_findings(client)


def test_without_config_the_rest_is_known(private_redis: StartRedis) -> None:
    findings = as_user(private_redis, "+@all", "-config", **SAFE)
    assert (findings.policy, findings.append_only, findings.flush) == ("noeviction", True, None)
    assert findings.snapshots is None
    assert findings.risks == ()
    findings.check()


def test_without_config_it_is_unknown_whether_there_are_snapshots(private_redis: StartRedis) -> None:
    findings = as_user(private_redis, "+@all", "-config", save="60 1")
    assert findings.risks == (Risk.UNKNOWN,)
    findings.check()


def test_without_config_eviction_is_known(private_redis: StartRedis) -> None:
    findings = as_user(private_redis, "+@all", "-config", maxmemory_policy="allkeys-lru", **SAFE)
    with pytest.raises(UnsuitableServerError):
        findings.check()


def test_where_all_is_forbidden_all_is_unknown_and_nothing_is_refused(private_redis: StartRedis) -> None:
    findings = as_user(private_redis, "+@all", "-config", "-info", maxmemory_policy="allkeys-lru")
    assert findings.kind in ("redis", "valkey")
    assert (findings.policy, findings.append_only, findings.snapshots) == (None, None, None)
    assert findings.risks == (Risk.UNKNOWN,)
    findings.check()


def test_a_server_that_is_not_there_is_no_finding() -> None:
    with connected("redis://127.0.0.1:1") as client, pytest.raises(redis.ConnectionError):
        sync_server_findings(client)


def test_a_password_that_is_wrong_is_no_finding(private_redis: StartRedis) -> None:
    server = private_redis()
    with connected(server.url()) as admin:
        admin.config_set("requirepass", "word")
    with connected(server.url()) as client, pytest.raises(redis.AuthenticationError):
        sync_server_findings(client)


# --- waiting for flushes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flush", ["everysec", "always", None])
def test_a_server_whose_flushes_can_be_waited_for(flush: str | None) -> None:
    ServerFindings(append_only=True, flush=flush).check(wait_for_flush=True)


def test_a_server_that_is_too_old_to_wait_for() -> None:
    unknown = redis.ResponseError("unknown command 'WAITAOF', with args beginning with: '1' '0' '1' ")
    server = OldServer(REFUSED, {"redis_version": "7.0.15"}, *[REFUSED] * 4, unknown)
    findings = sync_server_findings(server, wait_for_flush=True)
    findings.check()
    with pytest.raises(StateError, match=r"WAITAOF.*Redis 7\.2"):
        findings.check(wait_for_flush=True)


# --- versions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "findings",
    [
        ServerFindings(kind="redis", version=(6, 2, 0)),
        ServerFindings(kind="redis", version=(8, 4, 1)),
        ServerFindings(kind="valkey", version=(1, 0)),
        ServerFindings(),
    ],
)
def test_versions_that_will_do(findings: ServerFindings) -> None:
    findings.check()


@pytest.mark.parametrize("version", [(6, 0, 16), (5, 0, 7), (2, 8)])
def test_a_redis_that_is_too_old(version: tuple[int, ...]) -> None:
    with pytest.raises(StateError, match=r"6\.2"):
        ServerFindings(kind="redis", version=version).check()


class OldServer:
    """Answers as servers do that cannot be had here: lists and errors, as the driver hands them on."""

    def __init__(self, *answers: object) -> None:
        self._answers = answers

    def pipeline(self, transaction: bool) -> OldServer:
        return self

    def execute_command(self, *words: str) -> None:
        pass

    def execute(self, raise_on_error: bool) -> list[object]:
        return list(self._answers)


REFUSED = redis.ResponseError("unknown command")


@pytest.mark.parametrize(
    ("hello", "info", "kind", "version"),
    [
        (REFUSED, {"redis_version": "5.0.7", "role": "master"}, "redis", (5, 0, 7)),
        (REFUSED, {"redis_version": "7.2.4", "valkey_version": "8.1.0-rc1"}, "valkey", (8, 1, 0)),
        (REFUSED, {"redis_version": "7.4.0", "dragonfly_version": "df-v1.27.1"}, "dragonfly", (1, 27, 1)),
        ([b"server", b"redis", b"version", b"6.0.9"], REFUSED, "redis", (6, 0, 9)),
        ({"server": "Redis", "version": "7.0.0", "role": "replica"}, REFUSED, "redis", (7, 0, 0)),
    ],
)
def test_names_and_versions_are_read(hello: object, info: object, kind: str, version: tuple[int, ...]) -> None:
    findings = sync_server_findings(OldServer(hello, info, *[REFUSED] * 4))
    assert (findings.kind, findings.version) == (kind, version)
