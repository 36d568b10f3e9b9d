"""Random sequences of calls of a state machine."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine


def try_sequences(machine: type[RuleBasedStateMachine], examples: int, **given: object) -> None:
    """Try sequences of 50 calls, ``QUEUERT_EXAMPLES`` of them if that is set, on machines with these attributes."""
    made: Any = type("Machine", (machine,), given)
    made.TestCase.settings = settings(
        max_examples=int(os.environ.get("QUEUERT_EXAMPLES", examples)),
        # Shrinking takes minutes here, and what a failure says would be lost to the test's own timeout.
        phases=[Phase.generate],
        stateful_step_count=50,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
    )
    made.TestCase().runTest()
