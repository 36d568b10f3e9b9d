"""Closes Django's database connections in the threads and processes of handlers.

Django keeps a connection for each thread, and closes a broken or old one when a request begins or ends. Handlers are
not requests: without this module, a thread that has lost its connection would fail each later attempt. It does not
import Django.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any


def close_old_connections() -> None:
    """Close broken and old connections of this thread, as Django does when a request begins or ends.

    A connection inside ``atomic`` stays open, as does one that works within its ``CONN_MAX_AGE``;
    ``CONN_HEALTH_CHECKS`` apply before its next use.
    """
    # Another thread may be importing Django, or the settings may not be valid. The handler's first query raises a
    # better error than this would.
    with suppress(Exception):
        django_db = _databases()
        if django_db is not None:
            django_db.close_old_connections()


def close_all_connections() -> None:
    """Close all connections of this thread, which ends: otherwise only the garbage collector would close them."""
    with suppress(Exception):
        django_db = _databases()
        if django_db is not None:
            django_db.connections.close_all()


def _databases() -> Any:
    django_db, django_conf = sys.modules.get("django.db"), sys.modules.get("django.conf")
    return django_db if django_db is not None and django_conf is not None and django_conf.settings.configured else None
