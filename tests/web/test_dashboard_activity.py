"""What workers did is read once: later readings read only the minutes that may have changed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from queuert.activity import Activity
from queuert.web.dashboard.activity import KeptActivity, Selection
from queuert.web.dashboard.charts import SPANS

NOW = datetime(2026, 11, 26, 5, 30, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


class Counted:
    """A client that has a minute of activity for each minute, and notes since when it was read."""

    def __init__(self) -> None:
        self.now = NOW
        self.since: list[datetime] = []
        self.started = 1

    async def get_activity(self, job_types: Any, *, since: datetime, **settings: Any) -> list[Activity]:
        self.since.append(since)
        last = self.now.replace(second=0)
        minutes = int((last - since) / MINUTE) + 1
        return [Activity(since + MINUTE * number, 60, "type", started=self.started) for number in range(minutes)]


async def read(client: Any, wanted: Selection, kept: KeptActivity) -> list[Activity]:
    return list(await kept.read(client, wanted, client.now))


async def test_only_the_last_minutes_are_read_again() -> None:
    client, kept, wanted = Counted(), KeptActivity(), Selection(SPANS["1h"])
    first = await read(client, wanted, kept)
    assert (len(first), client.since) == (60, [NOW.replace(minute=31, hour=4, second=0)])
    client.now, client.started = NOW + 2 * MINUTE, 2
    later = await read(client, wanted, kept)
    assert client.since[1:] == [NOW.replace(minute=27, second=0)]
    # Each minute once, the oldest two are gone, and what may have changed is new.
    assert [one.begins_at for one in later] == [NOW.replace(second=0) + MINUTE * (back - 57) for back in range(60)]
    assert [one.started for one in later] == [1] * 54 + [2] * 6
    # Another selection is another reading.
    await read(client, Selection(SPANS["1h"], type="type"), kept)
    assert client.since[-1] == NOW.replace(hour=4, minute=33, second=0)


async def test_all_is_read_again_after_a_while() -> None:
    client, kept, wanted = Counted(), KeptActivity(), Selection(SPANS["1h"])
    for minutes in (0, 5, 9, 10, 12):
        client.now = NOW + minutes * MINUTE
        assert len(await read(client, wanted, kept)) == 60
    begins = [SPANS["1h"].begins(NOW + minutes * MINUTE) for minutes in (0, 10)]
    assert [one for one in client.since if one in begins] == begins
