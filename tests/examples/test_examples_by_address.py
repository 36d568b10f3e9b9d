"""The examples whose store is an address are run on Redis, and where nothing of them is Redis' own, on every store."""

from __future__ import annotations

from pathlib import Path

import pytest

from queuert.ids import new_id
from tests.examples.test_examples import BY_ADDRESS, ROOT, run

pytestmark = pytest.mark.timeout(240)

EXAMPLES = sorted(
    path.stem
    for path in (ROOT / "examples").glob("*.py")
    if path.stem.startswith(BY_ADDRESS) and not path.stem.startswith("spark_")
)

OF_REDIS = ("redis_queues",)
"""They use namespaces."""

PRINTS = {
    "federation_delivery": """\
accepted [('ada-bob', 'accepted')]
failed after 1 attempt
healthy [False, True, True]
given up [False, True, True]
a worker is ready
abc-123 (FEDERATE to http://remote.example/inbox): attempt 1 failed, 4 are left: OSError: the server answers 500
abc-123 (FEDERATE to http://remote.example/inbox): attempt 2 failed, 3 are left: OSError: the server answers 500
abc-124: failed for good: queuert.errors.Unrecoverable: the payload has no method that we know
given up after 5 checks
deliveries that are not done: []
""",
    "guild_access_flow": """\
user 7: fan, member
  discord fan (request-7), discord member (request-7), telegram fan (request-7), telegram member (request-7)
user 8: member
  discord member (request-8), telegram member (request-8)
access:check is continued
  access:check/requirement is completed
  access:check/requirement is completed
  access:check/requirement is failed
access:membership is continued
access:rewards is completed
  access:rewards/discord is completed
  access:rewards/telegram is completed
  access:rewards/discord is completed
  access:rewards/telegram is completed
""",
    "redis_cancellation": """\
waiting: cancelled, it is cancelled
scheduled: cancelled, it is cancelled
customers.csv
completed: too late, it is completed
running: cancelled, it is cancelled
the handler is told: cancelled
missing: not found
deduplicated: False, orders of June.csv
orders, again.csv
""",
    "redis_crash": """\
attempt 1 has begun
killed: -9
order-7 was lost by crashing
charged 30, attempt 2
workers' deaths: 1
""",
    "redis_producer_and_consumer": """\
email-123: started
email-123: there already, open
sent welcome to ada@example.com, as email-123
email-123: there already, completed
email-124: started
sent newsletter to ada@example.com, as email-124
the consumer ended with 0, and its job is completed
""",
    "redis_queues": """\
cancelled in green: True; in blue it is open
logo resized by blue
letter sent by blue
photo resized by green
blue: image completed 1, mail completed 1
green: image cancelled 1, image completed 1
chain 'letter' does not exist: it was never committed, or it was deleted
""",
    "redis_requests": """\
no answer yet: open
working on cat.jpg
cat.jpg?w=200
cat.jpg?w=200
cat.jpg?w=200
failed: ValueError: not a picture
cat.jpg?w=200
kept for 24 hours
['updated', 'not_found']
""",
}


def test_every_example_is_known() -> None:
    assert sorted(PRINTS) == EXAMPLES


@pytest.mark.parametrize("name", EXAMPLES)
def test_on_redis(name: str, redis_url: str) -> None:
    address = redis_url if name in OF_REDIS else f"{redis_url}?namespace={new_id()}"
    done = run("-m", f"examples.{name}", dsn=address)
    assert (done.stdout, done.returncode) == (PRINTS[name], 0), done.stderr


@pytest.mark.parametrize("name", [one for one in EXAMPLES if one not in OF_REDIS])
def test_on_postgres(name: str, dsn: str) -> None:
    done = run("-m", f"examples.{name}", dsn=dsn)
    assert (done.stdout, done.returncode) == (PRINTS[name], 0), done.stderr


@pytest.mark.parametrize("name", [one for one in EXAMPLES if one not in OF_REDIS])
def test_on_sqlite_and_again(name: str, tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/queue.db"
    done = run("-m", f"examples.{name}", dsn=address)
    assert (done.stdout, done.returncode) == (PRINTS[name], 0), done.stderr
    again = run("-m", f"examples.{name}", dsn=address)
    assert again.returncode == 0, again.stderr
