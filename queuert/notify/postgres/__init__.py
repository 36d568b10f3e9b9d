"""Notifications by LISTEN and NOTIFY.

One thread with one connection both listens and sends. It waits on the connection's socket and on a bell, so it costs
nothing while nothing happens. Neither publishers nor subscribers ever wait for the database.
"""

from queuert.notify.postgres.adapter import PostgresNotify
from queuert.notify.timeouts import ListenerTimeouts

__all__ = ["ListenerTimeouts", "PostgresNotify"]
