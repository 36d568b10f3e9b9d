"""What is asked of Arrow."""

from __future__ import annotations

from typing import Any

import pyarrow.compute

pc: Any = pyarrow.compute
"""Its functions: they are made when the module is loaded, so that no type checker knows them."""


def text_bytes(array: Any) -> bytes:
    """All texts of a column of strings, end to end, for searches that nearly always find nothing."""
    _, offsets, data = array.buffers()
    if not len(array) or data is None:
        return b""
    view = memoryview(offsets).cast("i")
    return bytes(memoryview(data)[view[array.offset] : view[array.offset + len(array)]])


def holds_any(array: Any, letters: bytes) -> bool:
    """Whether any text of a column of strings has one of these bytes."""
    data = text_bytes(array)
    return len(data.translate(None, letters)) != len(data)
