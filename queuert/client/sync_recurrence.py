# Generated from queuert/client/async_recurrence.py, do not edit: see scripts/unasync.py
"""Recurring schedules and pauses, synchronously. ``sync_recurrence.py`` is generated from this module."""

from __future__ import annotations

from queuert.client.sync_base import ClientBase


class ClientRecurrence(ClientBase):
    """Recurring schedules and pauses."""
