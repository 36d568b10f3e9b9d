"""The fault proxy, in front of a real Postgres.

A connection that may be broken is closed with `contextlib.closing`: leaving psycopg's own block would try to commit.
"""

import asyncio
import contextlib
import gc
import socket
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from queuert.testing.fault_proxy import FaultProxy

pytestmark = pytest.mark.fault

WAIT = 10


@pytest.fixture
def proxy(bare_dsn: str) -> Iterator[FaultProxy]:
    with FaultProxy.before(bare_dsn) as proxy:
        yield proxy


@pytest.fixture
def address(proxy: FaultProxy, bare_dsn: str) -> str:
    return proxy.address_in(bare_dsn)


def in_thread(function: object, *arguments: object) -> threading.Thread:
    assert callable(function)
    thread = threading.Thread(target=function, args=arguments)
    thread.start()
    return thread


def test_passes_everything(proxy: FaultProxy, address: str) -> None:
    with psycopg.connect(address) as connection:
        assert connection.execute("select repeat('x', 1000000)").fetchone() == ("x" * 1000000,)
        assert proxy.accepted.is_set()
        assert proxy.connections == 1


async def test_serves_an_asynchronous_client(address: str) -> None:
    async with await psycopg.AsyncConnection.connect(address) as connection:
        cursor = await connection.execute("select 1")
        assert await cursor.fetchone() == (1,)


def test_delays(proxy: FaultProxy, address: str) -> None:
    with psycopg.connect(address) as connection:
        proxy.delay(0.01)
        assert connection.execute("select 1").fetchone() == (1,)


def test_resets_live_connections(proxy: FaultProxy, address: str) -> None:
    with contextlib.closing(psycopg.connect(address, autocommit=True)) as connection:
        assert proxy.reset() == 1
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    with psycopg.connect(address) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_a_reset_is_an_rst(proxy: FaultProxy) -> None:
    with socket.create_connection((proxy.host, proxy.port)) as client:
        assert proxy.accepted.wait(WAIT)
        while not proxy.connections:
            pass
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_refuses_new_connections_only(proxy: FaultProxy, address: str) -> None:
    with psycopg.connect(address) as connection:
        proxy.refuse()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(address)
        assert connection.execute("select 1").fetchone() == (1,)
    proxy.heal()
    psycopg.connect(address).close()


def test_refuses_when_the_server_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with FaultProxy("127.0.0.1", port) as proxy, pytest.raises(psycopg.OperationalError):
        psycopg.connect(f"postgresql://postgres@{proxy.host}:{proxy.port}/postgres")


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
def test_a_black_hole_delivers_when_it_heals(proxy: FaultProxy, address: str, direction: str) -> None:
    results: list[object] = []
    with psycopg.connect(address) as connection:
        proxy.black_hole("to_server" if direction == "to_server" else "to_client")
        thread = in_thread(lambda: results.append(connection.execute("select 1").fetchone()))
        assert proxy.held.wait(WAIT)
        assert results == []
        proxy.heal()
        thread.join(WAIT)
        assert results == [(1,)]


def test_a_black_hole_can_be_reset(proxy: FaultProxy, address: str) -> None:
    errors: list[Exception] = []

    def query(connection: psycopg.Connection) -> None:
        try:
            connection.execute("select 1")
        except psycopg.OperationalError as error:
            errors.append(error)

    with contextlib.closing(psycopg.connect(address, autocommit=True)) as connection:
        proxy.black_hole()
        thread = in_thread(query, connection)
        assert proxy.held.wait(WAIT)
        proxy.reset()
        thread.join(WAIT)
        assert len(errors) == 1


def test_cuts_after_some_bytes(proxy: FaultProxy, address: str) -> None:
    with contextlib.closing(psycopg.connect(address, autocommit=True)) as connection:
        proxy.cut_after(1000)
        assert connection.execute("select 1").fetchone() == (1,)
        assert not proxy.fired.is_set()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select repeat('x', 1000)")
        assert proxy.fired.wait(WAIT)


def test_stops_after_some_bytes(proxy: FaultProxy, address: str) -> None:
    found: list[Any] = []
    with contextlib.closing(psycopg.connect(address, autocommit=True)) as connection:
        proxy.stop_after(10)
        thread = in_thread(lambda: found.append(connection.execute("select 1").fetchone()))
        assert proxy.fired.wait(WAIT)
        with psycopg.connect(address) as other:
            assert other.execute("select 2").fetchone() == (2,)
        assert not found
        proxy.heal()
        thread.join(WAIT)
        assert found == [(1,)]


def test_a_commit_in_doubt_is_a_commit(proxy: FaultProxy, address: str, bare_dsn: str) -> None:
    with psycopg.connect(bare_dsn) as direct:
        direct.execute("create table facts (fact text)")
    connection = psycopg.connect(address)
    connection.execute("insert into facts values ('true')")
    proxy.lose_answer(b"COMMIT")
    with pytest.raises(psycopg.OperationalError):
        connection.commit()
    connection.close()
    assert proxy.fired.wait(WAIT)
    with psycopg.connect(bare_dsn) as direct:
        assert direct.execute("select fact from facts").fetchall() == [("true",)]


def test_a_lost_request_is_no_commit(proxy: FaultProxy, address: str, bare_dsn: str) -> None:
    with psycopg.connect(bare_dsn, autocommit=True) as direct:
        direct.execute("create table facts (fact text)")
        connection = psycopg.connect(address, autocommit=True)
        connection.execute("insert into facts values ('first')")
        proxy.lose_request(b"/* second */")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("insert into facts values ('second') /* second */")
        connection.close()
        assert proxy.fired.wait(WAIT)
        assert direct.execute("select fact from facts").fetchall() == [("first",)]


def test_an_armed_fault_fires_once(proxy: FaultProxy, address: str) -> None:
    proxy.lose_answer(b"marker")
    for _ in range(2):
        with contextlib.closing(psycopg.connect(address, autocommit=True)) as connection:
            if proxy.fired.is_set():
                connection.execute("select 'marker'")
            else:
                with pytest.raises(psycopg.OperationalError):
                    connection.execute("select 'marker'")
                assert proxy.fired.wait(WAIT)


def test_finds_a_marker_that_arrives_in_pieces() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, FaultProxy(*server.getsockname()[:2]) as proxy:
        proxy.lose_request(b"COMMIT")
        with socket.create_connection((proxy.host, proxy.port)) as client:
            accepted, _ = server.accept()
            with accepted:
                client.sendall(b"...COM")
                assert accepted.recv(64) == b"...COM"
                client.sendall(b"MIT...")
                assert proxy.fired.wait(WAIT)
                with pytest.raises(ConnectionResetError):
                    client.recv(1)


def test_an_empty_marker_is_refused(proxy: FaultProxy) -> None:
    with pytest.raises(ValueError, match="empty marker"):
        proxy.lose_answer(b"")


def test_a_url_needs_a_host_and_a_port() -> None:
    with pytest.raises(ValueError, match="host and port"):
        FaultProxy.before("postgresql:///postgres")


def test_puts_its_address_into_urls(proxy: FaultProxy) -> None:
    url = f"{proxy.host}:{proxy.port}"
    assert proxy.address_in("redis://localhost:1/2") == f"redis://{url}/2"
    assert proxy.address_in("postgresql://me:secret@db:1/name?x=y") == f"postgresql://me:secret@{url}/name?x=y"


def test_closing_twice_does_nothing(bare_dsn: str) -> None:
    proxy = FaultProxy.before(bare_dsn).start()
    connection = psycopg.connect(proxy.address_in(bare_dsn))
    proxy.close()
    proxy.close()
    with pytest.raises(psycopg.OperationalError):
        connection.execute("select 1")
    connection.close()


def test_closing_ends_what_is_only_connecting(monkeypatch: pytest.MonkeyPatch) -> None:
    connect, connecting = asyncio.open_connection, threading.Event()

    async def for_ever(*address: Any, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not address:
            return await connect(**options)
        connecting.set()
        return await asyncio.Future()

    monkeypatch.setattr(asyncio, "open_connection", for_ever)
    with FaultProxy("127.0.0.1", 1) as proxy:
        client = socket.create_connection((proxy.host, proxy.port), timeout=WAIT)
        assert connecting.wait(WAIT)
    with client:
        assert client.recv(1) == b""
    monkeypatch.undo()
    gc.collect()


def test_closing_ends_what_comes_at_that_moment() -> None:
    """A connection that it leaves open is told when it is collected, as an error."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        for _ in range(20):
            with FaultProxy("127.0.0.1", server.getsockname()[1]) as proxy:
                clients = [socket.socket() for _ in range(5)]
                for client in clients:
                    client.setblocking(False)
                    client.connect_ex((proxy.host, proxy.port))
            for client in clients:
                client.close()
        gc.collect()


async def test_is_used_from_an_event_loop(bare_dsn: str) -> None:
    with FaultProxy.before(bare_dsn) as proxy:
        connection = await psycopg.AsyncConnection.connect(proxy.address_in(bare_dsn), autocommit=True)
        proxy.black_hole("to_client")
        query = asyncio.create_task(connection.execute("select 1"))
        assert await asyncio.to_thread(proxy.held.wait, WAIT)
        assert not query.done()
        proxy.heal()
        await query
        await connection.close()
