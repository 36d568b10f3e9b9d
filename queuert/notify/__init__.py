"""How sleepers are woken: the contract of a notify adapter, and its implementations.

The one for Postgres is :class:`queuert.notify.postgres.PostgresNotify`; it is imported from there, because it needs
the driver.
"""

from queuert.notify.adapter import Notification, NotificationCallback, NotifyAdapter, Subscription, Topic
from queuert.notify.in_process import InProcessNotify

__all__ = ["NotifyAdapter", "Topic", "Notification", "NotificationCallback", "Subscription", "InProcessNotify"]
