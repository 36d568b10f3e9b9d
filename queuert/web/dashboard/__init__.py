"""The dashboard: pages that show chains, jobs, workers and schedules, and change them. It needs ``queuert[web]``.

:class:`DashboardApp` is mounted beside :class:`~queuert.web.WebApp`, or served by ``queuert web`` under ``/dashboard``.
"""

from queuert.optional_packages import needing_extras

with needing_extras():
    from queuert.web.dashboard.app import DashboardApp

__all__ = ["DashboardApp"]
