"""The page of the history, by its contents alone: without Spark."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from queuert.spark.history.page import page
from queuert.spark.history.view_models import Shown


@pytest.mark.parametrize(("days", "said"), [(1, "<p>1 day, all hours"), (14, "<p>14 days, all hours")])
def test_it_says_how_many_days_it_has(days: int, said: str) -> None:
    through = datetime(2026, 5, 2, tzinfo=UTC)
    assert said in page(Shown((), (), (), through, days, lost=False))
