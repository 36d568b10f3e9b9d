"""A database whose settings are all unusual is migrated, and its roles and jobs are what they are elsewhere."""

from __future__ import annotations

from queuert import Client, migrations
from queuert.notify.in_process import InProcessNotify
from queuert.state.postgres import PostgresState
from tests.support.job_types import JOB_TYPES, number
from tests.support.unusual_settings import make_unusual


def test_up_and_down_and_up_again(bare_dsn: str) -> None:
    dsn = make_unusual(bare_dsn)
    migrations.upgrade(dsn)
    migrations.downgrade(dsn, revision="base")
    migrations.upgrade(dsn)
    assert not migrations.status(dsn).pending
    with Client(PostgresState(dsn), JOB_TYPES, notify=InProcessNotify()) as client:
        chain = client.start_chain(number, 1)
        client.complete_chain(chain, 2)
        assert chain.result() == 2
