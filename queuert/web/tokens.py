"""Tokens with which browsers of end users follow one chain."""

from __future__ import annotations

import hashlib
import time

from itsdangerous import BadSignature, URLSafeSerializer

from queuert.errors import ConfigurationError
from queuert.new_chain import ChainReference, chain_ids
from queuert.web.access import READ_ACCESS, Access, Action
from queuert.web.problems import Problem

_SHORTEST_SECRET = 32
_LONGEST = 30 * 86_400
_PURPOSE = "queuert.web.stream"


class StreamTokens:
    """Makes and checks tokens that allow to follow one chain, and nothing else, until a time.

    An ``EventSource`` of a browser can send no header, so the token is in the query: ``/chains/ID/events?token=...``.
    Everyone who has the address can use it until then.

    Args:
        secrets: texts of 32 characters or more, known to your servers only. Tokens are signed with the last one; those
            that were signed with the others are valid as well, so that a secret can be replaced.

    Raises:
        ConfigurationError: there is no secret, or one is too short.

    Example::

        tokens = StreamTokens(os.environ["STREAM_SECRET"])
        app.mount("/queue", WebApp(client, stream_tokens=tokens))
        token = tokens.sign(chain, expires_in=3600)      # for a page that shows /queue/chains/ID/events?token=...
    """

    def __init__(self, *secrets: str) -> None:
        if not secrets or any(len(secret) < _SHORTEST_SECRET for secret in secrets):
            raise ConfigurationError(f"secrets must be one or more texts of {_SHORTEST_SECRET} characters or more each")
        self._serializer = URLSafeSerializer(
            list(secrets), salt=_PURPOSE, signer_kwargs={"key_derivation": "hmac", "digest_method": hashlib.sha256}
        )

    def sign(self, chain: ChainReference, *, expires_in: float = 3600.0, payloads: bool = False) -> str:
        """Return a token for the events of a chain.

        Args:
            chain: its id, or a handle.
            expires_in: seconds until streams with it end, by the clock of this machine; 30 days at most. A stream that
                is open ends within about a minute after that.
            payloads: whether errors and the messages of progress are shown.

        Raises:
            ConfigurationError: ``expires_in`` is out of range.
            InvalidIdentifierError: the id is not valid.
        """
        if not 0 < expires_in <= _LONGEST:
            raise ConfigurationError(f"expires_in must be above 0 and at most {_LONGEST} seconds, got {expires_in}")
        [id] = chain_ids([chain])
        return self._serializer.dumps([id, time.time() + expires_in, payloads])

    def access(self, token: str, chain_id: str) -> Access:
        """Return what the bearer of a token may do with a chain.

        Raises:
            Problem: 403, the token is not valid for the chain, or not any more.
        """
        try:
            id, until, payloads = self._serializer.loads(token)
        except BadSignature:
            raise _invalid_token() from None
        if id != chain_id or time.time() >= until:
            raise _invalid_token()
        principal = f"stream of {id}"
        if payloads:
            return Access([Action.READ, Action.READ_PAYLOADS], principal=principal)
        return Access(READ_ACCESS.actions, principal=principal)


def _invalid_token() -> Problem:
    return Problem(403, "invalid-token", "the token is not valid for this chain, or has expired: get a new one")
