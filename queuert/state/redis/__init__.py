"""The Redis store."""

from queuert.state.redis.adapter import RedisState

__all__ = ["RedisState"]
