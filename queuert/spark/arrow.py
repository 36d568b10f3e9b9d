"""Functions on Arrow arrays."""

from __future__ import annotations

from typing import Any

import pyarrow.compute

pc: Any = pyarrow.compute
"""Its functions are created when the module is loaded, so type checkers do not know them."""


def text_bytes(array: Any) -> bytes:
    """Return all texts of a column of strings, concatenated, for searches that rarely find anything."""
    _, offsets, data = array.buffers()
    if not len(array) or data is None:
        return b""
    view = memoryview(offsets).cast("i")
    return bytes(memoryview(data)[view[array.offset] : view[array.offset + len(array)]])


def holds_any(array: Any, letters: bytes) -> bool:
    """Whether any text of a column of strings contains one of these bytes."""
    data = text_bytes(array)
    return len(data.translate(None, letters)) != len(data)
