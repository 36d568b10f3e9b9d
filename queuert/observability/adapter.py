"""Who hears of what happened: the contract of an observability adapter, and how many of them are told."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from queuert.observability.events import Event, ObserverFailed

_fallback = logging.getLogger("queuert.observability")


class ObservabilityAdapter(Protocol):
    """Hears every event, in the order in which they happened in one thread. Give several as a sequence."""

    def emit(self, event: Event) -> None:
        """Take note of an event. Called from the event loop and from threads: be quick, be thread-safe.

        What it raises is reported as :class:`~queuert.observability.events.ObserverFailed` and disturbs nothing.

        An adapter that has a method ``wants(kind: type[Event]) -> bool`` as well spares the worker the making of events
        that it would drop; it may change its mind at any time.
        """
        ...


class Observers:
    """Several adapters as one; none can hurt another or the work that it observes."""

    def __init__(self, adapters: Iterable[ObservabilityAdapter] = ()) -> None:
        self._adapters = tuple(adapters)
        self._wants = tuple(getattr(adapter, "wants", None) or _everything for adapter in self._adapters)

    def want(self, kind: type[Event]) -> bool:
        """Whether any adapter would hear events of this class: where none does, they need not be made.

        An adapter may have a method ``wants(kind) -> bool``; one without it hears everything.
        """
        # Asked several times for each job: a plain loop, which calls nothing of its own.
        for wants in self._wants:  # noqa: SIM110
            if wants(kind):
                return True
        return False

    def add(self, adapter: ObservabilityAdapter) -> None:
        """Tell one more adapter from now on."""
        self._wants = (*self._wants, getattr(adapter, "wants", None) or _everything)
        self._adapters = (*self._adapters, adapter)

    def emit(self, event: Event) -> None:
        """Tell every adapter."""
        for adapter in self._adapters:
            try:
                adapter.emit(event)
            except Exception as error:
                self._report(adapter, event, error)

    def _report(self, broken: ObservabilityAdapter, event: Event, error: Exception) -> None:
        failure = ObserverFailed(adapter=type(broken).__name__, event=type(event).__name__, error=repr(error))
        _fallback.error("%s", failure, exc_info=error)
        for adapter in self._adapters:
            if adapter is not broken:
                try:
                    adapter.emit(failure)
                except Exception:
                    _fallback.exception("an observability adapter failed twice")


def _everything(kind: type[Event]) -> bool:
    return True


def observers(given: ObservabilityAdapter | Iterable[ObservabilityAdapter] | None) -> Observers:
    """The adapters that a client or worker was given, as one; None means the standard log."""
    if isinstance(given, Observers):
        return given
    if given is None:
        from queuert.observability.log import LogObservability

        return Observers([LogObservability()])
    if isinstance(given, Iterable):
        return Observers(given)
    return Observers([given])
