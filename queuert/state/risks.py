"""Emits events about risks of a store's configuration."""

from __future__ import annotations

from collections.abc import Sequence

from queuert.observability.adapter import Observers
from queuert.observability.events import StoreWarningRaised
from queuert.state.adapter import StateAdapter
from queuert.state.types import StoreWarning


def emit_store_warnings(state: StateAdapter, risks: Sequence[StoreWarning], observers: Observers) -> None:
    """Emit an event for each risk that was found when a store of ``state`` was opened."""
    for risk in risks:
        observers.emit(StoreWarningRaised(adapter=type(state).__name__, risk=risk.name, advice=risk.advice))
