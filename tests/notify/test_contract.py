"""What every notify adapter does, whatever carries its notifications."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from queuert.notify import Notification, NotifyAdapter, Subscription, Topic
from queuert.observability import Observers
from tests.notify.conftest import NewParty
from tests.notify.support import WAIT, Heard, Party

every_topic = pytest.mark.parametrize("topic", list(Topic))


@every_topic
def test_a_notification_reaches_a_subscriber_of_its_topic(new_party: NewParty, topic: Topic) -> None:
    heard, _ = new_party().listen(topic)
    new_party().publish(topic, "one")
    heard.wait_for("one")
    assert heard.notifications == [Notification(topic, frozenset({"one"}))]


@every_topic
def test_one_party_hears_itself(new_party: NewParty, topic: Topic) -> None:
    party = new_party()
    heard, _ = party.listen(topic)
    party.publish(topic, "one")
    heard.wait_for("one")


def test_a_notification_reaches_no_other_topic(new_party: NewParty) -> None:
    listener, publisher = new_party(), new_party()
    chains, _ = listener.listen(Topic.CHAINS)
    jobs, _ = listener.listen(Topic.JOBS)
    publisher.publish(Topic.JOBS, "one")
    jobs.wait_for("one")
    publisher.publish(Topic.CHAINS, "two")
    chains.wait_for("two")
    assert chains.keys == {"two"}
    assert jobs.keys == {"one"}


def test_several_notifications_arrive_all(new_party: NewParty) -> None:
    heard, _ = new_party().listen(Topic.JOBS)
    publisher = new_party()
    names = [f"type-{number}" for number in range(50)]
    for name in names:
        publisher.publish(Topic.JOBS, name)
    heard.wait_for(*names)
    assert heard.wildcards == 0


def test_one_notification_names_many_keys(new_party: NewParty) -> None:
    heard, _ = new_party().listen(Topic.CHAINS)
    new_party().publish(Topic.CHAINS, "a", "b", "c", "a")
    heard.wait_for("a", "b", "c")
    assert heard.notifications == [Notification(Topic.CHAINS, frozenset("abc"))]


def test_no_keys_are_no_notification(new_party: NewParty) -> None:
    heard, _ = new_party().listen(Topic.JOBS)
    publisher = new_party()
    publisher.publish(Topic.JOBS)
    publisher.publish(Topic.JOBS, "one")
    heard.wait_for("one")
    assert heard.notifications == [Notification(Topic.JOBS, frozenset({"one"}))]


def test_notifications_without_listeners_are_harmless(new_party: NewParty) -> None:
    publisher = new_party()
    publisher.publish(Topic.JOBS, "nobody")
    publisher.publish(Topic.LEASES, "nobody")
    heard, _ = publisher.listen(Topic.JOBS)
    publisher.publish(Topic.JOBS, "somebody")
    heard.wait_for("somebody")


def test_notifications_arrive_while_publishing_goes_on(new_party: NewParty) -> None:
    heard, _ = new_party().listen(Topic.JOBS)
    publisher = new_party()
    deadline = time.monotonic() + WAIT
    while not heard.keys:
        publisher.publish(Topic.JOBS, "more")
        assert time.monotonic() < deadline


@every_topic
def test_two_subscribers_hear_the_same(new_party: NewParty, topic: Topic) -> None:
    listener = new_party()
    first, _ = listener.listen(topic)
    second, _ = listener.listen(topic)
    elsewhere, _ = new_party().listen(topic)
    new_party().publish(topic, "one")
    for heard in (first, second, elsewhere):
        heard.wait_for("one")


@every_topic
def test_who_left_hears_no_more_and_the_others_do(new_party: NewParty, topic: Topic) -> None:
    listener, publisher = new_party(), new_party()
    left, subscription = listener.listen(topic)
    stays, _ = listener.listen(topic)
    subscription.close()
    subscription.close()
    publisher.publish(topic, "one")
    stays.wait_for("one")
    # Those who came first are called first: had it been called, it would have been by now.
    assert left.notifications == []


def test_who_comes_back_hears_again(new_party: NewParty) -> None:
    listener, publisher = new_party(), new_party()
    before, subscription = listener.listen(Topic.CHAINS)
    subscription.close()
    after, _ = listener.listen(Topic.CHAINS)
    publisher.publish(Topic.CHAINS, "one")
    after.wait_for("one")
    assert before.notifications == []


def test_one_callback_may_be_subscribed_twice(new_party: NewParty) -> None:
    listener, publisher = new_party(), new_party()
    heard, _ = listener.listen(Topic.JOBS)
    again = listener.adapter.subscribe(Topic.JOBS, heard)
    publisher.publish(Topic.JOBS, "one")
    heard.wait_until(lambda: len(heard.notifications) == 2, "both")
    again.close()
    last, _ = listener.listen(Topic.JOBS)
    publisher.publish(Topic.JOBS, "two")
    last.wait_for("two")
    assert [sorted(notification.keys or ()) for notification in heard.notifications] == [["one"], ["one"], ["two"]]


def test_a_callback_may_leave_and_subscribe(new_party: NewParty) -> None:
    listener, publisher = new_party(), new_party()
    late, calls = Heard(), []

    def once(notification: Notification) -> None:
        if notification.keys is not None:
            calls.append(notification)
            places[0].close()
            listener.adapter.subscribe(Topic.JOBS, late)

    places: list[Subscription] = [listener.adapter.subscribe(Topic.JOBS, once)]
    witness, _ = listener.listen(Topic.JOBS)
    publisher.publish(Topic.JOBS, "one")
    witness.wait_for("one")
    publisher.publish(Topic.JOBS, "two")
    late.wait_for("two")
    assert len(calls) == 1


def test_who_is_removed_while_a_notification_is_reported_does_not_hear_it(new_party: NewParty) -> None:
    listener, publisher = new_party(), new_party()
    places: list[Subscription] = []

    def removes_the_next(notification: Notification) -> None:
        if notification.keys is not None:
            places[0].close()

    listener.adapter.subscribe(Topic.JOBS, removes_the_next)
    removed = Heard()
    places.append(listener.adapter.subscribe(Topic.JOBS, removed))
    witness, _ = listener.listen(Topic.JOBS)
    publisher.publish(Topic.JOBS, "one")
    witness.wait_for("one")
    assert removed.keys == set()


def test_a_callback_may_publish(new_party: NewParty) -> None:
    party = new_party()

    def passes_on(notification: Notification) -> None:
        if notification.keys is not None:
            party.publish(Topic.CHAINS, *notification.keys)

    chains, _ = party.listen(Topic.CHAINS)
    party.listen(Topic.JOBS)
    party.adapter.subscribe(Topic.JOBS, passes_on)
    party.publish(Topic.JOBS, "one")
    chains.wait_for("one")


def test_a_callback_that_raises_disturbs_nobody(new_party: NewParty, caplog: pytest.LogCaptureFixture) -> None:
    def raises(notification: Notification) -> None:
        raise RuntimeError("the subscriber is broken")

    listener, publisher = new_party(), new_party()
    with caplog.at_level(logging.ERROR, "queuert.notify"):
        listener.adapter.subscribe(Topic.JOBS, raises)
        heard, _ = listener.listen(Topic.JOBS)
        publisher.publish(Topic.JOBS, "one")
        heard.wait_for("one")
        publisher.publish(Topic.JOBS, "two")
        heard.wait_for("two")
    assert "the subscriber is broken" in caplog.text
    assert listener.recorder.events == []


def test_after_close_everything_is_harmless(new_party: NewParty) -> None:
    party = new_party()
    heard, subscription = party.listen(Topic.JOBS)
    for _ in range(3):
        party.adapter.close()
    party.publish(Topic.JOBS, "one")
    assert not party.adapter.healthy
    party.adapter.subscribe(Topic.CHAINS, heard).close()
    subscription.close()
    subscription.close()
    assert heard.notifications == []


def test_an_adapter_opens_again(new_party: NewParty) -> None:
    listener, publisher = new_party(), new_party()
    listener.adapter.close()
    publisher.adapter.close()
    again, speaker = Party(listener.adapter), Party(publisher.adapter)
    heard, _ = again.listen(Topic.JOBS)
    speaker.publish(Topic.JOBS, "one")
    heard.wait_for("one")


def test_the_last_close_counts(new_party: NewParty) -> None:
    party = new_party()
    party.adapter.open(Observers([party.recorder]))
    party.adapter.close()
    heard, _ = party.listen(Topic.JOBS)
    party.publish(Topic.JOBS, "one")
    heard.wait_for("one")
    assert party.adapter.healthy
    party.adapter.close()
    assert not party.adapter.healthy


def test_nothing_is_published_before_open(new_party: NewParty) -> None:
    party = new_party()
    party.adapter.close()
    party.publish(Topic.JOBS, "lost")
    heard, _ = Party(party.adapter).listen(Topic.JOBS)
    party.publish(Topic.JOBS, "found")
    heard.wait_for("found")
    assert "lost" not in heard.keys


def test_many_threads_may_publish_and_come_and_go(new_party: NewParty) -> None:
    party = new_party()
    heard, _ = party.listen(Topic.CHAINS)
    threads = [threading.Thread(target=_busy, args=(party.adapter, f"{number}-")) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    heard.wait_until(lambda: heard.wildcards > 0 or len(heard.keys) == 8 * 50, "all")


def _busy(adapter: NotifyAdapter, prefix: str) -> None:
    for number in range(50):
        subscription = adapter.subscribe(Topic.LEASES, lambda notification: None)
        adapter.publish(Topic.CHAINS, [f"{prefix}{number}"])
        subscription.close()
