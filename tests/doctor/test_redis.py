"""The checks of ``queuert doctor`` on Redis: each with its symptom, and all of them on a server where all is well."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import redis

from queuert import Client, JobType, JobTypes
from queuert.cli import main
from queuert.cli.exit_codes import Exit
from queuert.embedded.server import wait_until
from queuert.notify.in_process import InProcessNotify
from queuert.state.diagnosis import DEFAULT_THRESHOLDS, Finding, Severity, Thresholds
from queuert.state.redis import RedisState
from queuert.state.redis.doctor import persistence_findings
from queuert.state.redis.server_check import ServerFindings
from tests.conftest import StartRedis

number = JobType("number", input=int, output=int)
CHECKS = {
    *("server", "connection", "eviction", "persistence", "clock", "memory", "disk", "login", "workers", "retention"),
}


def problem(url: str, check: str, thresholds: Thresholds = DEFAULT_THRESHOLDS) -> Finding:
    [one] = [one for one in RedisState(url).diagnose(thresholds) if one.check == check]
    assert one.severity in (Severity.WARNING, Severity.ERROR), one
    assert one.reason
    assert one.remedy
    return one


def test_all_is_well(private_redis: StartRedis, capsys: pytest.CaptureFixture[str]) -> None:
    server = private_redis(options={"appendonly": "yes"})
    assert main(["doctor", "--url", server.url(), "--json"]) == Exit.DONE
    items = json.loads(capsys.readouterr().out)["items"]
    assert {item["check"] for item in items} == CHECKS
    assert {item["severity"] for item in items} == {"ok"}


@pytest.mark.parametrize(
    ("settings", "check", "severity", "remedy"),
    [
        ({"maxmemory-policy": "allkeys-lru"}, "eviction", Severity.ERROR, "maxmemory-policy noeviction"),
        ({"appendonly": "no", "save": ""}, "persistence", Severity.ERROR, "appendonly yes"),
        ({"appendonly": "no", "save": "3600 1"}, "persistence", Severity.WARNING, "appendonly yes"),
        ({"appendonly": "yes", "appendfsync": "no"}, "persistence", Severity.WARNING, "appendfsync everysec"),
        ({"maxmemory": "500kb"}, "memory", Severity.WARNING, "maxmemory"),
    ],
)
def test_settings_at_risk(
    private_redis: StartRedis, settings: dict[str, str | int], check: str, severity: Severity, remedy: str
) -> None:
    server = private_redis(options=settings)
    one = problem(server.url(), check)
    assert one.severity is severity
    assert remedy in one.remedy
    if check != "memory":
        file = server.data_dir / "queuert.conf"
        assert one.remedy.endswith(f"then CONFIG REWRITE, which writes it to {file}, to keep it over a restart")


@pytest.mark.parametrize(
    ("file", "kept"),
    [
        ("", "to keep it over a restart, start the server with --appendonly yes, as it has no configuration file"),
        (None, "then CONFIG REWRITE, to keep it over a restart"),
    ],
)
def test_a_server_without_a_known_configuration_file(file: str | None, kept: str) -> None:
    server = ServerFindings(policy="noeviction", append_only=False, snapshots=False, config_file=file)
    [one] = [one for one in persistence_findings(server) if one.check == "persistence"]
    assert one.remedy == f"CONFIG SET appendonly yes; {kept}"


def test_a_replica(private_redis: StartRedis, capsys: pytest.CaptureFixture[str]) -> None:
    primary, replica = private_redis(), private_redis()
    with redis.Redis.from_url(replica.url()) as client:
        client.replicaof("127.0.0.1", primary.port)
    assert "replica" in problem(replica.url(), "server").found
    assert main(["doctor", "--url", replica.url()]) == Exit.FAILED


def test_a_disk_that_cannot_be_written(private_redis: StartRedis) -> None:
    """A snapshot fails if its name is longer than a name may be."""
    server = private_redis(options={"enable-protected-configs": "yes"})
    with redis.Redis.from_url(server.url()) as client:
        client.config_set("dbfilename", "a" * 300)
        client.bgsave()

        def has_failed() -> bool:
            return bool(client.info("persistence")["rdb_last_bgsave_status"] == "err")

        assert wait_until(has_failed, 20.0)
    assert "rdb_last_bgsave_status" in problem(server.url(), "disk").found


def test_a_user_who_may_not_look(private_redis: StartRedis) -> None:
    server = private_redis()
    with redis.Redis.from_url(server.url()) as client:
        client.acl_setuser("app", enabled=True, passwords=["+secret"], keys="*", channels="*", categories=["+@all"])
        client.execute_command("ACL", "SETUSER", "app", "-info", "-config")
    host = server.url().rpartition("@")[2].removeprefix("redis://")
    findings = {one.check: one for one in RedisState(f"redis://app:secret@{host}").diagnose()}
    assert findings["memory"].severity is Severity.SKIPPED
    assert findings["persistence"].severity is Severity.WARNING
    assert "+config|get" in findings["persistence"].remedy


def test_a_login_that_is_refused(private_redis: StartRedis, capsys: pytest.CaptureFixture[str]) -> None:
    url = private_redis().url(password="wrong")
    one = problem(url, "login")
    assert "invalid username-password" in one.found
    assert main(["doctor", "--url", url]) == Exit.FAILED
    assert "correct the user and the password" in capsys.readouterr().out


def test_a_database_that_the_server_does_not_have(private_redis: StartRedis) -> None:
    assert "out of range" in problem(private_redis().url(database=99), "server").found


@pytest.mark.parametrize("rules", ["-xtrim", "-evalsha", "-time", "-zrangebyscore", "nocommands +@connection"])
def test_a_user_who_may_not_run_the_scripts(private_redis: StartRedis, rules: str) -> None:
    server = private_redis()
    with redis.Redis.from_url(server.url()) as client:
        client.execute_command("ACL", "SETUSER", "app", "on", ">word", "~*", "&*", "+@all", *rules.split())
    assert "ACL SETUSER" in problem(server.url(user="app", password="word"), "login").remedy


def test_what_is_in_it(redis_url: str) -> None:
    with Client(RedisState(redis_url), JobTypes(number), notify=InProcessNotify()) as client:
        chain = client.start_chain(number, 1)
        assert (
            "no live worker" in problem(redis_url, "workers", replace(DEFAULT_THRESHOLDS, waiting_seconds=0.0)).reason
        )
        client.cancel_chain(chain.id, reason="a test")
    assert "number" in problem(redis_url, "retention", replace(DEFAULT_THRESHOLDS, kept_days=0.0)).found
