"""Errors of webhooks."""

from __future__ import annotations

from queuert.errors import ConfigurationError, ErrorKind, QueuertError


class WebhookVerificationError(QueuertError, ValueError):
    """A received webhook is not authentic: answer it with 400 or 401, and do not look at its payload.

    It is raised for whatever is wrong with what was sent: a header that is missing or malformed, another signature, a
    time that is too far away, a body that is not JSON.
    """

    kind = ErrorKind.USAGE


class ForbiddenTargetError(ConfigurationError):
    """The address of a webhook is not valid, or leads to a network that is not allowed.

    Use an address of the public internet, or allow the network or name: ``TargetPolicy(allow_networks=[...])``.
    """


class WebhookNotFoundError(QueuertError, LookupError):
    """No webhook has this id; the message names it. It may have been deleted."""

    kind = ErrorKind.NOT_FOUND

    def __init__(self, id: str) -> None:
        super().__init__(f"there is no webhook {id!r}: list_webhooks() returns those that exist")
        self.id = id
