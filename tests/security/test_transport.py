"""TLS to the stores: who is believed, who is not, and what is warned of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from queuert import Client, JobType, JobTypes, PostgresState
from queuert.errors import StateUnavailableError
from queuert.notify.in_process import InProcessNotify
from queuert.observability.events import StoreWarningRaised
from queuert.state.adapter import StateAdapter, is_remote
from queuert.state.postgres.settings import connection_warnings
from queuert.state.redis import RedisState
from queuert.state.redis.settings import RedisSettings, address_warnings
from queuert.testing.events import EventLog
from tests.security.certificates import Authority, TlsFront

number = JobType("number", input=int, output=int)
NAMED, ELSEWHERE = "db.internal", "other.internal"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


Front = Callable[..., int]


@pytest.fixture
def front() -> Iterator[Front]:
    """Opens a front before a server; its port."""
    opened: list[TlsFront] = []

    def open(target: tuple[str, int], certificate: Path, *, requested: bool) -> int:
        opened.append(TlsFront(target, certificate, requested=requested))
        return opened[-1].port

    yield open
    for one in opened:
        one.close()


def use(state: StateAdapter) -> list[StoreWarningRaised]:
    """Start a chain, and read it; what was warned of."""
    log = EventLog()
    with Client(state, JobTypes(number), notify=InProcessNotify(), observability=log) as client:
        assert client.get_chain(client.start_chain(number, 1).id).input == 1
    return log.of(StoreWarningRaised)


# --- Postgres ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def tls_dsn(dsn: str, authority: Authority, front: Front) -> Callable[..., str]:
    """A connection string through TLS, of a server whose certificate is that of ``db.internal``."""
    parts = conninfo_to_dict(dsn)
    port = front((parts["host"], int(str(parts["port"]))), authority.issue(NAMED), requested=True)

    def make(host: str = NAMED, **options: Any) -> str:
        given = {"sslmode": "verify-full", "sslrootcert": str(authority.root), "gssencmode": "disable", **options}
        return make_conninfo(dsn, host=host, hostaddr="127.0.0.1", port=port, **given)

    return make


def test_postgres_with_the_right_certificate(tls_dsn: Callable[..., str]) -> None:
    assert use(PostgresState(tls_dsn())) == []


def test_postgres_under_another_name_is_refused(tls_dsn: Callable[..., str]) -> None:
    with pytest.raises(StateUnavailableError, match=ELSEWHERE):
        use(PostgresState(tls_dsn(ELSEWHERE)))


def test_postgres_of_an_unknown_authority_is_refused(tls_dsn: Callable[..., str], tmp_path: Path) -> None:
    stranger = Authority(tmp_path)
    with pytest.raises(StateUnavailableError, match="certificate"):
        use(PostgresState(tls_dsn(sslrootcert=str(stranger.root))))


def test_sslmode_is_handed_on_in_addresses(tls_dsn: Callable[..., str]) -> None:
    parts = conninfo_to_dict(tls_dsn(ELSEWHERE))
    names = ("sslmode", "sslrootcert", "hostaddr", "gssencmode")
    url = f"postgresql://{parts['user']}:{parts.get('password', '')}@{ELSEWHERE}:{parts['port']}/{parts['dbname']}?"
    url += "&".join(f"{name}={parts[name]}" for name in names)
    refused = Client.from_url(url, JobTypes(number), notify=InProcessNotify())
    with pytest.raises(StateUnavailableError, match=ELSEWHERE), refused:
        refused.list_chains()
    with Client.from_url(url.replace(ELSEWHERE, NAMED), JobTypes(number), notify=InProcessNotify()) as client:
        assert len(client.list_chains()) == 0


class Connection:
    """As libpq tells of a connection; none of the tests' servers is on another machine."""

    def __init__(self, hostaddr: str, *, encrypted: bool, sslmode: str | None) -> None:
        self.ssl_in_use = encrypted
        self._encoding = "utf-8"
        self.hostaddr = hostaddr.encode()
        self.host = b"db.internal"
        self.status = 0
        self._sslmode = sslmode

    @property
    def info(self) -> list[Any]:
        value = None if self._sslmode is None else self._sslmode.encode()
        return [Option(b"sslmode", value, b"prefer")]


class Option:
    def __init__(self, keyword: bytes, val: bytes | None, compiled: bytes) -> None:
        self.keyword, self.val, self.compiled = keyword, val, compiled


@pytest.mark.parametrize(
    ("host", "encrypted", "mode", "risks"),
    [
        ("10.0.0.7", False, "disable", ["not encrypted"]),
        ("10.0.0.7", False, None, ["not encrypted"]),
        ("2001:db8::7", True, "prefer", ["server not verified"]),
        ("10.0.0.7", True, "require", ["server not verified"]),
        ("10.0.0.7", True, "verify-ca", ["server not verified"]),
        ("10.0.0.7", True, "verify-full", []),
        ("127.0.0.1", False, "prefer", []),
        ("::1", False, "disable", []),
    ],
)
def test_what_is_warned_of(host: str, encrypted: bool, mode: str | None, risks: list[str]) -> None:
    connection: Any = Connection(host, encrypted=encrypted, sslmode=mode)
    found = connection_warnings(connection)
    assert [risk.name for risk in found] == risks
    assert all("sslmode=verify-full" in risk.advice for risk in found)


def test_the_warning_reaches_the_log(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's address is that of another machine, as far as this process can see."""
    monkeypatch.setattr("queuert.state.adapter.is_remote", lambda host: True)
    [reported] = use(PostgresState(dsn))
    assert (reported.adapter, reported.risk) == ("PostgresState", "not encrypted")
    assert "sslmode is prefer" in reported.advice


@pytest.mark.parametrize(
    "host", ["", "/tmp", "@abstract", "localhost", "LOCALHOST.", "127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"]
)
def test_here(host: str) -> None:
    assert not is_remote(host)


@pytest.mark.parametrize(
    "host", ["db.internal", "10.0.0.1", "192.168.1.1", "0.0.0.0", "fe80::1%eth0", "::ffff:8.8.8.8", "localhost.evil"]
)
def test_elsewhere(host: str) -> None:
    assert is_remote(host)


# --- Redis ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def redis_port(redis_url: str, authority: Authority, front: Front) -> int:
    """The port of a front whose certificate is that of ``localhost``, and not of its address."""
    parts = urlsplit(redis_url)
    return front((parts.hostname or "", parts.port or 0), authority.issue("localhost"), requested=False)


def test_redis_with_the_right_certificate(redis_port: int, redis_url: str, authority: Authority) -> None:
    word = urlsplit(redis_url).password or ""
    options = f"ssl_ca_certs={authority.root}&ssl_check_hostname=true"
    reported = use(RedisState(f"rediss://:{word}@localhost:{redis_port}/0?{options}"))
    assert {one.risk for one in reported} <= {"not persisted"}


def test_redis_under_another_name_is_refused(redis_port: int, authority: Authority) -> None:
    options = f"ssl_ca_certs={authority.root}&ssl_check_hostname=true"
    with pytest.raises(StateUnavailableError, match=r"(?i)certificate"):
        use(RedisState(f"rediss://127.0.0.1:{redis_port}/0?{options}", answer_timeout=5.0))


def test_redis_of_an_unknown_authority_is_refused(redis_port: int) -> None:
    with pytest.raises(StateUnavailableError, match=r"(?i)certificate"):
        use(RedisState(f"rediss://localhost:{redis_port}/0", answer_timeout=5.0))


@pytest.mark.parametrize(
    ("url", "risks"),
    [
        ("redis://127.0.0.1/0", []),
        ("redis://localhost/0", []),
        ("unix:///run/redis.sock", []),
        ("redis://:secret-word@cache.internal/0", ["not encrypted"]),
        ("rediss://cache.internal/0?ssl_check_hostname=true", []),
        ("rediss://cache.internal/0?ssl_check_hostname=false", ["server not verified"]),
        ("rediss://cache.internal/0?ssl_cert_reqs=none&ssl_check_hostname=false", ["server not verified"]),
        ("rediss://cache.internal/0?ssl_cert_reqs=optional&ssl_check_hostname=false", ["server not verified"]),
    ],
)
def test_what_is_warned_of_with_redis(url: str, risks: list[str]) -> None:
    found = address_warnings(RedisSettings(url, "{queuert:x}:", 1.0, 1.0))
    assert [risk.name for risk in found] == risks
    assert "secret-word" not in str(found)
    assert all("rediss://" in risk.advice for risk in found)
