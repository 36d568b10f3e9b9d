"""What happens to notifications when connections break, servers stop, and poolers are in the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from queuert.notify import Topic
from queuert.notify.postgres import ListenConnection, PostgresNotify
from queuert.observability.events import ListenerLost, ListenerRestored, NotificationDropped
from queuert.testing.fault_proxy import FaultProxy
from tests.conftest import StartPostgres
from tests.notify.conftest import NewPostgresParty
from tests.notify.fake_pooler import FakePooler
from tests.notify.support import DOUBTFUL, IMPATIENT, QUICK, START, WAIT, Heard, Party, recovers, wiretap

pytestmark = pytest.mark.fault


def test_a_listener_whose_connection_is_ended_comes_back(bare_dsn: str, new_postgres_party: NewPostgresParty) -> None:
    listener = new_postgres_party(bare_dsn)
    jobs, _ = listener.listen(Topic.JOBS)
    chains, _ = listener.listen(Topic.CHAINS)
    with wiretap(bare_dsn) as tap:
        assert tap.end_listeners() == 1
    recovers(listener, jobs)
    chains.wait_for_wildcard()
    new_postgres_party(bare_dsn).publish(Topic.CHAINS, "one")
    chains.wait_for("one")
    assert [type(event) for event in listener.recorder.events] == [ListenerLost, ListenerRestored]


def test_it_comes_back_every_time(bare_dsn: str, new_postgres_party: NewPostgresParty) -> None:
    party = new_postgres_party(bare_dsn, timeouts=QUICK)
    heard, _ = party.listen(Topic.JOBS)
    with wiretap(bare_dsn) as tap:
        for round_ in range(1, 6):
            tap.end_the_listener()
            heard.wait_for_wildcard(round_)
            party.recorder.wait_for(ListenerRestored, round_)
            party.publish(Topic.JOBS, f"round {round_}")
            heard.wait_for(f"round {round_}")


def test_notifications_of_an_outage_are_sent_after_it(
    private_postgres: StartPostgres, new_postgres_party: NewPostgresParty
) -> None:
    server = private_postgres(durable=False)
    listener = new_postgres_party(server.dsn(), timeouts=QUICK)
    publisher = new_postgres_party(server.dsn(), timeouts=QUICK)
    heard, _ = listener.listen(Topic.JOBS)
    publisher.listen(Topic.LEASES)
    server.stop()
    publisher.recorder.wait_for(ListenerLost)
    listener.recorder.wait_for(ListenerLost)
    assert not listener.adapter.healthy
    for number in range(10_000):
        publisher.publish(Topic.CHAINS, f"chain {number}")
    publisher.publish(Topic.JOBS, "kept")
    server.start()
    recovers(listener, heard)
    recovers(publisher, heard)
    # Whether it was sent before the listener listened again is chance; it then has its wildcard.
    publisher.publish(Topic.JOBS, "later")
    heard.wait_for("later")
    assert publisher.recorder.of(NotificationDropped) == []


def test_a_notification_that_meets_a_dead_connection_is_sent_again(
    bare_dsn: str, new_postgres_party: NewPostgresParty
) -> None:
    with FaultProxy.before(bare_dsn) as proxy, wiretap(bare_dsn, "queuert_jobs") as tap:
        publisher = new_postgres_party(proxy.address_in(bare_dsn), timeouts=QUICK)
        publisher.listen(Topic.CHAINS)
        proxy.lose_request(b"pg_notify")
        publisher.publish(Topic.JOBS, "sent again")
        assert proxy.fired.wait(WAIT)
        assert tap.texts_until("sent again") == []
        publisher.recorder.wait_for(ListenerRestored)


def test_a_server_killed_and_started_again(
    private_postgres: StartPostgres, new_postgres_party: NewPostgresParty
) -> None:
    server = private_postgres(durable=False)
    party = new_postgres_party(server.dsn(), timeouts=QUICK)
    heard, _ = party.listen(Topic.JOBS)
    server.kill()
    party.recorder.wait_for(ListenerLost)
    server.start()
    recovers(party, heard)
    party.publish(Topic.JOBS, "one")
    heard.wait_for("one")


def test_a_network_that_swallows_everything_is_noticed(bare_dsn: str, new_postgres_party: NewPostgresParty) -> None:
    with FaultProxy.before(bare_dsn) as proxy:
        party = new_postgres_party(proxy.address_in(bare_dsn), timeouts=IMPATIENT)
        heard, _ = party.listen(Topic.JOBS)
        proxy.black_hole()
        party.recorder.wait_for_loss("did not answer")
        proxy.heal()
        recovers(party, heard)
        party.publish(Topic.JOBS, "one")
        heard.wait_for("one")


def test_an_answer_that_is_lost_on_its_way_is_noticed(bare_dsn: str, new_postgres_party: NewPostgresParty) -> None:
    with FaultProxy.before(bare_dsn) as proxy:
        party = new_postgres_party(proxy.address_in(bare_dsn), timeouts=IMPATIENT)
        heard, _ = party.listen(Topic.JOBS)
        proxy.black_hole("to_client")
        party.publish(Topic.JOBS, "swallowed")
        party.recorder.wait_for_loss("did not answer")
        proxy.heal()
        recovers(party, heard)


def test_silence_alone_is_no_loss(
    bare_dsn: str, new_postgres_party: NewPostgresParty, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes = counting(monkeypatch, "execute", lambda query, *_: query == "SELECT 1")
    party = new_postgres_party(bare_dsn, timeouts=QUICK)
    heard, _ = party.listen(Topic.JOBS)
    for _ in range(3):
        assert probes.acquire(timeout=WAIT)
    party.publish(Topic.JOBS, "one")
    heard.wait_for("one")
    assert party.recorder.events == []


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


@pytest.mark.parametrize("dsn", ["postgresql://127.0.0.1:1/none", "host=/nonexistent dbname=none"])
def test_a_server_that_is_not_there_is_an_event(dsn: str, new_postgres_party: NewPostgresParty) -> None:
    party = new_postgres_party(dsn, timeouts=QUICK)
    party.adapter.subscribe(Topic.JOBS, Heard())
    party.publish(Topic.JOBS, "nowhere")
    assert party.recorder.wait_for(ListenerLost).adapter == "PostgresNotify"
    assert not party.adapter.healthy
    party.adapter.close()
    party.recorder.wait_for(NotificationDropped)


def test_one_trouble_is_reported_once(
    bare_dsn: str, new_postgres_party: NewPostgresParty, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = counting(monkeypatch, "connect", lambda *_: True)
    party = new_postgres_party(make_conninfo(bare_dsn, dbname="does_not_exist"), timeouts=QUICK)
    for _ in range(5):
        assert attempts.acquire(timeout=WAIT)
    assert "does_not_exist" in party.recorder.wait_for(ListenerLost).error
    assert len(party.recorder.events) == 1


def test_behind_a_pooler_in_transaction_mode_it_sends_and_says_that_it_cannot_listen(
    bare_dsn: str, new_postgres_party: NewPostgresParty
) -> None:
    with FakePooler(bare_dsn, transaction_mode=True) as pooler, wiretap(bare_dsn, "queuert_jobs") as tap:
        party = new_postgres_party(pooler.dsn, timeouts=DOUBTFUL)
        heard = Heard()
        party.adapter.subscribe(Topic.JOBS, heard)
        assert "listen_dsn" in party.recorder.wait_for(ListenerLost).error
        assert not party.adapter.healthy
        party.publish(Topic.JOBS, "one")
        assert tap.texts_until("one") == []
        pooler.transaction_mode = False
        party.recorder.wait_for(ListenerRestored)
        heard.wait_for_wildcard()
        party.publish(Topic.JOBS, "two")
        heard.wait_for("two")
        assert [type(event) for event in party.recorder.events] == [ListenerLost, ListenerRestored]


def test_behind_a_pooler_nobody_is_warned_who_only_sends(bare_dsn: str) -> None:
    with FakePooler(bare_dsn, transaction_mode=True) as pooler, wiretap(bare_dsn, "queuert_jobs") as tap:
        party = Party(PostgresNotify(pooler.dsn, timeouts=QUICK))
        party.publish(Topic.JOBS, "one")
        assert tap.texts_until("one") == []
        assert party.adapter.healthy
        party.adapter.close()
    assert party.recorder.events == []


def test_behind_a_pooler_in_session_mode_all_is_well(bare_dsn: str, new_postgres_party: NewPostgresParty) -> None:
    with FakePooler(bare_dsn, transaction_mode=False) as pooler:
        party = new_postgres_party(pooler.dsn, timeouts=QUICK)
        heard, _ = party.listen(Topic.JOBS)
        new_postgres_party(bare_dsn).publish(Topic.JOBS, "one")
        heard.wait_for("one")
        assert party.recorder.events == []


def test_a_standby_is_no_place_for_notifications_until_it_is_promoted(
    private_postgres: StartPostgres, new_postgres_party: NewPostgresParty
) -> None:
    server = private_postgres(durable=False)
    server.stop()
    (server.data_dir / "standby.signal").touch()
    server.start()
    listener = new_postgres_party(server.dsn(), timeouts=QUICK)
    publisher = new_postgres_party(server.dsn(), timeouts=QUICK)
    heard = Heard()
    listener.adapter.subscribe(Topic.JOBS, heard)
    publisher.publish(Topic.JOBS, "kept")
    for party in (listener, publisher):
        assert "during recovery" in party.recorder.wait_for(ListenerLost).error
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute("SELECT pg_promote()")
    recovers(listener, heard)
    publisher.recorder.wait_for(ListenerRestored)
    publisher.publish(Topic.JOBS, "later")
    heard.wait_for("later")
    assert publisher.recorder.of(NotificationDropped) == []


@pytest.mark.timeout(START + 60)
def test_a_frozen_listener_does_not_fill_the_queue(bare_dsn: str) -> None:
    """The server keeps notifications until each session that listens has sent them on. It ends one that cannot."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("listening.py"))],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "QUEUERT_URL": bare_dsn, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)
        with psycopg.connect(bare_dsn, autocommit=True) as connection:
            # More than the buffers between the two take.
            text = "lpad(random()::text, 7900)"
            connection.execute(f"select pg_notify('queuert_jobs', {text}) from generate_series(1, 3000)".encode())
            others = b"select from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
            while connection.execute(others).fetchall():
                pass
    finally:
        process.kill()
        process.communicate()
