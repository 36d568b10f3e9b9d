"""Django's database connections in the threads and processes of handlers.

Django keeps a connection for each thread, and drops one that broke, or is too old, where a request begins and ends. A
handler is no request: without this a thread that has lost its connection would fail every attempt from then on. Nothing
of Django is imported here.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any


def close_old_connections() -> None:
    """Do in this thread what Django does at each request's begin and end, if this process uses its databases.

    A connection inside of ``atomic`` stays, one within its ``CONN_MAX_AGE`` that works does so too, and
    ``CONN_HEALTH_CHECKS`` look at it before its next use.
    """
    # Half imported by another thread, settings that cannot be read, a connection that cannot be closed: whatever is
    # wrong, the handler's own first query says it better.
    with suppress(Exception):
        django_db = _databases()
        if django_db is not None:
            django_db.close_old_connections()


def close_all_connections() -> None:
    """Close what Django has open in this thread, which ends: only a garbage collection would close it otherwise."""
    with suppress(Exception):
        django_db = _databases()
        if django_db is not None:
            django_db.connections.close_all()


def _databases() -> Any:
    django_db, django_conf = sys.modules.get("django.db"), sys.modules.get("django.conf")
    return django_db if django_db is not None and django_conf is not None and django_conf.settings.configured else None
