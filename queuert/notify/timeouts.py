"""How long a listening connection waits for what."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from queuert.errors import ConfigurationError
from queuert.policies import Backoff


@dataclass(frozen=True, slots=True)
class ListenerTimeouts:
    """Limits and intervals of the listening connection, in seconds. The defaults suit production.

    Raises:
        ConfigurationError: one of them is not above 0.
    """

    answer: float = 10.0
    """The longest wait for an answer, after which the connection counts as lost."""
    self_test: float = 5.0
    """The longest wait for a notification to oneself, after which notifications count as not arriving here."""
    retest: float = 60.0
    """The pause before that is tried again."""
    probe: float = 30.0
    """The silence after which the server is asked whether it is there."""
    linger: float = 5.0
    """How long a channel is still listened on after its last subscriber left: the next one often comes at once."""
    backoff: Backoff = field(default_factory=Backoff)
    """The pauses between attempts to connect."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name != "backoff" and not value > 0:
                raise ConfigurationError(f"{one.name} is {value}: above 0 seconds")
