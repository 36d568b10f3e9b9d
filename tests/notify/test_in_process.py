"""What is particular to notifications within one process."""

from __future__ import annotations

from queuert.notify import InProcessNotify, Notification, Topic
from queuert.observability import Observers


def test_notifications_were_reported_when_publish_returns() -> None:
    notify = InProcessNotify()
    notify.open(Observers())
    reported: list[Notification] = []
    notify.subscribe(Topic.JOBS, reported.append)
    notify.publish(Topic.JOBS, ["one"])
    assert reported == [Notification(Topic.JOBS, frozenset({"one"}))]


def test_notifications_from_within_a_callback_are_reported_in_turn_and_not_nested() -> None:
    notify = InProcessNotify()
    notify.open(Observers())
    order: list[str] = []

    def passes_on(notification: Notification) -> None:
        order.append(f"begin {sorted(notification.keys or ())}")
        if notification.keys == frozenset({"0"}):
            for number in range(1, 4):
                notify.publish(Topic.JOBS, [str(number)])
        order.append("end")

    notify.subscribe(Topic.JOBS, passes_on)
    notify.publish(Topic.JOBS, ["0"])
    assert order == [line for number in range(4) for line in (f"begin ['{number}']", "end")]


def test_a_long_exchange_does_not_exhaust_the_stack() -> None:
    notify = InProcessNotify()
    notify.open(Observers())
    counted: list[int] = []

    def counts(notification: Notification) -> None:
        (number,) = map(int, notification.keys or ())
        counted.append(number)
        if number < 5_000:
            notify.publish(Topic.JOBS, [str(number + 1)])

    notify.subscribe(Topic.JOBS, counts)
    notify.publish(Topic.JOBS, ["0"])
    assert counted == list(range(5_001))
