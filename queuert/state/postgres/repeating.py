"""What is repeated when it was the victim of a deadlock: work on a connection, in both colours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

from psycopg import AsyncConnection, Connection

T = TypeVar("T")

ROUNDS = 3
"""How often it is tried. The other party has gone on meanwhile, so once more is nearly always enough."""

AsyncWork: TypeAlias = Callable[[AsyncConnection[Any]], Awaitable[T]]
Work: TypeAlias = Callable[[Connection[Any]], T]
