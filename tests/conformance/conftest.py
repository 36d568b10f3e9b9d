"""Runs each case in one mode on each store, unless pytest is told otherwise: `--both-modes`."""

from __future__ import annotations

from pathlib import Path

import pytest

from queuert.testing.conformance import Case
from tests.conformance import sampling


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the cases in the modes in which they do not run."""
    if config.getoption("both_modes"):
        return
    left_out = [item for item in items if item.path.parent == Path(__file__).parent and not _runs(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _runs(item: pytest.Item) -> bool:
    if not isinstance(item, pytest.Function) or item.originalname not in sampling.STORES:
        return True
    case = item.callspec.params["case"]
    assert isinstance(case, Case)
    return item.callspec.params["mode"] in sampling.modes(case, item.originalname)
