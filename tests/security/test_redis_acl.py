"""A Redis user with nothing but what the documents grant it: the whole store and its notifications work, and no more
does."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from queuert import AsyncClient, InProcessWorker, JobType, JobTypes
from queuert.embedded import EmbeddedRedis
from queuert.embedded.binaries import REDIS_BINARY
from queuert.errors import StateError
from queuert.ids import new_id
from queuert.observability.events import ListenerLost
from queuert.state.redis import RedisState
from queuert.state.redis.scripts import all_names
from queuert.testing.conformance import Mode
from queuert.testing.conformance.registry import Case, run_case
from queuert.testing.events import EventLog
from queuert.worker import Processors
from tests.redis.test_identifiers import Recorded, Tour
from tests.security.test_conformance_as_roles import one_of_each_group
from tests.support.waiting import until

DOCUMENT = Path(__file__).parents[2] / "docs" / "security.md"
LUA = Path(__file__).parents[2] / "queuert" / "state" / "redis" / "lua"
WAIT = 20.0


def documented_rules() -> list[str]:
    """The words of the one line in the documents, after the name of the user."""
    [line] = re.findall(r"^ +ACL SETUSER shop (.*(?:\n +.+)*)", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    return str(line).replace("\\\n", " ").split()


class Limited:
    """A server, and users of it that have the rights of the documents in a namespace of their own."""

    def __init__(self, server: EmbeddedRedis) -> None:
        self.server = server
        self.admin: Any = redis.Redis.from_url(server.url())

    def url(self, namespace: str) -> str:
        """The address of a new user."""
        user = f"user-{namespace}"
        rules = [word.replace("{queuert:shop}", f"{{queuert:{namespace}}}") for word in documented_rules()]
        self.admin.execute_command("ACL", "SETUSER", user, *rules)
        return self.server.url(user=user, password="PASSWORD")


@pytest.fixture(scope="module", params=["the usual server", "redis-server of the system"])
def limited(request: pytest.FixtureRequest) -> Iterator[Limited]:
    """On the server that all tests use, and on the system's, which may be older: Debian 12 has Redis 7.0."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "the usual server":
            program = shutil.which("redis-server")
            if program is None:
                pytest.skip("no redis-server on the PATH: install it with the system's package manager")
            patch.setenv(REDIS_BINARY, program)
        with EmbeddedRedis() as server:
            limited = Limited(server)
            yield limited
            limited.admin.close()


SINCE = {
    **dict.fromkeys(
        [
            "del",
            "exists",
            "get",
            "hdel",
            "hello",
            "hexists",
            "hget",
            "hgetall",
            "hincrby",
            "hmget",
            "hset",
            "hstrlen",
            "hvals",
            "incr",
            "info",
            "lindex",
            "llen",
            "lpop",
            "lpush",
            "lrange",
            "lrem",
            "lset",
            "ping",
            "pexpire",
            "publish",
            "role",
            "rpush",
            "sadd",
            "select",
            "set",
            "smembers",
            "srem",
            "subscribe",
            "time",
            "unsubscribe",
            "zadd",
            "zcard",
            "zcount",
            "zlexcount",
            "zrange",
            "zrangebylex",
            "zrangebyscore",
            "zrem",
            "zremrangebyscore",
            "zrevrange",
            "zrevrangebylex",
            "zrevrangebyscore",
            "zscore",
            "xadd",
            "xrange",
            "xrevrange",
            "xtrim",
            "xlen",
            "hkeys",
            "eval",
            "evalsha",
            "client|setname",
            "config|get",
        ],
        (6, 0),
    ),
    "lmove": (6, 2),
    "client|setinfo": (7, 2),
    "waitaof": (7, 2),
}
"""The version of Redis that has the command, or the subcommand, at the latest; 6.0 stands for all before.

From 7.0 on a server refuses a rule with a name that it does not know, and with it the whole user.
"""

GRAMMAR_OF_6_2 = re.compile(r"on|>\w+|resetkeys|resetchannels|nocommands|~\S+|&\S+|\+[a-z]+(\|[a-z]+)?")
"""Neither selectors nor permissions of keys for reading alone, which came with 7.0, nor denied subcommands."""


def test_every_word_of_the_rules_is_known_from_redis_6_2_on() -> None:
    words = documented_rules()
    assert [word for word in words if not GRAMMAR_OF_6_2.fullmatch(word)] == []
    granted = [word[1:] for word in words if word.startswith("+")]
    assert len(granted) > 40
    assert [name for name in granted if SINCE[name] > (6, 2)] == []


def test_the_commands_are_those_that_the_scripts_call() -> None:
    """One that is no longer called is taken out of the documents, one that is new is put in."""
    texts = [path.read_text(encoding="utf-8") for path in LUA.rglob("*.lua")]
    # Lua's own pcall is another one.
    begin = r"\b(?:call|redis\.pcall)\("
    calls = [call for text in texts for call in re.findall(begin + r"((?:\w+ and )?'\w+'(?: or '\w+')?)", text)]
    assert len(calls) == sum(len(re.findall(begin, text)) for text in texts)
    called = {name.lower() for call in calls for name in re.findall(r"'(\w+)'", call)}
    granted = {word[1:] for word in documented_rules() if word.startswith("+")}
    outside = {"eval", "evalsha", "publish", "subscribe", "unsubscribe", "ping", "select", "hello", "role", "info"}
    assert granted == called | outside | {"client|setname", "config|get"}


@pytest.mark.parametrize("case", one_of_each_group(), ids=str)
def test_the_contract(limited: Limited, case: Case) -> None:
    namespace = new_id()
    state = RedisState(limited.url(namespace), namespace=namespace, answer_timeout=10.0)
    if all(need in state.capabilities for need in case.needs):
        asyncio.run(run_case(case, state, Mode.ASYNC))


def test_every_script(limited: Limited) -> None:
    state = RedisState(limited.url("tour"), namespace="tour")
    store = Recorded(state._settings, 2)
    store.open()
    try:
        assert {risk.name for risk in store.risks} == {"not persisted"}  # It is told how the server is set.
        Tour(store, "plain").go()
        assert store.ran == set(all_names())
    finally:
        store.close()


async def test_a_worker_with_notifications(limited: Limited) -> None:
    number = JobType("number", input=int, output=int)
    log = EventLog()
    client = AsyncClient(
        RedisState(limited.url("notifications"), namespace="notifications"), JobTypes(number), observability=log
    )
    processors = Processors(client.job_types)
    processors.handles(number)(lambda attempt: attempt.input + 1)
    async with client, InProcessWorker(client, processors):
        for value in range(5):
            assert await (await client.start_chain(number, value)).result(WAIT) == value + 1
        await until(lambda: client.notify.healthy, "notifications arrive")
    assert log.of(ListenerLost) == []


@pytest.mark.parametrize(
    "words",
    [
        ("GET", "other"),
        ("SET", "{queuert:other}:j:x", "1"),
        ("EVAL", "return redis.call('GET', KEYS[1])", "1", "{queuert:other}:j:x"),
        ("EVAL", "return redis.call('FLUSHALL')", "0"),
        ("EVAL", "return redis.call('KEYS', '*')", "0"),
        ("PUBLISH", "{queuert:other}:notify:jobs", "x"),
        ("SUBSCRIBE", "{queuert:other}:notify:jobs"),
        ("FLUSHALL",),
        ("FLUSHDB",),
        ("KEYS", "*"),
        ("SCAN", "0"),
        ("CONFIG", "SET", "maxmemory", "1"),
        ("ACL", "LIST"),
        ("CLIENT", "KILL", "TYPE", "normal"),
        ("MONITOR",),
        ("SHUTDOWN",),
        ("SCRIPT", "FLUSH"),
    ],
    ids=" ".join,
)
def test_what_it_may_not(limited: Limited, words: tuple[str, ...]) -> None:
    url = limited.url("own")
    with (
        redis.Redis.from_url(url) as user,
        pytest.raises(redis.ResponseError, match=r"(?i)no permissions|ACL|can.t run this command"),
    ):
        user.execute_command(*words)


def test_a_namespace_that_is_anothers(limited: Limited) -> None:
    store = RedisState(limited.url("own"), namespace="other").sync_store()
    with pytest.raises(StateError, match=r"(?i)no permissions"):
        store.open()


@pytest.mark.parametrize("command", ["xadd", "xtrim", "xrange", "xrevrange"])
def test_a_user_without_the_rights_that_the_event_log_needs_gets_an_error(limited: Limited, command: str) -> None:
    state = RedisState(limited.url("older"), namespace="older")
    limited.admin.execute_command("ACL", "SETUSER", "user-older", f"-{command}")
    with pytest.raises(StateError, match=rf"{command}.*\+xadd \+xrange \+xrevrange \+xtrim"):
        state.sync_store().open()
