"""Delivery to other servers, and health checks that schedule themselves: the program of the example on every store."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag

from examples import federation_delivery as federation
from examples.delivery_keys import OwnKeys, verified
from examples.delivery_peer import ACCEPTED, DISCOVERED, THEIRS, peer
from examples.federation_delivery import App, Delivery, Probe, follow, health, post
from queuert import AsyncChain, Attempt, ChainStatus, JobStatus, NewChain, RetryPolicy
from queuert.errors import ChainNotFoundError, ConfigurationError, JobFailedError
from queuert.jobs import Job
from queuert.observability.events import AttemptCompleted, AttemptContinued, AttemptRetried, AttemptStarted, ChainClosed
from queuert.policies import Keep, Retention
from tests.behaviours.conftest import NewHarness
from tests.support.harness import Harness
from tests.support.job_types import number, text
from tests.support.waiting import WAIT, Gate, in_time

OK_ANSWER = (200, json.dumps({"ack": {"received": True}}))
DOWN = (503, "")
GOOD = '{"method": "FEDERATE"}'
MINUTE = 0.0001


@pytest.fixture
def harness(new_harness: NewHarness) -> Harness:
    """The harness of each store, with the job types of the application."""
    return new_harness(federation.job_types)


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    """An application that starts these jobs and observes them."""
    app = App(tmp_path / "application.db", minute=MINUTE)
    app.rows("INSERT INTO follow VALUES ('ada-bob', 'requested')")
    yield app
    app.close()


def _follows(app: App) -> dict[str, str]:
    return dict(app.rows("SELECT id, state FROM follow"))


def _attempts(app: App) -> dict[str, int]:
    """Of the deliveries that are not done."""
    return dict(app.rows("SELECT id, attempts FROM delivery"))


@pytest.fixture
def received() -> list[tuple[str, str, str]]:
    """What the other server was asked for: the address, the signature and the message."""
    return []


@pytest.fixture
def server(request: pytest.FixtureRequest, received: list[tuple[str, str, str]]) -> Iterator[str]:
    """Another server, which answers what the test's mark says."""
    with peer(received, **getattr(request, "param", {"inbox": [OK_ANSWER], "discover": [DISCOVERED]})) as address:
        yield address


def _answers(**answers: list[tuple[int, str]]) -> pytest.MarkDecorator:
    given = {"inbox": [OK_ANSWER], "discover": [DISCOVERED], **answers}
    return pytest.mark.parametrize("server", [given], indirect=True, ids=["answers"])


def _delivery(server: str, payload: str = GOOD) -> Delivery:
    return Delivery(target=f"{server}/inbox", server=server, payload=payload)


async def _delivered(
    harness: Harness, app: App, server: str, *, job_type: Any = post, payload: str = GOOD, base: float = 0.001
) -> tuple[AsyncChain[str], Job]:
    """A delivery that has ended, and its job."""
    client = harness.new_client(observability=[harness.log, app])
    async with harness.worker(federation.processors_of(app, base=base), client=client):
        chain = await federation.start_delivery(client, app, job_type, _delivery(server, payload), id="delivery")
        closed = await chain.wait(WAIT)
    # The worker has stopped: all has been told.
    return closed, await client.get_job("delivery")


# --- delivery ---------------------------------------------------------------------------------------------------------


async def test_pauses_double_and_five_attempts_are_made(harness: Harness, app: App) -> None:
    """B05, B11, P51: 5, 10, 20 and 40 seconds, then it has failed; a pause is cut short by a trigger."""
    lost = _delivery("http://127.0.0.1:1")
    app.add_server("http://127.0.0.1:1", THEIRS.published)
    chain = await harness.client.start_chain(post, lost, id="lost")
    async with harness.worker(federation.processors_of(app)):
        for attempt in range(1, 5):
            await harness.log.wait_for(AttemptRetried, job_id="lost", attempt=attempt)
            job = await harness.client.get_job("lost")
            assert (job.status, job.attempt) == (JobStatus.SCHEDULED, attempt)
            await harness.client.trigger_job("lost")
        closed = await chain.wait(WAIT)
    assert [event.retry_in for event in harness.log.of(AttemptRetried)] == [5, 10, 20, 40]
    assert (closed.status, (await harness.client.get_job("lost")).attempt) == (ChainStatus.FAILED, 5)


@_answers(inbox=[DOWN, (500, "no"), (404, ""), OK_ANSWER])
async def test_what_the_server_cannot_take_now_is_tried_again(harness: Harness, app: App, server: str) -> None:
    """B08, B11, B17, B18: each failure is told with method, target, number and error; the row goes at the end."""
    chain, job = await _delivered(harness, app, server)
    assert (await chain.result(), job.attempt) == ("delivered", 4)
    assert app.heard == ["a worker is ready"] + [
        f"delivery (FEDERATE to {server}/inbox): attempt {attempt} failed, {5 - attempt} are left:"
        f" OSError: the server answers {status}"
        for attempt, status in ((1, 503), (2, 500), (3, 404))
    ]
    assert _attempts(app) == {}


async def test_a_worker_in_trouble_tells_the_application(
    harness: Harness, app: App, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B08: what is wrong with it and no job's fault is told too, and it goes on."""

    async def broken(maintenance: Any) -> float:
        raise RuntimeError("no sweeping today")

    monkeypatch.setattr("queuert.worker.maintenance.Maintenance._step", broken)
    chain, _ = await _delivered(harness, app, server)
    assert await chain.result() == "delivered"
    assert "the worker is in trouble: RuntimeError: no sweeping today" in app.heard


async def test_what_is_sent_only_the_server_can_read(
    harness: Harness, app: App, server: str, received: list[tuple[str, str, str]]
) -> None:
    """B16: the message is encrypted with its public key, and what it says is signed with ours."""
    chain, _ = await _delivered(harness, app, server)
    assert await chain.result() == "delivered"
    [(_, signature, message)] = [one for one in received if one[0] == "/inbox"]
    assert "FEDERATE" not in message
    assert THEIRS.opened(message) == GOOD
    with pytest.raises(InvalidTag):
        OwnKeys().opened(message)
    assert verified(app.keys.published["verify"], GOOD, signature)
    assert not verified(app.keys.published["verify"], GOOD + " ", signature)


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


async def test_a_server_that_does_not_answer_in_time_is_tried_again(
    harness: Harness, app: App, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B18: a delivery is given 15 seconds, a discovery 8; here both less."""
    assert (federation.DELIVERY_TIMEOUT, federation.PROBE_TIMEOUT) == (15, 8)
    monkeypatch.setattr(federation, "DELIVERY_TIMEOUT", 0.02)
    monkeypatch.setattr(federation, "PROBE_TIMEOUT", 0.03)
    waits: list[float] = []
    connected = socket.create_connection

    def noted(address: Any, timeout: Any = None, *more: Any, **named: Any) -> socket.socket:
        if f":{address[1]}" in silent:
            waits.append(timeout)
        return connected(address, timeout, *more, **named)

    monkeypatch.setattr(socket, "create_connection", noted)
    chain, job = await _delivered(harness, app, silent)
    assert (chain.status, job.attempt, _attempts(app)) == (ChainStatus.FAILED, 5, {"delivery": 0})
    app.add_server(silent, THEIRS.published)
    await harness.client.delete_chain(chain)
    chain, job = await _delivered(harness, app, silent)
    assert (chain.status, job.attempt, _attempts(app)) == (ChainStatus.FAILED, 5, {"delivery": 5})
    assert waits == [0.03] * 5 + [0.02] * 5


async def test_a_server_that_cannot_be_reached_is_requested_through_the_proxy(
    harness: Harness, app: App, server: str, received: list[tuple[str, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B18: what it answers through it counts, a refusal too."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    app.proxy, away = server, "http://127.0.0.1:1"
    chain, job = await _delivered(harness, app, away)
    assert (await chain.result(), job.attempt) == ("delivered", 1)
    assert [one[0] for one in received] == [f"{away}/discover", f"{away}/inbox"]


async def test_a_server_that_answers_is_not_requested_through_the_proxy(harness: Harness, app: App) -> None:
    """B18: whatever it answers."""
    proxied: list[tuple[str, str, str]] = []
    with peer(discover=[DISCOVERED], inbox=[DOWN, OK_ANSWER]) as server, peer(proxied) as proxy:
        app.proxy = proxy
        chain, job = await _delivered(harness, app, server)
    assert (await chain.result(), job.attempt, proxied) == ("delivered", 2, [])


async def test_attempts_are_counted_in_the_row_too(harness: Harness, app: App) -> None:
    """B17, B18: before anything is sent; nobody listens there."""
    app.add_server("http://127.0.0.1:1", THEIRS.published)
    chain, job = await _delivered(harness, app, "http://127.0.0.1:1")
    assert (chain.status, job.attempt, _attempts(app)) == (ChainStatus.FAILED, 5, {"delivery": 5})


@pytest.mark.parametrize(
    "payload", ["no json", "null", "42", '"text"', "[]", "{}", '{"method": 42}', '{"method": "DELETE"}']
)
async def test_payloads_that_make_no_sense_fail_at_once(harness: Harness, app: App, server: str, payload: str) -> None:
    """B10, B13: with attempts left, and their row goes."""
    chain, job = await _delivered(harness, app, server, payload=payload)
    assert (chain.status, job.attempt, _attempts(app)) == (ChainStatus.FAILED, 1, {})
    with pytest.raises(JobFailedError, match="Unrecoverable: the payload"):
        await chain.result()


async def test_a_blacklisted_server_gets_nothing(harness: Harness, app: App, server: str) -> None:
    """B14."""
    app.rows("INSERT INTO blacklisted VALUES (?)", server)
    chain, job = await _delivered(harness, app, server)
    assert (chain.status, job.attempt, _attempts(app)) == (ChainStatus.FAILED, 1, {})


@_answers(discover=[DOWN, DOWN, DISCOVERED])
async def test_an_unknown_server_is_discovered(harness: Harness, app: App, server: str) -> None:
    """B15: failing that, the delivery is tried again."""
    chain, job = await _delivered(harness, app, server)
    known = app.known_server(server)
    assert known is not None
    assert (known.verify_key, known.seal_key) == (THEIRS.published["verify"], THEIRS.published["seal"])
    assert (await chain.result(), job.attempt) == ("delivered", 3)


async def test_without_an_address_of_our_own_nothing_is_sent(harness: Harness, app: App, server: str) -> None:
    """B18, B02: a setting that is missing is no reason to try again; one of the store is refused at once."""
    app.own_url = None
    chain, job = await _delivered(harness, app, server)
    assert (chain.status, job.attempt) == (ChainStatus.FAILED, 1)
    with pytest.raises(ConfigurationError):
        type(harness.client).from_url("", federation.job_types)


@pytest.mark.parametrize(
    "server",
    [{"inbox": [(200, answer)], "discover": [DISCOVERED]} for answer in ("<html>", "[]", "{}", '{"ack": 1}')],
    indirect=True,
    ids=["no JSON", "a list", "nothing", "a number"],
)
async def test_answers_that_make_no_sense_fail_at_once(harness: Harness, app: App, server: str) -> None:
    """B19."""
    chain, job = await _delivered(harness, app, server)
    assert (chain.status, job.attempt) == (ChainStatus.FAILED, 1)


@_answers(inbox=[ACCEPTED])
async def test_the_job_type_says_who_handles_the_acknowledgement(harness: Harness, app: App, server: str) -> None:
    """B04, B20: one handler for two types; that of a post has none, and it is ignored."""
    chain, _ = await _delivered(harness, app, server)
    assert (await chain.result(), _follows(app)) == ("delivered", {"ada-bob": "requested"})


def _signed(**more: Any) -> tuple[int, str]:
    named = more.get("follow", "ada-bob")
    return 200, json.dumps({"ack": {"follow": named, "signature": THEIRS.signature(named), **more}})


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
async def test_follows_that_are_acknowledged(harness: Harness, app: App, server: str, outcome: str) -> None:
    """B21, B22."""
    chain, _ = await _delivered(harness, app, server, job_type=follow)
    assert await chain.result() == outcome
    assert _follows(app) == {"ada-bob": outcome if outcome != "ignored" else "requested"}


@pytest.mark.parametrize(
    ("server", "row"),
    [
        ({"inbox": [(200, '{"ack": {"follow": 7}}')], "discover": [DISCOVERED]}, {}),
        ({"inbox": [_signed(signature="forged")], "discover": [DISCOVERED]}, {"delivery": 1}),
        ({"inbox": [_signed(signature="ab" * 64)], "discover": [DISCOVERED]}, {"delivery": 1}),
    ],
    indirect=["server"],
    ids=["invalid", "no signature", "forged"],
)
async def test_acknowledgements_that_make_no_sense_fail_at_once(
    harness: Harness, app: App, server: str, row: dict[str, int]
) -> None:
    """B21: the row of an invalid one goes; that of a forged one stays."""
    chain, job = await _delivered(harness, app, server, job_type=follow)
    assert (chain.status, job.attempt, _follows(app)) == (ChainStatus.FAILED, 1, {"ada-bob": "requested"})
    assert _attempts(app) == row


@_answers(inbox=[_signed(accepted=True)], discover=[(200, json.dumps({"seal": THEIRS.published["seal"]}))])
async def test_without_a_key_no_acknowledgement_is_believed(harness: Harness, app: App, server: str) -> None:
    """B21: and another attempt would not help."""
    chain, job = await _delivered(harness, app, server, job_type=follow)
    assert (chain.status, job.attempt, _follows(app)) == (ChainStatus.FAILED, 1, {"ada-bob": "requested"})
    with pytest.raises(JobFailedError, match="Unrecoverable: the server has no key"):
        await chain.result()


# --- health checks ----------------------------------------------------------------------------------------------------


async def test_the_pauses_before_checks_grow(harness: Harness, app: App) -> None:
    """B23: by ten minutes from five on; the job is due then, by the clock of the store."""
    app.minute = 60
    pauses = [federation.pause_before(app, attempt) / 60 for attempt in range(5)]
    assert pauses == [5, 15, 25, 35, 45]
    chain = await federation.schedule_health_check(harness.client, app, "https://remote.example")
    job = await harness.client.get_job(chain.id)
    assert job.status is JobStatus.SCHEDULED
    assert (job.scheduled_at - job.created_at).total_seconds() == pytest.approx(300, abs=1)


async def test_checks_of_one_server_are_one_chain(harness: Harness, app: App) -> None:
    """B24: by an id that its address alone decides, whatever is in it."""
    app.minute = 60
    addresses = ["https://a.example", "https://a.example/", "https://ä.example", "https://a.example"]
    chains = [await federation.schedule_health_check(harness.client, app, one) for one in addresses]
    assert [chain.deduplicated for chain in chains] == [False, False, False, True]
    assert all(chain.id.isascii() and len(chain.id) == 23 for chain in chains)
    assert chains[0].id == chains[3].id


def _unhealthy(app: App, server: str, *, probed: bool = True) -> None:
    app.add_server(server, THEIRS.published)
    app.rows("UPDATE server SET healthy = false, probed = ? WHERE url = ?", probed, server)


async def _checked(harness: Harness, app: App, server: str) -> str:
    """What the chain of health checks of a server has come to."""
    async with harness.worker(federation.processors_of(app), concurrency=3):
        chain = await federation.schedule_health_check(harness.client, app, server)
        return await chain.result(WAIT)


@_answers(discover=[DOWN, DOWN, DISCOVERED])
async def test_checks_go_on_until_the_server_is_healthy(harness: Harness, app: App, server: str) -> None:
    """B27: each schedules the next, in the commit that ends it."""
    _unhealthy(app, server)
    assert await _checked(harness, app, server) == "healthy"
    assert app.rows("SELECT healthy, checks FROM server") == [(True, 0)]
    assert len(harness.log.of(AttemptContinued)) == 2


@_answers(discover=[DOWN])
async def test_checks_are_given_up_after_five(harness: Harness, app: App, server: str) -> None:
    """B28, B27."""
    _unhealthy(app, server)
    assert await _checked(harness, app, server) == "given up"
    assert app.rows("SELECT checks FROM server") == [(5,)]
    assert app.heard == ["given up after 5 checks"]
    jobs = await harness.client.list_chain_jobs(federation.health_check_id(server))
    assert [job.input["attempt"] for job in jobs] == [0, 1, 2, 3, 4]


async def test_checks_that_need_not_be_made(harness: Harness, app: App, server: str) -> None:
    """B12, B26: an early return is a success without effect."""
    app.add_server(server, THEIRS.published)
    _unhealthy(app, "policy", probed=False)
    outcomes = [await _checked(harness, app, one) for one in (server, "unknown", "policy")]
    assert outcomes == ["nothing to do", "nothing to do", "not to be found out by asking"]


def test_failed_checks_are_counted_in_the_database(tmp_path: Path) -> None:
    """B27: of many at once, over connections of their own, none is lost, and each knows which it was."""
    apps = [App(tmp_path / "application.db") for _ in range(2)]
    apps[0].add_server("https://remote.example", THEIRS.published)
    with ThreadPoolExecutor(8) as threads:
        counted = threads.map(lambda nth: apps[nth % 2].count_failed_check("https://remote.example"), range(200))
        assert sorted(counted) == list(range(1, 201))
    for app in apps:
        app.close()


@pytest.mark.parametrize("finish", ["healthy", "given up", "failed", "cancelled"])
async def test_a_check_is_gone_afterwards(
    harness: Harness, app: App, server: str, finish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B25: however it ended, its id is free again: after a minute, so that who waits for it has its answer."""
    assert federation.KEPT_CHECKS == 60
    monkeypatch.setattr(federation, "KEPT_CHECKS", 0.05)

    def requested(url: str, **_: Any) -> str:
        if finish == "healthy":
            return "{}"
        raise OSError("down") if finish == "given up" else ZeroDivisionError

    monkeypatch.setattr(federation, "requested", requested)
    _unhealthy(app, server)
    async with harness.worker(federation.processors_of(app)):
        if finish == "cancelled":
            app.minute = 60
            chain = await federation.schedule_health_check(harness.client, app, server)
            await harness.client.cancel_chain(chain)
        else:
            chain = await federation.schedule_health_check(harness.client, app, server)
        closed = await harness.log.wait_for(ChainClosed, chain_id=chain.id)
        await in_time(_gone(harness, chain.id))
    statuses = {"failed": ChainStatus.FAILED, "cancelled": ChainStatus.CANCELLED}
    assert closed.status is statuses.get(finish, ChainStatus.COMPLETED)
    again = await federation.schedule_health_check(harness.client, app, server)
    assert (again.id, again.deduplicated) == (federation.health_check_id(server), False)


async def _there(harness: Harness, id: str) -> bool:
    try:
        await harness.client.get_chain(id)
    except ChainNotFoundError:
        return False
    return True


# --- what the queues do for it ----------------------------------------------------------------------------------------


def test_deliveries_are_kept_for_a_day_and_failed_ones_for_a_week() -> None:
    """B06."""
    processors = federation.processors_of(App())
    kept = Retention(completed=Keep(age=24 * 3600), failed=Keep(age=7 * 24 * 3600))
    assert [processors[name].retention for name in (follow.name, post.name)] == [kept, kept]


async def test_what_is_kept_by_outcome(new_harness: NewHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """B06: by the age of each outcome; here all that was delivered goes, and what failed stays."""
    harness = new_harness()
    monkeypatch.setattr("queuert.worker.maintenance.INTERVAL", 0.01)
    monkeypatch.setattr("queuert.worker.maintenance._MAX_FIRST_PAUSE", 0.01)

    async def handler(attempt: Any) -> Any:
        return attempt.fail("no good") if attempt.input < 0 else attempt.input

    retention = Retention(completed=Keep(age=0.001), failed=Keep(age=604_800))
    harness.handles(number, handler, retention=retention)
    async with harness.worker():
        chains = await harness.client.start_chains([NewChain(number, value) for value in (1, -1)])
        with pytest.raises(JobFailedError):
            await chains[1].result(WAIT)
        await harness.log.wait_for(AttemptCompleted, job_id=chains[0].id)
        await in_time(_gone(harness, chains[0].id))
        assert await _there(harness, chains[1].id)


async def _gone(harness: Harness, id: str) -> None:
    while await _there(harness, id):
        pass


async def test_two_queues_with_places_of_their_own(new_harness: NewHarness) -> None:
    """B01, B03, B07, G31: a worker for each, with connections of its own; the producer is not held up by busy ones."""
    harness = new_harness()
    gate = Gate()

    async def handler(attempt: Attempt[Any, Any]) -> Any:
        await gate.pass_through(attempt)
        return attempt.input

    numbers, texts = harness.new_processors(), harness.new_processors()
    numbers.handles(number)(handler)
    texts.handles(text)(handler)
    deliveries = harness.worker(numbers, concurrency=10, max_connections=2)
    checks = harness.worker(texts, concurrency=3, max_connections=2)
    await harness.client.start_chains([NewChain(number, value) for value in range(15)])
    await harness.client.start_chains([NewChain(text, "a") for _ in range(5)])
    async with deliveries, checks:
        for _ in range(13):
            await gate.next()
        assert (deliveries.running, checks.running) == (10, 3)
        for value in range(5):
            await in_time(harness.client.start_chain(number, value))
        assert gate.arrived.empty()
        gate.open()
        await harness.log.wait_for(AttemptStarted, times=25)


async def test_defaults_of_a_queue_and_exceptions_from_them(new_harness: NewHarness) -> None:
    """B29: retries and retention of the group, or of one type; delay, id, priority and TTL of one job."""
    harness = new_harness()
    kept = Retention(failed=Keep(age=60))
    group = harness.new_processors(retry=RetryPolicy(max_attempts=5, initial_delay=5, jitter=0), retention=kept)
    group.handles(number)(lambda attempt: attempt.input)
    group.handles(text, retry=RetryPolicy(max_attempts=1))(lambda attempt: attempt.input)
    assert (group["number"].retry.max_attempts, group["text"].retry.max_attempts) == (5, 1)
    assert group["number"].retention == group["text"].retention == kept
    chain = await harness.client.start_chain(number, 1, id="own", priority=3, result_ttl=60)
    job = await harness.client.get_job(chain.id)
    assert (job.id, job.priority) == ("own", 3)
    assert Probe(server="a").attempt == 0
    assert health.name == "federation-health-check"
