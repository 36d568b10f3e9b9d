"""Recurring schedules and pauses, asynchronously. ``sync_recurrence.py`` is generated from this module."""

from __future__ import annotations

from queuert.client.async_base import AsyncClientBase


class AsyncClientRecurrence(AsyncClientBase):
    """Recurring schedules and pauses."""
