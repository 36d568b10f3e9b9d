"""The clock by which a worker counts its leases. The store's goes on while this machine is suspended, and so does this.

On Linux ``CLOCK_MONOTONIC`` stands still in a suspend, and after it a lease that the store has long given to somebody
else would seem to have most of its time left.
"""

from __future__ import annotations

import time

_BOOT_TIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)
"""Where there is none, as on macOS and Windows, it is up to the system what Python's monotonic clock does."""


def lease_time() -> float:
    """Seconds since some moment in the past: never back, and through a suspend too."""
    return time.monotonic() if _BOOT_TIME is None else time.clock_gettime(_BOOT_TIME)
