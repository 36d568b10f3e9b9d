"""Every case of the conformance suite as a test of pytest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from queuert.state import StateAdapter
from queuert.testing.conformance.registry import Case, all_cases, run_case
from queuert.testing.conformance.stores import Mode


def conformance_tests(adapter: str, *, user_data: str | None = None) -> Callable[..., None]:
    """Return a test function that runs every case sync and async; assign it to a name that begins with ``test``.

    Args:
        adapter: name of a fixture that yields a fresh, empty :class:`~queuert.state.StateAdapter` for each test.
        user_data: name of a fixture that yields the :class:`~queuert.testing.conformance.UserData` of the same
            database. Adapters that are capable of user transactions need it.
    """

    @pytest.mark.parametrize("case", all_cases(), ids=str)
    @pytest.mark.parametrize("mode", list(Mode), ids=str)
    def test(request: pytest.FixtureRequest, case: Case, mode: Mode) -> None:
        subject: StateAdapter = request.getfixturevalue(adapter)
        lacking = [each.value for each in case.needs if each not in subject.capabilities]
        if lacking:
            pytest.skip(" and ".join(lacking))
        data: Any = request.getfixturevalue(user_data) if user_data else None
        asyncio.run(run_case(case, subject, mode, data))

    return test
