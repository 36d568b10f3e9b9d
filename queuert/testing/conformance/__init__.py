"""The promises of every state adapter, as tests: for the adapters of this package and for those of others.

A case is a coroutine function that gets :class:`Stores` and raises if the adapter breaks the promise in the case's
docstring. :func:`all_cases` lists them; any test runner can run them with :func:`run_case`. With pytest::

    from queuert.testing.conformance.pytest_plugin import conformance_tests

    @pytest.fixture
    def state():
        yield MyState(...)        # a fresh, empty store

    test_conformance = conformance_tests("state")

Each case runs twice, on asynchronous and on synchronous stores. One that needs a
:class:`~queuert.state.Capability` which the adapter lacks is skipped, with the capability's name as the reason.
"""

from queuert.testing.conformance.registry import Case, all_cases, run_case
from queuert.testing.conformance.stores import Mode, Stores, UserData

__all__ = ["Case", "Mode", "Stores", "UserData", "all_cases", "run_case"]
