"""Lists and counts, asynchronously. ``sync_listing.py`` is generated from this module."""

from __future__ import annotations

from queuert.client.async_base import AsyncClientBase


class AsyncClientListing(AsyncClientBase):
    """Lists and counts."""
