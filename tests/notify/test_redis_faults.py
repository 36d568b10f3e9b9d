"""What happens to notifications when connections break, servers stop, and rights are missing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis

from queuert.notify import Topic
from queuert.notify.redis import RedisNotify
from queuert.notify.redis.connection import ListenConnection
from queuert.observability.events import ListenerLost, ListenerRestored, NotificationDropped
from queuert.testing.fault_proxy import FaultProxy
from tests.conftest import StartRedis
from tests.notify.conftest import NewRedisParty
from tests.notify.support import DOUBTFUL, IMPATIENT, QUICK, WAIT, Heard, Party, RedisTap, recovers, redis_tap
from tests.support.addresses import as_user as with_user

pytestmark = pytest.mark.fault


def kill(tap: RedisTap, kind: str) -> int:
    """End the connections of one kind (``pubsub`` hears, ``normal`` sends) of all adapters; how many there were."""
    ended = 0
    for one in tap.client.client_list(_type=kind):
        if one["name"] == "queuert-notify":
            ended += tap.client.client_kill_filter(_id=one["id"])
    return ended


def counting(monkeypatch: pytest.MonkeyPatch, method: str, condition: Callable[..., bool]) -> threading.Semaphore:
    """A semaphore that is released whenever this method of the connection is called with such arguments."""
    calls = threading.Semaphore(0)
    original = getattr(ListenConnection, method)

    def counted(*arguments: Any, **options: Any) -> Any:
        if condition(*arguments[1:]):
            calls.release()
        return original(*arguments, **options)

    monkeypatch.setattr(ListenConnection, method, counted)
    return calls


@pytest.mark.parametrize("kind", ["pubsub", "normal"])
def test_an_adapter_whose_connection_is_ended_comes_back(
    private_redis: StartRedis, new_redis_party: NewRedisParty, kind: str
) -> None:
    url = private_redis().url()
    listener = new_redis_party(url)
    jobs, _ = listener.listen(Topic.JOBS)
    chains, _ = listener.listen(Topic.CHAINS)
    with redis_tap(url) as tap:
        assert kill(tap, kind) == 1
    recovers(listener, jobs)
    chains.wait_for_wildcard()
    new_redis_party(url).publish(Topic.CHAINS, "one")
    chains.wait_for("one")
    assert [type(event) for event in listener.recorder.events] == [ListenerLost, ListenerRestored]


def test_it_comes_back_every_time(private_redis: StartRedis, new_redis_party: NewRedisParty) -> None:
    url = private_redis().url()
    party = new_redis_party(url, timeouts=QUICK)
    heard, _ = party.listen(Topic.JOBS)
    with redis_tap(url) as tap:
        for round_ in range(1, 6):
            assert kill(tap, "pubsub") == 1
            heard.wait_for_wildcard(round_)
            party.recorder.wait_for(ListenerRestored, round_)
            party.publish(Topic.JOBS, f"round {round_}")
            heard.wait_for(f"round {round_}")


def test_notifications_of_an_outage_are_sent_after_it(
    private_redis: StartRedis, new_redis_party: NewRedisParty
) -> None:
    server = private_redis()
    listener = new_redis_party(server.url(), timeouts=QUICK)
    publisher = new_redis_party(server.url(), timeouts=QUICK)
    heard, _ = listener.listen(Topic.JOBS)
    server.stop()
    publisher.recorder.wait_for(ListenerLost)
    listener.recorder.wait_for(ListenerLost)
    assert not listener.adapter.healthy
    for number in range(10_000):
        publisher.publish(Topic.CHAINS, f"chain {number}")
    publisher.publish(Topic.JOBS, "kept")
    server.start()
    recovers(listener, heard)
    publisher.recorder.wait_for(ListenerRestored)
    # Whether it was sent before the listener listened again is chance; it then has its wildcard.
    publisher.publish(Topic.JOBS, "later")
    heard.wait_for("later")
    assert publisher.recorder.of(NotificationDropped) == []


def test_a_notification_that_meets_a_dead_connection_is_sent_again(
    redis_url: str, new_redis_party: NewRedisParty, namespace: str
) -> None:
    jobs = f"{{queuert:{namespace}}}:notify:jobs"
    with FaultProxy.before(redis_url) as proxy, redis_tap(redis_url, jobs) as tap:
        publisher = new_redis_party(proxy.address_in(redis_url), timeouts=QUICK)
        proxy.lose_request(b"sent again")
        publisher.publish(Topic.JOBS, "sent again")
        assert proxy.fired.wait(WAIT)
        assert tap.texts_until("sent again") == []
        publisher.recorder.wait_for(ListenerRestored)


def test_a_notification_whose_answer_is_lost_is_sent_again(
    redis_url: str, new_redis_party: NewRedisParty, namespace: str
) -> None:
    jobs = f"{{queuert:{namespace}}}:notify:jobs"
    with FaultProxy.before(redis_url) as proxy, redis_tap(redis_url, jobs) as tap:
        publisher = new_redis_party(proxy.address_in(redis_url), timeouts=QUICK)
        proxy.lose_answer(b"twice")
        publisher.publish(Topic.JOBS, "twice")
        assert proxy.fired.wait(WAIT)
        assert tap.texts_until("twice") == []
        assert tap.texts_until("twice") == []


def test_a_server_killed_and_started_again(private_redis: StartRedis, new_redis_party: NewRedisParty) -> None:
    server = private_redis()
    party = new_redis_party(server.url(), timeouts=QUICK)
    heard, _ = party.listen(Topic.JOBS)
    server.kill()
    party.recorder.wait_for(ListenerLost)
    # Sleepers look while there is nothing to hear, and see that they must poll.
    heard.wait_for_wildcard()
    assert not party.adapter.healthy
    heard.forget()
    server.start()
    recovers(party, heard)
    party.publish(Topic.JOBS, "one")
    heard.wait_for("one")


def test_a_server_that_is_started_late_is_found(private_redis: StartRedis, new_redis_party: NewRedisParty) -> None:
    server = private_redis()
    url = server.url()
    server.stop()
    party = new_redis_party(url, timeouts=QUICK)
    heard = Heard()
    party.adapter.subscribe(Topic.JOBS, heard)
    party.recorder.wait_for(ListenerLost)
    assert not party.adapter.healthy
    server.start()
    heard.wait_for_wildcard()
    party.recorder.wait_for(ListenerRestored)
    party.publish(Topic.JOBS, "one")
    heard.wait_for("one")


def test_a_server_that_pauses_is_noticed(private_redis: StartRedis, new_redis_party: NewRedisParty) -> None:
    url = private_redis().url()
    party = new_redis_party(url, timeouts=IMPATIENT)
    heard, _ = party.listen(Topic.JOBS)
    with redis_tap(url) as tap:
        tap.client.execute_command("CLIENT", "PAUSE", round(2_000 * IMPATIENT.answer), "ALL")
    party.recorder.wait_for_loss("did not answer")
    recovers(party, heard)
    party.publish(Topic.JOBS, "one")
    heard.wait_for("one")


@pytest.mark.parametrize("directions", [(), ("to_client",), ("to_server",)])
def test_a_network_that_swallows_everything_is_noticed(
    redis_url: str, new_redis_party: NewRedisParty, directions: tuple[Any, ...]
) -> None:
    with FaultProxy.before(redis_url) as proxy:
        party = new_redis_party(proxy.address_in(redis_url), timeouts=IMPATIENT)
        heard, _ = party.listen(Topic.JOBS)
        proxy.black_hole(*directions)
        party.recorder.wait_for_loss("did not answer")
        proxy.heal()
        recovers(party, heard)
        party.publish(Topic.JOBS, "one")
        heard.wait_for("one")


def test_silence_alone_is_no_loss(
    redis_url: str, new_redis_party: NewRedisParty, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes = counting(monkeypatch, "ping", lambda *_: True)
    party = new_redis_party(redis_url, timeouts=QUICK)
    heard, _ = party.listen(Topic.JOBS)
    for _ in range(3):
        assert probes.acquire(timeout=WAIT)
    party.publish(Topic.JOBS, "one")
    heard.wait_for("one")
    assert party.recorder.events == []


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "unix:///nonexistent/redis.sock"])
def test_a_server_that_is_not_there_is_an_event(url: str, new_redis_party: NewRedisParty) -> None:
    party = new_redis_party(url, timeouts=QUICK)
    party.adapter.subscribe(Topic.JOBS, Heard())
    party.publish(Topic.JOBS, "nowhere")
    assert party.recorder.wait_for(ListenerLost).adapter == "RedisNotify"
    assert not party.adapter.healthy
    party.adapter.close()
    party.recorder.wait_for(NotificationDropped)


def test_one_trouble_is_reported_once(new_redis_party: NewRedisParty, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = counting(monkeypatch, "_identify", lambda *_: True)
    party = new_redis_party("redis://127.0.0.1:1/0", timeouts=QUICK)
    for _ in range(5):
        assert attempts.acquire(timeout=WAIT)
    assert "127.0.0.1:1" in party.recorder.wait_for(ListenerLost).error
    assert len(party.recorder.events) == 1


def as_user(tap: RedisTap, url: str, *rules: str) -> str:
    """The address for a user with these rights alone."""
    tap.client.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">word", *rules)
    return with_user(url, "limited", "word")


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param(("+@all", "resetchannels"), id="no channels"),
        pytest.param(("+@all", "-@pubsub", "&*"), id="no commands"),
        pytest.param(("+@all", "-publish", "&*"), id="no sending"),
        pytest.param(("+@all", "-subscribe", "&*"), id="no hearing"),
    ],
)
def test_a_user_without_the_rights_is_reported_so_and_polls(
    private_redis: StartRedis, new_redis_party: NewRedisParty, rules: tuple[str, ...]
) -> None:
    url = private_redis().url()
    with redis_tap(url) as tap:
        party = new_redis_party(as_user(tap, url, *rules), timeouts=QUICK)
        heard = Heard()
        party.adapter.subscribe(Topic.JOBS, heard)
        reported = party.recorder.wait_for(ListenerLost)
        assert "&{queuert:" in reported.error
        assert not party.adapter.healthy
        as_user(tap, url, "+@all", "&*")
        recovers(party, heard)
        party.publish(Topic.JOBS, "two")
        heard.wait_for("two")
        assert [type(event) for event in party.recorder.events] == [ListenerLost, ListenerRestored]


def test_rights_to_the_notifications_are_enough(
    private_redis: StartRedis, new_redis_party: NewRedisParty, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes = counting(monkeypatch, "ping", lambda *_: True)
    url = private_redis().url()
    with redis_tap(url) as tap:
        limited = as_user(tap, url, "+@pubsub", f"&{{queuert:{namespace}}}:notify:*")
    party = new_redis_party(limited, timeouts=QUICK)
    heard, _ = party.listen(Topic.JOBS)
    for _ in range(3):
        assert probes.acquire(timeout=WAIT)
    party.publish(Topic.JOBS, "one")
    heard.wait_for("one")
    assert party.recorder.events == []


@pytest.mark.usefixtures("unhurried_close")
def test_who_may_not_send_hears_of_it_once(private_redis: StartRedis, new_redis_party: NewRedisParty) -> None:
    url = private_redis().url()
    with redis_tap(url) as tap:
        party = new_redis_party(as_user(tap, url, "+@all", "-publish", "&*"))
        party.publish(Topic.JOBS, "one")
        assert "publish" in party.recorder.wait_for(NotificationDropped).error
        for number in range(10):
            party.publish(Topic.JOBS, f"more {number}")
        # It is one thread that sends and that tells: after this, all has been tried.
        party.adapter.close()
        assert len(party.recorder.events) == 1


def test_rights_that_are_taken_away_are_noticed(
    private_redis: StartRedis, new_redis_party: NewRedisParty, namespace: str
) -> None:
    url = private_redis().url()
    with redis_tap(url) as tap:
        party = new_redis_party(as_user(tap, url, "+@all", "&*"), timeouts=QUICK)
        party.listen(Topic.JOBS)
        as_user(tap, url, "+@all", "&elsewhere")
        party.recorder.wait_for(ListenerLost)
        heard = Heard()
        party.adapter.subscribe(Topic.CHAINS, heard)
        as_user(tap, url, "+@all", "&*")
        party.recorder.wait_for(ListenerRestored)
        heard.wait_for_wildcard()


def test_a_replica_is_no_place_for_notifications_until_it_is_promoted(
    private_redis: StartRedis, new_redis_party: NewRedisParty
) -> None:
    primary, replica = private_redis(), private_redis()
    with redis_tap(replica.url()) as tap:
        tap.client.execute_command("REPLICAOF", "127.0.0.1", str(primary.port))
        party = new_redis_party(replica.url(), timeouts=QUICK)
        heard = Heard()
        party.adapter.subscribe(Topic.JOBS, heard)
        assert "replica" in party.recorder.wait_for(ListenerLost).error
        assert not party.adapter.healthy
        tap.client.execute_command("REPLICAOF", "NO", "ONE")
    party.recorder.wait_for(ListenerRestored)
    heard.wait_for_wildcard()
    party.publish(Topic.JOBS, "one")
    heard.wait_for("one")


def test_an_address_of_two_servers_is_noticed(private_redis: StartRedis, namespace: str) -> None:
    servers = [private_redis(), private_redis()]
    clients = [redis.Redis.from_url(server.url()) for server in servers]
    notify = RedisNotify(clients[0], namespace=namespace, timeouts=DOUBTFUL)
    made = iter(range(1_000))
    makers = [RedisNotify(client)._new_connection for client in clients]
    notify._new_connection = lambda: makers[next(made) % 2]()
    party = Party(notify)
    party.adapter.subscribe(Topic.JOBS, Heard())
    assert "several servers" in party.recorder.wait_for(ListenerLost).error
    assert not party.adapter.healthy
    party.adapter.close()
    for client in clients:
        client.close()
