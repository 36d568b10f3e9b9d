"""What all events have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseEvent:
    """An event: a value that says what happened."""

    level: ClassVar[str] = "info"
    """Of the log entry: debug, info, warning or error."""
