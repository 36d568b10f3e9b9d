"""The Redis store."""

from queuert.optional_packages import needing_extras

with needing_extras():
    from queuert.state.redis.adapter import RedisState

__all__ = ["RedisState"]
