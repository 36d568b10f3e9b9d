# Generated from queuert/client/async_listing.py, do not edit: see scripts/unasync.py
"""Lists and counts, synchronously. ``sync_listing.py`` is generated from this module."""

from __future__ import annotations

from queuert.client.sync_base import ClientBase


class ClientListing(ClientBase):
    """Lists and counts."""
