"""Chaos runs with a checker: a seeded plan breaks workers, clients and their store, and checks judge the history.

``queuert dev chaos`` runs it from the command line, :func:`run_chaos` from Python. A run keeps what clients were told,
every change of a job's status, what handlers wrote in the completing transaction and outside of it, and the final
tables; the invariants of :mod:`queuert.testing.chaos.invariants` are queries over that. ``docs/reliability.md`` lists
them.

Example::

    report = run_chaos(ChaosSettings(profile=PROFILES["smoke"], seed=7, store="postgres"))
    assert report.exit_code == 0, report.summary()
"""

from queuert.testing.chaos.profiles import PROFILES, ChaosSettings, Profile
from queuert.testing.chaos.report import ChaosReport
from queuert.testing.chaos.run import run_chaos
from queuert.testing.chaos.workload import Workload

__all__ = ["PROFILES", "ChaosReport", "ChaosSettings", "Profile", "Workload", "run_chaos"]
