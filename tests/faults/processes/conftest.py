"""The stage of the worker's tests, with a table for effects."""

import pytest

from tests.faults.processes.support import make_effects
from tests.worker.conftest import complaints, stage
from tests.worker.support import Stage

__all__ = ["complaints", "scene", "stage"]


@pytest.fixture
def scene(stage: Stage) -> Stage:
    """A stage with the table of effects."""
    make_effects(stage)
    return stage
