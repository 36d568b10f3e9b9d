"""The invariant of webhooks; see :mod:`.invariants`."""

from __future__ import annotations

from collections.abc import Iterator

from queuert.testing.chaos.history import History
from queuert.testing.chaos.invariants import _names, _reported, invariant
from queuert.testing.chaos.workload import WITH_WEBHOOK

_ACCEPTED = "SELECT {} FROM w WHERE place = 'receiver' AND verified = 1 AND status BETWEEN 200 AND 299"


@invariant("I22", "a webhook is told of each event at least once, its log has that, and requests reach nobody else")
def webhooks_are_delivered(history: History) -> Iterator[str]:
    """Report completed chains that the receiver has not accepted a delivery of, differences between what it accepted
    and the log of deliveries, and requests that should not be there."""
    types = _names(WITH_WEBHOOK)
    yield from _reported(
        history,
        f"""SELECT id FROM s WHERE chain_index = 0 AND type IN {types} AND chain_status = 'completed'
            AND id NOT IN ({_ACCEPTED.format("chain_id")})""",
        "{} was completed, and the webhook was not told",
    )
    logged = "SELECT delivery_id FROM deliveries WHERE error IS NULL"
    yield from _reported(
        history,
        f"SELECT DISTINCT * FROM ({_ACCEPTED.format('delivery_id')}) WHERE delivery_id NOT IN ({logged})",
        "delivery {} was accepted, and the log of deliveries does not say so",
    )
    yield from _reported(
        history,
        f"{logged} AND delivery_id NOT IN ({_ACCEPTED.format('delivery_id')})",
        "the log of deliveries says that {} was accepted, and it was not",
    )
    yield from _reported(
        history,
        f"""SELECT delivery_id, chain_id FROM w WHERE place = 'receiver' AND (verified IS NOT 1 OR chain_id NOT IN (
            SELECT id FROM s WHERE type IN {types} UNION SELECT chain_id FROM c WHERE type IN {types}))""",
        "delivery {} of {} is not signed, or not of this webhook",
    )
    yield from _reported(
        history, "SELECT at FROM w WHERE place <> 'receiver'", "at {} a request went to where none may go"
    )
