"""Chains from outside of their handlers, asynchronously. ``sync_outside.py`` is generated from this module."""

from __future__ import annotations

from queuert.client.async_base import AsyncClientBase


class AsyncClientOutside(AsyncClientBase):
    """Completing, cancelling, retrying, triggering and deleting."""
