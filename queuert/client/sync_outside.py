# Generated from queuert/client/async_outside.py, do not edit: see scripts/unasync.py
"""Chains from outside of their handlers, synchronously. ``sync_outside.py`` is generated from this module."""

from __future__ import annotations

from queuert.client.sync_base import ClientBase


class ClientOutside(ClientBase):
    """Completing, cancelling, retrying, triggering and deleting."""
