"""Delivery to other servers, and health checks that schedule themselves: the program of the example on every store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from examples import federation_delivery as federation
from examples.federation_delivery import (
    ACCEPTED,
    DISCOVERED,
    KEY,
    App,
    Delivery,
    Probe,
    Server,
    follow,
    health,
    peer,
    post,
    signature,
)
from queuert import AsyncChain, Attempt, ChainStatus, Job, JobStatus, NewChain, RetryPolicy
from queuert.errors import ChainNotFoundError, ConfigurationError, JobFailedError
from queuert.observability.events import AttemptCompleted, AttemptContinued, AttemptRetried, AttemptStarted
from queuert.policies import Keep, Retention
from tests.acceptance.support import WAIT, Gate, Ground, in_time, number, text

OK_ANSWER = (200, json.dumps({"ack": {"received": True}}))
DOWN = (503, "")
GOOD = '{"method": "FEDERATE"}'
MINUTE = 0.0001


@pytest.fixture
def app(ground: Ground) -> App:
    """An application whose jobs the ground knows, and which hears of them."""
    ground.knows(federation.job_types)
    return App(minute=MINUTE, follows={"ada-bob": "asked"})


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """Another server, which answers what the test's mark says."""
    with peer(**getattr(request, "param", {"inbox": [OK_ANSWER], "discover": [DISCOVERED]})) as address:
        yield address


def _answers(**answers: list[tuple[int, str]]) -> pytest.MarkDecorator:
    given = {"inbox": [OK_ANSWER], "discover": [DISCOVERED], **answers}
    return pytest.mark.parametrize("server", [given], indirect=True, ids=["answers"])


def _delivery(server: str, payload: str = GOOD) -> Delivery:
    return Delivery(target=f"{server}/inbox", server=server, payload=payload)


async def _delivered(
    ground: Ground, app: App, server: str, *, job_type: Any = post, payload: str = GOOD, base: float = 0.001
) -> tuple[AsyncChain[str], Job]:
    """A delivery that has ended, and its job."""
    app.deliveries["delivery"] = 0
    client = ground.new_client(observability=[ground.log, app])
    async with ground.worker(federation.processors_of(app, base=base), client=client):
        chain = await client.start_chain(job_type, _delivery(server, payload), id="delivery")
        closed = await chain.wait(WAIT)
    # The worker has stopped: all has been told.
    return closed, await client.get_job("delivery")


# --- delivery ---------------------------------------------------------------------------------------------------------


async def test_pauses_double_and_five_attempts_are_made(ground: Ground, app: App) -> None:
    """B05, B11, P51: 5, 10, 20 and 40 seconds, then it has failed; a pause is cut short by a trigger."""
    lost = _delivery("http://127.0.0.1:1")
    app.servers["http://127.0.0.1:1"] = Server(key=KEY)
    chain = await ground.client.start_chain(post, lost, id="lost")
    async with ground.worker(federation.processors_of(app)):
        for attempt in range(1, 5):
            await ground.log.wait_for(AttemptRetried, job_id="lost", attempt=attempt)
            job = await ground.client.get_job("lost")
            assert (job.status, job.attempt) == (JobStatus.SCHEDULED, attempt)
            await ground.client.trigger_job("lost")
        closed = await chain.wait(WAIT)
    assert [event.retry_in for event in ground.log.of(AttemptRetried)] == [5, 10, 20, 40]
    assert (closed.status, (await ground.client.get_job("lost")).attempt) == (ChainStatus.FAILED, 5)


@_answers(inbox=[DOWN, (500, "no"), (404, ""), OK_ANSWER])
async def test_what_the_server_cannot_take_now_is_tried_again(ground: Ground, app: App, server: str) -> None:
    """B08, B11, B17, B18: each failure is told with its number and error; the row goes when it has been delivered."""
    chain, job = await _delivered(ground, app, server)
    assert (await chain.result(), job.attempt) == ("delivered", 4)
    assert app.heard == ["a worker is ready"] + [
        f"delivery: attempt {attempt} failed, {5 - attempt} are left: OSError: the server answers {status}"
        for attempt, status in ((1, 503), (2, 500), (3, 404))
    ]
    assert app.deliveries == {}


async def test_attempts_are_counted_in_the_row_too(ground: Ground, app: App) -> None:
    """B17: before anything is sent."""
    app.servers["http://127.0.0.1:1"] = Server(key=KEY)
    chain, job = await _delivered(ground, app, "http://127.0.0.1:1")
    assert (chain.status, job.attempt, app.deliveries) == (ChainStatus.FAILED, 5, {"delivery": 5})


@pytest.mark.parametrize(
    "payload", ["no json", "null", "42", '"text"', "[]", "{}", '{"method": 42}', '{"method": "DELETE"}']
)
async def test_payloads_that_make_no_sense_fail_at_once(ground: Ground, app: App, server: str, payload: str) -> None:
    """B10, B13: with attempts left, and their row goes."""
    chain, job = await _delivered(ground, app, server, payload=payload)
    assert (chain.status, job.attempt, app.deliveries) == (ChainStatus.FAILED, 1, {})
    with pytest.raises(JobFailedError, match="Unrecoverable: the payload"):
        await chain.result()


async def test_a_blacklisted_server_gets_nothing(ground: Ground, app: App, server: str) -> None:
    """B14."""
    app.blacklist = {server}
    chain, job = await _delivered(ground, app, server)
    assert (chain.status, job.attempt, app.deliveries) == (ChainStatus.FAILED, 1, {})


@_answers(discover=[DOWN, DOWN, DISCOVERED])
async def test_an_unknown_server_is_discovered(ground: Ground, app: App, server: str) -> None:
    """B15: failing that, the delivery is tried again."""
    chain, job = await _delivered(ground, app, server)
    assert (await chain.result(), job.attempt, app.servers[server].key) == ("delivered", 3, KEY)


async def test_without_an_address_of_our_own_nothing_is_sent(ground: Ground, app: App, server: str) -> None:
    """B18, B02: a setting that is missing is no reason to try again; one of the store is refused at once."""
    app.own_url = None
    chain, job = await _delivered(ground, app, server)
    assert (chain.status, job.attempt) == (ChainStatus.FAILED, 1)
    with pytest.raises(ConfigurationError):
        type(ground.client).from_url("", federation.job_types)


@pytest.mark.parametrize(
    "server",
    [{"inbox": [(200, answer)], "discover": [DISCOVERED]} for answer in ("<html>", "[]", "{}", '{"ack": 1}')],
    indirect=True,
    ids=["no JSON", "a list", "nothing", "a number"],
)
async def test_answers_that_make_no_sense_fail_at_once(ground: Ground, app: App, server: str) -> None:
    """B19."""
    chain, job = await _delivered(ground, app, server)
    assert (chain.status, job.attempt) == (ChainStatus.FAILED, 1)


@_answers(inbox=[ACCEPTED])
async def test_the_job_type_says_who_handles_the_acknowledgement(ground: Ground, app: App, server: str) -> None:
    """B04, B20: one handler for two types; that of a post has none, and it is ignored."""
    chain, _ = await _delivered(ground, app, server)
    assert (await chain.result(), app.follows) == ("delivered", {"ada-bob": "asked"})


def _signed(**more: Any) -> tuple[int, str]:
    named = more.get("follow", "ada-bob")
    return 200, json.dumps({"ack": {"follow": named, "signature": signature(KEY, named), **more}})


@pytest.mark.parametrize(
    ("server", "outcome"),
    [
        ({"inbox": [_signed(accepted=True)], "discover": [DISCOVERED]}, "accepted"),
        ({"inbox": [_signed(accepted=False)], "discover": [DISCOVERED]}, "acknowledged"),
        ({"inbox": [_signed()], "discover": [DISCOVERED]}, "acknowledged"),
        ({"inbox": [_signed(follow="nobody")], "discover": [DISCOVERED]}, "ignored"),
    ],
    indirect=["server"],
    ids=["accepted", "refused", "undecided", "unknown"],
)
async def test_follows_that_are_acknowledged(ground: Ground, app: App, server: str, outcome: str) -> None:
    """B21, B22."""
    chain, _ = await _delivered(ground, app, server, job_type=follow)
    assert await chain.result() == outcome
    assert app.follows == {"ada-bob": outcome if outcome != "ignored" else "asked"}


@pytest.mark.parametrize(
    "server",
    [
        {"inbox": [(200, '{"ack": {"follow": 7}}')], "discover": [DISCOVERED]},
        {"inbox": [_signed(signature="forged")], "discover": [DISCOVERED]},
    ],
    indirect=True,
    ids=["invalid", "forged"],
)
async def test_acknowledgements_that_make_no_sense_fail_at_once(ground: Ground, app: App, server: str) -> None:
    """B21."""
    chain, job = await _delivered(ground, app, server, job_type=follow)
    assert (chain.status, job.attempt, app.follows) == (ChainStatus.FAILED, 1, {"ada-bob": "asked"})


# --- health checks ----------------------------------------------------------------------------------------------------


async def test_the_pauses_before_checks_grow(ground: Ground, app: App) -> None:
    """B23: by ten minutes from five on; the job is due then, by the clock of the store."""
    app.minute = 60
    pauses = [federation.pause_before(app, attempt) / 60 for attempt in range(5)]
    assert pauses == [5, 15, 25, 35, 45]
    chain = await federation.schedule_health_check(ground.client, app, "https://remote.example")
    job = await ground.client.get_job(chain.id)
    assert job.status is JobStatus.SCHEDULED
    assert (job.scheduled_at - job.created_at).total_seconds() == pytest.approx(300, abs=1)


async def test_checks_of_one_server_are_one_chain(ground: Ground, app: App) -> None:
    """B24: by an id that its address alone decides, whatever is in it."""
    app.minute = 60
    addresses = ["https://a.example", "https://a.example/", "https://ä.example", "https://a.example"]
    chains = [await federation.schedule_health_check(ground.client, app, one) for one in addresses]
    assert [chain.deduplicated for chain in chains] == [False, False, False, True]
    assert all(chain.id.isascii() and len(chain.id) == 23 for chain in chains)
    assert chains[0].id == chains[3].id


async def _checked(ground: Ground, app: App, server: str) -> str:
    """What the chain of health checks of a server has come to."""
    async with ground.worker(federation.processors_of(app), concurrency=3):
        chain = await federation.schedule_health_check(ground.client, app, server)
        return await chain.result(WAIT)


@_answers(discover=[DOWN, DOWN, DISCOVERED])
async def test_checks_go_on_until_the_server_is_healthy(ground: Ground, app: App, server: str) -> None:
    """B27: each schedules the next, in the commit that ends it."""
    app.servers[server] = Server(key=KEY, healthy=False)
    assert await _checked(ground, app, server) == "healthy"
    assert app.servers[server].healthy
    assert len(ground.log.of(AttemptContinued)) == 2


@_answers(discover=[DOWN])
async def test_checks_are_given_up_after_five(ground: Ground, app: App, server: str) -> None:
    """B28, B27."""
    app.servers[server] = Server(key=KEY, healthy=False)
    assert await _checked(ground, app, server) == "given up"
    assert app.servers[server].checks == 5
    assert app.heard == ["given up after 5 checks"]
    jobs = await ground.client.list_chain_jobs(federation.health_check_id(server))
    assert [job.input["attempt"] for job in jobs] == [0, 1, 2, 3, 4]


async def test_checks_that_need_not_be_made(ground: Ground, app: App, server: str) -> None:
    """B12, B26: an early return is a success without effect."""
    app.servers = {server: Server(key=KEY), "policy": Server(key=KEY, healthy=False, probed=False)}
    outcomes = [await _checked(ground, app, one) for one in (server, "unknown", "policy")]
    assert outcomes == ["nothing to do", "nothing to do", "not to be found out by asking"]


async def test_a_check_is_gone_afterwards(ground: Ground, app: App, server: str) -> None:
    """B25: however it ended, its id is free again."""
    app.servers[server] = Server(key=KEY, healthy=False)
    assert await _checked(ground, app, server) == "healthy"
    id = federation.health_check_id(server)
    await ground.client.update_result_ttl([id], 0.001)
    while await _there(ground, id):
        pass
    again = await federation.schedule_health_check(ground.client, app, server)
    assert (again.id, again.deduplicated) == (id, False)


async def _there(ground: Ground, id: str) -> bool:
    try:
        await ground.client.get_chain(id)
    except ChainNotFoundError:
        return False
    return True


# --- what the queues do for it ----------------------------------------------------------------------------------------


async def test_what_is_kept_by_outcome(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """B06: by the age of each outcome; here all that was delivered goes, and what failed stays."""
    monkeypatch.setattr("queuert.worker.sweeper.SWEEP_EVERY", 0.01)
    monkeypatch.setattr("queuert.worker.sweeper._FIRST", 0.01)

    async def handler(attempt: Any) -> Any:
        return attempt.fail("no good") if attempt.input < 0 else attempt.input

    retention = Retention(completed=Keep(age=0.001), failed=Keep(age=604_800))
    ground.handles(number, handler, retention=retention)
    async with ground.worker():
        chains = await ground.client.start_chains([NewChain(number, value) for value in (1, -1)])
        with pytest.raises(JobFailedError):
            await chains[1].result(WAIT)
        await ground.log.wait_for(AttemptCompleted, job_id=chains[0].id)
        await in_time(_gone(ground, chains[0].id))
        assert await _there(ground, chains[1].id)


async def _gone(ground: Ground, id: str) -> None:
    while await _there(ground, id):
        pass


async def test_two_queues_with_places_of_their_own(ground: Ground) -> None:
    """B01, B03, B07, G31: a worker for each, with connections of its own; the producer is not held up by busy ones."""
    gate = Gate()

    async def handler(attempt: Attempt[Any, Any]) -> Any:
        await gate.pass_through(attempt)
        return attempt.input

    numbers, texts = ground.group(), ground.group()
    numbers.handles(number)(handler)
    texts.handles(text)(handler)
    deliveries = ground.worker(numbers, concurrency=10, connections=2)
    checks = ground.worker(texts, concurrency=3, connections=2)
    await ground.client.start_chains([NewChain(number, value) for value in range(15)])
    await ground.client.start_chains([NewChain(text, "a") for _ in range(5)])
    async with deliveries, checks:
        for _ in range(13):
            await gate.next()
        assert (deliveries.running, checks.running) == (10, 3)
        for value in range(5):
            await in_time(ground.client.start_chain(number, value))
        assert gate.arrived.empty()
        gate.open()
        await ground.log.wait_for(AttemptStarted, times=25)


async def test_defaults_of_a_queue_and_exceptions_from_them(ground: Ground) -> None:
    """B29: retries and retention of the group, or of one type; delay, id, priority and TTL of one job."""
    kept = Retention(failed=Keep(age=60))
    group = ground.group(retry=RetryPolicy(max_attempts=5, initial=5, jitter=0), retention=kept)
    group.handles(number)(lambda attempt: attempt.input)
    group.handles(text, retry=RetryPolicy(max_attempts=1))(lambda attempt: attempt.input)
    assert (group["number"].retry.max_attempts, group["text"].retry.max_attempts) == (5, 1)
    assert group["number"].retention == group["text"].retention == kept
    chain = await ground.client.start_chain(number, 1, id="own", priority=3, result_ttl=60)
    job = await ground.client.get_job(chain.id)
    assert (job.id, job.priority) == ("own", 3)
    assert Probe(server="a").attempt == 0
    assert health.name == "federation-health-check"
