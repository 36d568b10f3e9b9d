"""What a start may be given, and what is refused before anything is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queuert import ChainStatus, Client, JobType, JobTypes, NewChain, PostgresState, QueuertError, Rate, after
from queuert.deduplication import Deduplicate
from queuert.errors import ConfigurationError, InvalidIdentifierError, JobIdConflictError, JobTypeMismatchError
from queuert.notify.in_process import InProcessNotify
from queuert.observability.events import ChainStarted
from queuert.schedules import RecurringSchedule
from queuert.state.sqlite import SQLiteState
from queuert.testing.events import EventLog

work = JobType("work", input=str, output=str)
other = JobType("other", input=str, output=str)


@pytest.fixture
def log() -> EventLog:
    return EventLog()


@pytest.fixture
def client(dsn: str, log: EventLog) -> Iterator[Client]:
    state = PostgresState(dsn)
    with Client(state, JobTypes(work, other), notify=InProcessNotify(), observability=log) as client:
        yield client


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"attach": True}, ConfigurationError, "needs an id"),
        ({"run_at": 5}, ConfigurationError, "run_at must be after"),
        ({"deduplication": "key"}, ConfigurationError, "must be Deduplicate"),
        ({"limit_key": "a\0"}, InvalidIdentifierError, "limit key"),
        ({"limit_key": "a" * 513}, InvalidIdentifierError, "limit key"),
        ({"limit_key": 5}, InvalidIdentifierError, "limit key"),
        ({"priority": 1.5}, ConfigurationError, "must be an integer"),
        ({"priority": True}, ConfigurationError, "must be an integer"),
        ({"blockers": "abc"}, InvalidIdentifierError, "must be a sequence"),
        ({"id": ""}, InvalidIdentifierError, "id"),
        ({"result_ttl": -1}, ConfigurationError, "result_ttl must be seconds or a timedelta, at least 0"),
        ({"max_attempts": 0}, ConfigurationError, "max_attempts must be an integer between 1"),
        ({"max_attempts": 1.0}, ConfigurationError, "max_attempts must be an integer between 1"),
        ({"max_attempts": True}, ConfigurationError, "max_attempts must be an integer between 1"),
        ({"deduplication": Deduplicate("a", debounce=1), "run_at": after(seconds=1)}, ConfigurationError, "neither"),
        ({"deduplication": Deduplicate("a", debounce=1), "blockers": ["b"]}, ConfigurationError, "neither"),
    ],
)
def test_refused(client: Client, log: EventLog, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        client.start_chain(work, "a", **options)
    with pytest.raises(error, match=message):
        client.start_chains([NewChain(work, "b"), NewChain(work, "a", **options)])
    assert log.of(ChainStarted) == []


def test_only_new_chains_are_started(client: Client) -> None:
    wrong: Any = [NewChain(work, "a"), "b"]
    with pytest.raises(ConfigurationError, match="got str"):
        client.start_chains(wrong)


def test_a_copy_keeps_what_is_not_changed() -> None:
    blockers = (name for name in ("x", "y"))
    first = NewChain(
        work,
        "a",
        id="i",
        run_at=after(minutes=1),
        priority=2,
        blockers=blockers,
        deduplication=Deduplicate("k"),
        attach=True,
        limit_key="l",
        result_ttl=5,
    )
    second = first.replace(input="b")
    for name in NewChain.__slots__:
        assert getattr(second, name) == ("b" if name == "input" else getattr(first, name)), name
    assert first.blockers == second.blockers == ("x", "y")
    with pytest.raises(TypeError):
        first.replace(no_such_argument=1)


def test_a_limit_key_is_kept(client: Client) -> None:
    assert client.get_job(client.start_chain(work, "a", limit_key="tenant").id).limit_key == "tenant"


def test_attach_returns_the_chain_that_is_there(client: Client, log: EventLog) -> None:
    first = client.start_chain(work, "a", id="request", attach=True)
    second = client.start_chain(work, "b", id="request", attach=True)
    assert (first.deduplicated, second.deduplicated) == (False, True)
    assert second.id == "request"
    assert second.refresh().input == "a"
    assert len(log.of(ChainStarted)) == 1
    with pytest.raises(JobIdConflictError):
        client.start_chain(work, "b", id="request")
    with pytest.raises(JobTypeMismatchError):
        client.start_chain(other, "b", id="request", attach=True)


def test_deduplication_returns_the_chain_of_the_key(client: Client) -> None:
    first = client.start_chain(work, "a", deduplication=Deduplicate("k"))
    second = client.start_chain(work, "b", deduplication=Deduplicate("k"))
    apart = client.start_chain(other, "b", deduplication=Deduplicate("k"))
    own = client.start_chain(work, "c", deduplication=Deduplicate("k", excluding=[first]))
    assert [chain.deduplicated for chain in (first, second, apart, own)] == [False, True, False, False]
    assert first.id == second.id
    assert len({first.id, apart.id, own.id}) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"debounce": 0}, "debounce must be above 0"),
        ({"debounce": float("nan")}, "debounce must be above 0"),
        ({"max_delay": 5}, "pass debounce="),
        ({"debounce": 5, "max_delay": 4}, "max_delay must be at least debounce"),
        ({"debounce": 5, "scope": "any"}, "neither window= nor scope"),
        ({"debounce": 5, "window": 60}, "neither window= nor scope"),
    ],
)
def test_debounce_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Deduplicate("key", **options)


def test_debounced_start_has_the_chain_and_no_event(client: Client, log: EventLog) -> None:
    key = Deduplicate("key", debounce=timedelta(hours=1))
    first = client.start_chain(work, "a", deduplication=key)
    second = client.start_chain(work, "b", deduplication=key)
    assert (first.debounced, first.deduplicated) == (False, False)
    assert (second.id, second.debounced, second.deduplicated) == (first.id, True, True)
    assert client.get_chain(first.id).input == "b"
    assert [event.chain_id for event in log.of(ChainStarted)] == [first.id]


def test_a_response_needs_a_time_to_live(client: Client) -> None:
    with pytest.raises(ConfigurationError, match="pass a result_ttl above 0, or none"):
        client.start_and_wait(work, "a", result_ttl=0)
    assert client.list_jobs().items == ()


def test_an_option_that_does_not_exist_is_refused_as_one_of_the_method(client: Client) -> None:
    start: Any = client.start_chain
    unknown = r"^start_chain\(\) got an unexpected keyword argument 'prioritty'\. Did you mean 'priority'\?$"
    with pytest.raises(TypeError, match=unknown):
        start(work, "a", prioritty=3)
    with pytest.raises(TypeError, match=r"^start_chain\(\) got an unexpected keyword argument 'flavour'$"):
        start(work, "a", flavour="red")
    request: Any = client.start_and_wait
    with pytest.raises(TypeError, match=r"^start_and_wait\(\) got an unexpected keyword argument 'attach'$"):
        request(work, "a", attach=True)


def test_a_request_takes_only_its_options(client: Client) -> None:
    """A chain in a transaction of the caller's cannot run before that has committed."""
    for option in ({"connection": object()}, {"attach": True}, {"priorty": 1}):
        with pytest.raises(TypeError, match=next(iter(option))):
            client.start_and_wait(work, "a", **_any(option))
    assert client.list_jobs().items == ()


def _any(value: Any) -> Any:
    """The value, of which type checkers know nothing."""
    return value


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda client, chain: client.start_chain(work, "x", blockers=chain),
            "blockers must be a sequence, got one Chain",
        ),
        (lambda client, chain: client.start_chain(work, "x", blockers=[5]), "chain id must be a string, got int"),
        (lambda client, chain: client.start_chains(NewChain(work, "x")), "takes a sequence of NewChain"),
        (lambda client, chain: client.wait(chain), "chains must be a sequence of handles, got one Chain"),
        (lambda client, chain: client.cancel_chains(chain), "got one Chain; write [...] around it"),
        (lambda client, chain: client.cancel_chain([chain]), "chain id must be a string, got list"),
        (lambda client, chain: chain.wait(timeout="5"), "timeout must be a number of seconds or None, got '5'"),
        (lambda client, chain: client.start_and_wait(work, "x", timeout="5"), "timeout must be a number of seconds"),
        (lambda client, chain: client.start_chain(work, "x", run_at=datetime.now(UTC)), "; write at(moment)"),
        (lambda client, chain: client.start_chain(work, "x", run_at=5), "; write after(seconds=..., minutes=...)"),
        (
            lambda client, chain: client.reschedule_chains([chain], timedelta(5)),
            "; write after(seconds=..., minutes=...)",
        ),
        (lambda client, chain: after(timedelta(days=-2)), "between 0 and a hundred years, got delay=-172800 s"),
        (lambda client, chain: after(_any(5)), "delay of after() must be a timedelta, got 5; write after(seconds=5)"),
        (
            lambda client, chain: Rate(1, per=_any("minute")),
            "per of a rate must be seconds or a timedelta, got 'minute'",
        ),
        (lambda client, chain: client.put_schedules(RecurringSchedule("n", work, "x", every=60)), "got one Recurring"),
        (lambda client, chain: client.run_schedule("n"), "schedule 'n' does not exist; those that do: nightly"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_arguments_of_the_wrong_kind_are_refused_by_name(call: Callable[[Any, Any], Any], said: str) -> None:
    """And nothing is written."""
    with Client(SQLiteState(), JobTypes(work), notify=InProcessNotify()) as client:
        chain = client.start_chain(work, "x")
        client.put_schedules([RecurringSchedule("nightly", work, "x", cron="@daily")])
        with pytest.raises(QueuertError, match=re.escape(said)):
            call(client, chain)
        assert [one.id for one in client.list_chains()] == [chain.id]
        assert chain.refresh().status is ChainStatus.OPEN
