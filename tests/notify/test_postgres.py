"""Notifications by LISTEN and NOTIFY: what others see of them, and what they may send."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from queuert.errors import ConfigurationError
from queuert.notify import Notification, Topic
from queuert.notify.encoding import MARK, WILDCARD, decode
from queuert.notify.postgres import ListenerTimeouts, PostgresNotify
from queuert.observability.events import ListenerLost, ListenerRestored, NotificationDropped
from tests.notify.conftest import NewPostgresParty
from tests.notify.support import QUICK, START, STRANGE_KEYS, WAIT, Heard, Party, held, wiretap


def test_notifications_of_a_moment_go_out_together(bare_dsn: str, new_postgres_party: NewPostgresParty) -> None:
    party = new_postgres_party(bare_dsn)
    heard, _ = party.listen(Topic.JOBS)
    names = [f"type-{number}" for number in range(10)]
    with wiretap(bare_dsn, "queuert_jobs") as tap:
        gate = held(party)
        for _ in range(100):
            for name in names:
                party.publish(Topic.JOBS, name)
        gate.open()
        heard.wait_for(*names)
        tap.notify("queuert_jobs", "last")
        texts = tap.texts_until("last")
    assert [sorted(decode(text) or ()) for text in texts] == [names]


def test_many_keys_are_a_few_bounded_notifications(bare_dsn: str, new_postgres_party: NewPostgresParty) -> None:
    party = new_postgres_party(bare_dsn)
    keys = {f"00000000-0000-7000-8000-{number:012}" for number in range(1_900)}
    with wiretap(bare_dsn, "queuert_chains") as tap:
        party.publish(Topic.CHAINS, *keys)
        party.publish(Topic.CHAINS, "last")
        heard: set[str] = set()
        sizes = []
        for notice in tap.connection.notifies(timeout=WAIT):
            heard |= decode(notice.payload) or set()
            sizes.append(len(notice.payload))
            if heard >= keys | {"last"}:
                break
    assert heard == keys | {"last"}
    assert len(sizes) <= 13


def test_ten_thousand_keys_are_one_wildcard(bare_dsn: str, new_postgres_party: NewPostgresParty) -> None:
    party = new_postgres_party(bare_dsn)
    heard, _ = party.listen(Topic.CHAINS)
    with wiretap(bare_dsn, "queuert_chains") as tap:
        gate = held(party)
        for start in range(0, 10_000, 100):
            party.publish(Topic.CHAINS, *(f"chain-{number}" for number in range(start, start + 100)))
        gate.open()
        heard.wait_for_wildcard()
        tap.notify("queuert_chains", "last")
        assert tap.texts_until("last") == [WILDCARD]


def test_keys_of_any_characters_arrive(bare_dsn: str, new_postgres_party: NewPostgresParty) -> None:
    heard, _ = new_postgres_party(bare_dsn).listen(Topic.CHAINS)
    publisher = new_postgres_party(bare_dsn)
    for key in STRANGE_KEYS:
        publisher.publish(Topic.CHAINS, key)
    heard.wait_for(*STRANGE_KEYS)
    assert heard.keys == set(STRANGE_KEYS)
    publisher.publish(Topic.CHAINS, *STRANGE_KEYS)
    publisher.publish(Topic.CHAINS, "x" * 10_000)
    heard.wait_for_wildcard()
    assert publisher.recorder.events == []


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_keys_arrive_whatever_the_encoding_of_the_database(
    bare_dsn: str, new_postgres_party: NewPostgresParty, encoding: str
) -> None:
    name = f"queuert_test_{os.getpid()}_{encoding}".lower()
    with psycopg.connect(bare_dsn, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'".encode())
        try:
            party = new_postgres_party(make_conninfo(bare_dsn, dbname=name))
            heard, _ = party.listen(Topic.JOBS)
            party.publish(Topic.JOBS, "日本語", "é")
            heard.wait_for("日本語", "é")
            party.adapter.close()
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def test_a_job_type_as_plain_text_is_a_notification_when_its_transaction_commits(
    bare_dsn: str, new_postgres_party: NewPostgresParty
) -> None:
    heard, _ = new_postgres_party(bare_dsn).listen(Topic.JOBS)
    with psycopg.connect(bare_dsn) as connection:
        for name in ("resize", "größe ändern", '["resize"]'):
            connection.execute("SELECT pg_notify('queuert_jobs', %s)", [name])
    heard.wait_for("resize", "größe ändern", '["resize"]')
    assert heard.wildcards == 0


def test_foreign_payloads_do_no_harm(bare_dsn: str, new_postgres_party: NewPostgresParty) -> None:
    party = new_postgres_party(bare_dsn)
    heard, _ = party.listen(Topic.JOBS)
    fence, _ = party.listen(Topic.CHAINS)
    with wiretap(bare_dsn) as tap:
        for hostile in ("", MARK, f"{MARK}{{", f"{MARK}[1, null]", f"{MARK}" + "[" * 7_900, "\u202e" * 2_000):
            tap.notify("queuert_jobs", hostile)
        tap.notify("queuert_unknown", "not ours")
        tap.notify("queuert_chains", "fence")
        fence.wait_for("fence")
        # What arrived together was told together, so how many notifications there were is chance.
        assert heard.wildcards >= 1
        assert heard.keys <= {"\u202e" * 2_000}
        tap.notify("queuert_jobs", "sensible")
    heard.wait_for("sensible")
    assert party.recorder.events == []


def test_schemas_do_not_hear_each_other(bare_dsn: str, new_postgres_party: NewPostgresParty) -> None:
    other, _ = new_postgres_party(bare_dsn, schema="other").listen(Topic.JOBS)
    ours, _ = new_postgres_party(bare_dsn).listen(Topic.JOBS)
    for schema in ("queuert", "other"):
        new_postgres_party(bare_dsn, schema=schema).publish(Topic.JOBS, f"to {schema}")
    ours.wait_for("to queuert")
    other.wait_for("to other")
    assert ours.keys == {"to queuert"}
    assert other.keys == {"to other"}


def test_the_longest_schema_name_will_do(bare_dsn: str, new_postgres_party: NewPostgresParty) -> None:
    party = new_postgres_party(bare_dsn, schema="s" * 40)
    heard, _ = party.listen(Topic.CHAINS)
    party.publish(Topic.CHAINS, "one")
    heard.wait_for("one")


def test_a_channel_nobody_wants_is_left_and_joined_again(bare_dsn: str, new_postgres_party: NewPostgresParty) -> None:
    party = new_postgres_party(bare_dsn, timeouts=QUICK)
    _, subscription = party.listen(Topic.JOBS)
    stays, _ = party.listen(Topic.CHAINS)
    subscription.close()
    # A new LISTEN shows itself by a wildcard; while the old one lingers there is none.
    deadline = time.monotonic() + WAIT
    while not wildcard_on_coming_back(party):
        assert time.monotonic() < deadline
        threading.Event().wait(2 * QUICK.linger)
    party.publish(Topic.CHAINS, "two")
    stays.wait_for("two")


def wildcard_on_coming_back(party: Party) -> bool:
    heard = Heard()
    subscription = party.adapter.subscribe(Topic.JOBS, heard)
    party.publish(Topic.JOBS, "one")
    heard.wait_until(lambda: bool(heard.notifications), "anything")
    subscription.close()
    return heard.wildcards > 0


@pytest.mark.usefixtures("unhurried_close")
def test_what_is_pending_goes_out_at_close(bare_dsn: str) -> None:
    with wiretap(bare_dsn, "queuert_jobs") as tap:
        party = Party(PostgresNotify(bare_dsn))
        party.publish(Topic.JOBS, "at the last moment")
        party.adapter.close()
        tap.notify("queuert_jobs", "last")
        assert tap.texts_until("last") == ["at the last moment"]
    assert party.recorder.events == []


@pytest.mark.usefixtures("unhurried_close")
def test_close_leaves_no_thread_and_no_connection(bare_dsn: str) -> None:
    before = set(threading.enumerate())
    party = Party(PostgresNotify(bare_dsn))
    party.listen(Topic.JOBS)
    assert len(set(threading.enumerate()) - before) == 1
    party.adapter.close()
    assert set(threading.enumerate()) <= before
    with wiretap(bare_dsn) as tap:
        deadline = time.monotonic() + WAIT
        while tap.listeners():
            assert time.monotonic() < deadline


def test_a_callback_may_close_the_adapter(bare_dsn: str, new_postgres_party: NewPostgresParty) -> None:
    party = new_postgres_party(bare_dsn)
    closed = threading.Event()

    def closes(notification: Notification) -> None:
        party.adapter.close()
        closed.set()

    party.adapter.subscribe(Topic.JOBS, closes)
    assert closed.wait(WAIT)
    assert not party.adapter.healthy


def test_closing_does_not_wait_for_a_server_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        party = Party(PostgresNotify(f"postgresql://nobody@127.0.0.1:{port}/none?connect_timeout=3600&sslmode=disable"))
        party.publish(Topic.JOBS, "lost")
        peer, _ = silent.accept()
        with peer:
            party.adapter.close()
            assert not party.adapter.healthy
    dropped = party.recorder.wait_for(NotificationDropped)
    assert "closed" in dropped.error


def test_observers_of_all_openers_are_reported(bare_dsn: str, new_postgres_party: NewPostgresParty) -> None:
    party = new_postgres_party(bare_dsn)
    heard, _ = party.listen(Topic.JOBS)
    second = Party(party.adapter)
    with wiretap(bare_dsn) as tap:
        tap.end_listeners()
    heard.wait_for_wildcard()
    for recorder in (party.recorder, second.recorder):
        recorder.wait_for(ListenerLost)
        recorder.wait_for(ListenerRestored)
    second.adapter.close()
    assert party.adapter.healthy


@pytest.mark.parametrize(
    ("dsn", "schema"), [("postgresql://[", "queuert"), ("no dsn at all", "queuert"), ("", "Not; a name"), ("", "")]
)
def test_settings_are_checked_at_once(dsn: str, schema: str) -> None:
    with pytest.raises(ConfigurationError):
        PostgresNotify(dsn, schema=schema)


@pytest.mark.parametrize("name", ["answer", "self_test", "retest", "probe", "linger"])
def test_times_are_checked_at_once(name: str) -> None:
    wrong: dict[str, Any] = {name: 0.0}
    with pytest.raises(ConfigurationError, match=name):
        ListenerTimeouts(**wrong)


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(PostgresNotify("postgresql://user:secret@localhost/app"))


@pytest.mark.timeout(START + 60)
def test_a_forked_child_begins_anew(bare_dsn: str) -> None:
    script = Path(__file__).with_name("forking.py")
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", str(script)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "QUEUERT_URL": bare_dsn, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=START,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("child: well\nparent: well\n", 0), done.stderr
