"""What happened, who hears of it, and the adapters for the standard log.

OpenTelemetry's is :class:`queuert.observability.otel.OTelObservability`; the fields of the current attempt, for the
log records of your own code, are in :mod:`queuert.observability.context`.
"""

from queuert.observability import events
from queuert.observability.adapter import ObservabilityAdapter, Observers
from queuert.observability.log import LogObservability

__all__ = ["ObservabilityAdapter", "Observers", "LogObservability", "events"]
