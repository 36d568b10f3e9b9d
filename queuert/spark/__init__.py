"""Spark beside the queue. Only this package and the demo import pyspark: install it with ``queuert[spark]``.

Importing the package is cheap and needs neither pyspark nor pyarrow: each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queuert.spark.datasource import QueuertDataSource as QueuertDataSource
    from queuert.spark.datasource import register as register

_HOME = {
    "QueuertDataSource": "datasource",
    "register": "datasource",
}

__all__ = [
    "QueuertDataSource",
    "register",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
