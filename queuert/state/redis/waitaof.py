"""Answers that wait until the server has flushed what they tell of: WAITAOF behind a script, in one round trip.

WAITAOF waits for what its own connection has written, and so for all that was written before: the append-only file is
one sequence. But a script that finds everything done writes nothing, and what it found may not be flushed either. So a
write that is always made stands between the two: it uses up a generation, which nobody misses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from queuert.errors import StateUnavailableError
from queuert.state.redis.settings import RedisSettings


def queued(pipeline: Any, script: Sequence[Any], settings: RedisSettings) -> Any:
    """The pipeline with the words of a script, and with the wait for its flush."""
    pipeline.execute_command(*script)
    pipeline.execute_command("INCR", f"{settings.prefix}gen")
    # A timeout of 0 would be none.
    pipeline.execute_command("WAITAOF", 1, 0, max(1, int(settings.flush_timeout * 1000)))
    return pipeline


def confirmed(answers: Sequence[Any], settings: RedisSettings) -> Any:
    """What the script answered, now that it is flushed.

    Raises:
        redis.ResponseError: the script was refused, or the write behind it.
        StateUnavailableError: the script was run, and whether that is flushed is unknown.
    """
    answer, mark, flush = answers
    for one in (answer, mark):
        if isinstance(one, ResponseError):
            raise one
    if isinstance(flush, ResponseError) or flush[0] < 1:
        why = flush if isinstance(flush, ResponseError) else f"no flush in {settings.flush_timeout:g} s"
        raise StateUnavailableError(f"not known to be flushed ({why}): what was done stands, unless the server crashes")
    return answer
