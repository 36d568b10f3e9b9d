"""Notifications by publish and subscribe: what others see of them, and what they may send."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from queuert.errors import ConfigurationError, InvalidIdentifierError
from queuert.notify import Notification, Topic
from queuert.notify.encoding import MARK, MAX_BYTES, WILDCARD, decode
from queuert.notify.redis import ListenerTimeouts, RedisNotify
from queuert.observability.events import ListenerLost, ListenerRestored, NotificationDropped
from tests.conftest import StartRedis
from tests.notify.conftest import NewRedisParty
from tests.notify.support import QUICK, START, STRANGE_KEYS, WAIT, Gate, Heard, Party, held, redis_tap


def channel(namespace: str, topic: Topic) -> str:
    """As it is written in the documents, for senders who are no adapters."""
    return f"{{queuert:{namespace}}}:notify:{topic.value}"


def test_notifications_of_a_moment_go_out_together(
    redis_url: str, new_redis_party: NewRedisParty, namespace: str
) -> None:
    party = new_redis_party(redis_url)
    heard, _ = party.listen(Topic.JOBS)
    names = [f"type-{number}" for number in range(10)]
    with redis_tap(redis_url, channel(namespace, Topic.JOBS)) as tap:
        gate = held(party)
        for _ in range(100):
            for name in names:
                party.publish(Topic.JOBS, name)
        gate.open()
        heard.wait_for(*names)
        tap.publish(channel(namespace, Topic.JOBS), "last")
        texts = tap.texts_until("last")
    assert [sorted(decode(text) or ()) for text in texts] == [names]


def test_many_keys_are_a_few_bounded_messages(redis_url: str, new_redis_party: NewRedisParty, namespace: str) -> None:
    party = new_redis_party(redis_url)
    heard, _ = party.listen(Topic.CHAINS)
    keys = {f"00000000-0000-7000-8000-{number:012}" for number in range(1_900)}
    with redis_tap(redis_url, channel(namespace, Topic.CHAINS)) as tap:
        party.publish(Topic.CHAINS, *keys)
        heard.wait_for(*keys)
        party.publish(Topic.CHAINS, "last")
        texts = tap.texts_until("last")
    assert {key for text in texts for key in decode(text) or ()} == keys
    assert len(texts) == 10
    assert all(len(text) <= MAX_BYTES for text in texts)


def test_ten_thousand_keys_are_one_wildcard(redis_url: str, new_redis_party: NewRedisParty, namespace: str) -> None:
    party = new_redis_party(redis_url)
    heard, _ = party.listen(Topic.CHAINS)
    with redis_tap(redis_url, channel(namespace, Topic.CHAINS)) as tap:
        gate = held(party)
        for start in range(0, 10_000, 100):
            party.publish(Topic.CHAINS, *(f"chain-{number}" for number in range(start, start + 100)))
        gate.open()
        heard.wait_for_wildcard()
        tap.publish(channel(namespace, Topic.CHAINS), "last")
        assert tap.texts_until("last") == [WILDCARD]


def test_keys_of_any_characters_arrive(redis_url: str, new_redis_party: NewRedisParty) -> None:
    heard, _ = new_redis_party(redis_url).listen(Topic.CHAINS)
    publisher = new_redis_party(redis_url)
    for key in STRANGE_KEYS:
        publisher.publish(Topic.CHAINS, key)
    heard.wait_for(*STRANGE_KEYS)
    assert heard.keys == set(STRANGE_KEYS)
    publisher.publish(Topic.CHAINS, *STRANGE_KEYS)
    publisher.publish(Topic.CHAINS, "x" * 10_000)
    heard.wait_for_wildcard()
    assert publisher.recorder.events == []


def test_a_job_type_as_plain_text_is_a_notification(
    redis_url: str, new_redis_party: NewRedisParty, namespace: str
) -> None:
    heard, _ = new_redis_party(redis_url).listen(Topic.JOBS)
    with redis_tap(redis_url) as tap:
        for name in ("resize", "größe ändern", '["resize"]'):
            tap.publish(channel(namespace, Topic.JOBS), name)
    heard.wait_for("resize", "größe ändern", '["resize"]')
    assert heard.wildcards == 0


def test_foreign_messages_do_no_harm(redis_url: str, new_redis_party: NewRedisParty, namespace: str) -> None:
    party = new_redis_party(redis_url)
    heard, _ = party.listen(Topic.JOBS)
    fence, _ = party.listen(Topic.CHAINS)
    with redis_tap(redis_url) as tap:
        for hostile in ("", MARK, f"{MARK}{{", f"{MARK}[1, null]", f"{MARK}" + "[" * 7_900, b"\xff\xfe", b"\0" * 100):
            tap.publish(channel(namespace, Topic.JOBS), hostile)
        tap.publish(f"{{queuert:{namespace}}}:notify:unknown", "not ours")
        tap.publish(f"{{queuert:{namespace}}}:notify:test", "nor a test of ours")
        tap.publish(channel(namespace, Topic.CHAINS), "fence")
        fence.wait_for("fence")
        # What arrived together was told together, so how many notifications there were is chance.
        assert heard.wildcards >= 1
        assert heard.keys <= {"\ufffd\ufffd", "\0" * 100}
        tap.publish(channel(namespace, Topic.JOBS), "sensible")
    heard.wait_for("sensible")
    assert party.recorder.events == []


@pytest.mark.parametrize("other", ["other", "shop:eu", "größe [*]?"])
def test_namespaces_do_not_hear_each_other(
    redis_url: str, new_redis_party: NewRedisParty, namespace: str, other: str
) -> None:
    theirs, _ = new_redis_party(redis_url, namespace=other).listen(Topic.JOBS)
    ours, _ = new_redis_party(redis_url).listen(Topic.JOBS)
    for name in (namespace, other):
        new_redis_party(redis_url, namespace=name).publish(Topic.JOBS, f"to {name}")
    ours.wait_for(f"to {namespace}")
    theirs.wait_for(f"to {other}")
    assert ours.keys == {f"to {namespace}"}
    assert theirs.keys == {f"to {other}"}


def test_a_channel_nobody_wants_is_left_and_joined_again(
    redis_url: str, new_redis_party: NewRedisParty, namespace: str
) -> None:
    party = new_redis_party(redis_url, timeouts=QUICK)
    _, subscription = party.listen(Topic.JOBS)
    stays, _ = party.listen(Topic.CHAINS)
    subscription.close()
    deadline = time.monotonic() + WAIT
    with redis_tap(redis_url) as tap:
        while tap.client.pubsub_numsub(channel(namespace, Topic.JOBS))[0][1]:
            assert time.monotonic() < deadline
    back = Heard()
    party.adapter.subscribe(Topic.JOBS, back)
    back.wait_for_wildcard()
    party.publish(Topic.JOBS, "one")
    party.publish(Topic.CHAINS, "two")
    back.wait_for("one")
    stays.wait_for("two")


def test_a_channel_is_kept_for_a_moment_for_who_comes_next(redis_url: str, new_redis_party: NewRedisParty) -> None:
    party = new_redis_party(redis_url, timeouts=ListenerTimeouts(linger=3_600.0))
    for _ in range(20):
        heard, subscription = party.listen(Topic.JOBS)
        party.publish(Topic.JOBS, "one")
        heard.wait_for("one")
        subscription.close()
        assert heard.wildcards == 0


def test_what_arrives_with_an_answer_is_reported_at_once(
    redis_url: str, new_redis_party: NewRedisParty, namespace: str
) -> None:
    """It was read while something else was waited for, and nothing more comes that would wake the thread."""
    timeouts = ListenerTimeouts(linger=0.01, probe=3_600.0)
    party = new_redis_party(redis_url, timeouts=timeouts)
    _, subscription = party.listen(Topic.JOBS)
    heard, _ = party.listen(Topic.CHAINS)
    subscription.close()
    party.publish(Topic.CHAINS, "the channel lingers")
    heard.wait_for("the channel lingers")
    gate = Gate()
    party.adapter.subscribe(Topic.CHAINS, gate)
    with redis_tap(redis_url) as tap:
        tap.publish(channel(namespace, Topic.CHAINS), "wait")
        assert gate.entered.wait(WAIT)
        threading.Event().wait(2 * timeouts.linger)
        # The next thing the thread does is to leave the channel, and this comes before the answer.
        tap.publish(channel(namespace, Topic.CHAINS), "meanwhile")
        gate.open()
        heard.wait_for("meanwhile")


def test_who_only_sends_keeps_one_connection(private_redis: StartRedis, new_redis_party: NewRedisParty) -> None:
    url = private_redis().url()
    heard, _ = new_redis_party(url).listen(Topic.JOBS)
    with redis_tap(url) as tap:
        before = len(tap.adapters())
        new_redis_party(url).publish(Topic.JOBS, "one")
        heard.wait_for("one")
        assert (before, len(tap.adapters())) == (2, 3)


@pytest.mark.usefixtures("unhurried_close")
def test_what_is_pending_goes_out_at_close(redis_url: str, namespace: str) -> None:
    with redis_tap(redis_url, channel(namespace, Topic.JOBS)) as tap:
        party = Party(RedisNotify(redis_url, namespace=namespace))
        party.publish(Topic.JOBS, "at the last moment")
        party.adapter.close()
        tap.publish(channel(namespace, Topic.JOBS), "last")
        assert tap.texts_until("last") == ["at the last moment"]
    assert party.recorder.events == []


@pytest.mark.usefixtures("unhurried_close")
def test_close_leaves_no_thread_and_no_connection(private_redis: StartRedis) -> None:
    url = private_redis().url()
    before = set(threading.enumerate())
    party = Party(RedisNotify(url))
    party.listen(Topic.JOBS)
    assert len(set(threading.enumerate()) - before) == 1
    party.adapter.close()
    assert set(threading.enumerate()) <= before
    with redis_tap(url) as tap:
        deadline = time.monotonic() + WAIT
        while tap.adapters():
            assert time.monotonic() < deadline


def test_a_callback_may_close_the_adapter(redis_url: str, new_redis_party: NewRedisParty) -> None:
    party = new_redis_party(redis_url)
    closed = threading.Event()

    def closes(notification: Notification) -> None:
        party.adapter.close()
        closed.set()

    party.adapter.subscribe(Topic.JOBS, closes)
    assert closed.wait(WAIT)
    assert not party.adapter.healthy


def test_closing_does_not_wait_for_a_server_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        party = Party(RedisNotify(f"redis://127.0.0.1:{silent.getsockname()[1]}/0"))
        party.publish(Topic.JOBS, "lost")
        peer, _ = silent.accept()
        with peer:
            party.adapter.close()
            assert not party.adapter.healthy
    dropped = party.recorder.wait_for(NotificationDropped)
    assert "closed" in dropped.error


def test_observers_of_all_openers_are_reported(private_redis: StartRedis, new_redis_party: NewRedisParty) -> None:
    url = private_redis().url()
    party = new_redis_party(url)
    heard, _ = party.listen(Topic.JOBS)
    second = Party(party.adapter)
    with redis_tap(url) as tap:
        tap.end_adapters()
    heard.wait_for_wildcard()
    for recorder in (party.recorder, second.recorder):
        recorder.wait_for(ListenerLost)
        recorder.wait_for(ListenerRestored)
    second.adapter.close()
    assert party.adapter.healthy


@pytest.mark.parametrize("decode_responses", [True, False])
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_client_is_taken_as_it_is_and_left_alone(
    redis_url: str, new_redis_party: NewRedisParty, decode_responses: bool, protocol: int
) -> None:
    with redis.Redis.from_url(
        redis_url, decode_responses=decode_responses, protocol=protocol, encoding="latin-1", health_check_interval=1
    ) as client:
        client.set("mine", "kept")
        party = new_redis_party(client)
        heard, _ = party.listen(Topic.JOBS)
        new_redis_party(redis_url).publish(Topic.JOBS, "größe")
        heard.wait_for("größe")
        party.adapter.close()
        assert client.get("mine") == ("kept" if decode_responses else b"kept")
        assert client.connection_pool.connection_kwargs["decode_responses"] is decode_responses
        assert party.recorder.events == []


def test_a_client_with_a_pool_in_use_is_not_waited_for(redis_url: str, new_redis_party: NewRedisParty) -> None:
    pool = redis.BlockingConnectionPool.from_url(redis_url, max_connections=1, timeout=0.01)
    with redis.Redis(connection_pool=pool) as client, client.pipeline() as pipeline:
        pipeline.watch("anything")
        heard, _ = new_redis_party(client).listen(Topic.JOBS)
        new_redis_party(client).publish(Topic.JOBS, "one")
        heard.wait_for("one")
    pool.disconnect()


def test_a_unix_socket_will_do(
    private_redis: StartRedis, new_redis_party: NewRedisParty, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("s") / "redis.sock"
    word = private_redis(options={"unixsocket": str(path)}).password
    heard, _ = new_redis_party(f"unix://:{word}@{path}").listen(Topic.JOBS)
    new_redis_party(f"unix://:{word}@{path}?db=1").publish(Topic.JOBS, "one")
    heard.wait_for("one")


def test_a_password_is_used_and_not_shown(private_redis: StartRedis, new_redis_party: NewRedisParty) -> None:
    server = private_redis()
    with redis.Redis.from_url(server.url()) as admin:
        admin.config_set("requirepass", "s3cret")
    party = new_redis_party(f"redis://:s3cret@127.0.0.1:{server.port}/0")
    heard, _ = party.listen(Topic.JOBS)
    party.publish(Topic.JOBS, "one")
    heard.wait_for("one")
    wrong = new_redis_party(f"redis://:wr0ng@127.0.0.1:{server.port}/0", timeouts=QUICK)
    error = wrong.recorder.wait_for(ListenerLost).error
    assert error
    assert "wr0ng" not in error
    assert "s3cret" not in repr(party.adapter)


@pytest.mark.parametrize(
    "server",
    [
        *("", "localhost", "http://user:s3cret@localhost", "postgresql://user:s3cret@localhost/app"),
        *("redis://user:s3cret@localhost:port/0", "redis://user:s3cret@localhost:99999999/0"),
    ],
)
def test_an_address_is_checked_at_once(server: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        RedisNotify(server)
    assert "s3cret" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None


@pytest.mark.parametrize("namespace", ["{", "a}b"])
def test_a_namespace_is_checked_at_once(namespace: str) -> None:
    with pytest.raises(ConfigurationError, match="namespace"):
        RedisNotify("redis://localhost", namespace=namespace)


@pytest.mark.parametrize("namespace", ["", "\ud800", "x" * 1_000])
def test_a_namespace_is_text_that_can_be_stored(namespace: str) -> None:
    with pytest.raises(InvalidIdentifierError, match="namespace"):
        RedisNotify("redis://localhost", namespace=namespace)


def test_an_asynchronous_client_is_refused(redis_url: str) -> None:
    client: Any = redis.asyncio.Redis.from_url(redis_url)
    with pytest.raises(ConfigurationError, match=r"redis\.asyncio"):
        RedisNotify(client)


@pytest.mark.timeout(START + 60)
def test_a_forked_child_begins_anew(redis_url: str) -> None:
    script = Path(__file__).with_name("forking.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", str(script)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "QUEUERT_URL": redis_url, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=START,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("child: well\nparent: well\n", 0), done.stderr
