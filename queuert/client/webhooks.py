"""Checks of the arguments of webhook operations."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from queuert.errors import ChainNotFoundError, ConfigurationError
from queuert.jobs import ChainRecord
from queuert.state.records import json_value
from queuert.webhooks.endpoints import DELIVERY_TYPE


def check_since(since: Any) -> None:
    """Raise unless it is a time with its zone.

    Raises:
        ConfigurationError: it is not.
    """
    if not isinstance(since, datetime) or since.tzinfo is None:
        raise ConfigurationError(f"since must be a datetime with a time zone, got {since!r}")


def sealed_input(chain: ChainRecord | None, delivery: str) -> Any:
    """Return the input of the chain of a delivery.

    Raises:
        ChainNotFoundError: there is none of this id, or it is not of a delivery.
    """
    if chain is None or chain.type != DELIVERY_TYPE:
        raise ChainNotFoundError(delivery)
    return json_value(chain.input)
