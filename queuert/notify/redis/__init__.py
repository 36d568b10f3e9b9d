"""Notifications by Redis' publish and subscribe.

One thread with two connections listens and sends. It waits on their sockets and on a bell, so it costs next to nothing
while nothing happens. Neither publishers nor subscribers ever wait for the server.
"""

from queuert.notify.listener import ListenerTimeouts
from queuert.optional_packages import needing_extras

with needing_extras():
    from queuert.notify.redis.adapter import RedisNotify

__all__ = ["ListenerTimeouts", "RedisNotify"]
