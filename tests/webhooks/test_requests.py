"""One request, to the address that was checked: no redirects, no second look-up, bounded time and bytes (S9)."""

from __future__ import annotations

import ast
import asyncio
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from queuert.webhooks import TargetPolicy, requests
from queuert.webhooks.addresses import Address, Target
from queuert.webhooks.requests import MOST_READ, RequestFailed, post
from tests.security.certificates import Authority
from tests.support.receiver import Receiver, Speak, receiving, status
from tests.support.waiting import START

ROOT = Path(__file__).resolve().parents[2]


def _allowing(receiver: Receiver, **settings: object) -> TargetPolicy:
    allowed = {"allow_http": True, "allow_ports": [receiver.port], "allow_networks": ["127.0.0.0/8"]}
    return TargetPolicy(**{**allowed, **settings})  # type: ignore[arg-type]


async def _code(url: str, policy: TargetPolicy, **more: object) -> str:
    with pytest.raises(RequestFailed) as caught:
        await post(url, b"{}", {}, policy, **more)  # type: ignore[arg-type]
    assert str(caught.value) == caught.value.code, "nothing about the network is told"
    return caught.value.code


async def test_a_request_is_sent_as_it_is() -> None:
    async with receiving(status(200, body="fine")) as receiver:
        answer = await post(f"{receiver.url}?a=b", b'{"a": 1}', {"x-own": "value"}, _allowing(receiver))
        assert (answer.status, answer.body) == (200, b"fine")
        [request] = receiver.requests
        assert (request.method, request.path, request.body) == ("POST", "/hook?a=b", b'{"a": 1}')
        assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
        assert request.headers["x-own"] == "value"
        assert request.headers["accept-encoding"] == "identity"
        assert "cookie" not in request.headers


async def test_loopback_is_refused_unless_the_operator_allows_it() -> None:
    async with receiving() as receiver:
        policy = TargetPolicy(allow_http=True, allow_ports=[receiver.port])
        assert await _code(receiver.url, policy) == "forbidden_target"
        assert receiver.connections == 0


async def test_a_name_that_is_rebound_never_leads_to_loopback() -> None:
    """The name has a public address when it is checked, and loopback at any later look-up: there is none."""
    names: list[str] = []

    async def resolve(name: str, port: int) -> Sequence[str]:
        names.append(name)
        return ["203.0.114.1"] if len(names) == 1 else ["127.0.0.1"]

    async with receiving() as receiver:
        policy = TargetPolicy(allow_http=True, allow_ports=[receiver.port], connect_timeout=0.2)
        url = f"http://rebound.test:{receiver.port}/"
        assert await _code(url, policy, resolve=resolve) in ("timeout", "connection")
        assert names == ["rebound.test."], "looked up once, as a full name"
        assert await _code(url, policy, resolve=resolve) == "forbidden_target"
        assert receiver.connections == 0


@pytest.mark.parametrize(
    "found", [["10.0.0.1"], ["93.184.216.34", "127.0.0.1"], ["::ffff:127.0.0.1"], ["fe80::1%eth0"]]
)
async def test_a_name_with_a_private_address_is_refused(found: list[str]) -> None:
    async def resolve(name: str, port: int) -> Sequence[str]:
        return found

    assert await _code("https://example.test/", TargetPolicy(), resolve=resolve) == "forbidden_target"


async def test_a_name_that_does_not_exist_or_resolve_is_said_so() -> None:
    async def missing(name: str, port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "10.1.1.1 says no")

    async def strange(name: str, port: int) -> Sequence[str]:
        return ["not an address"]

    for resolve in (missing, strange):
        assert await _code("https://example.test/", TargetPolicy(), resolve=resolve) == "dns"


async def test_names_whose_servers_do_not_answer_keep_nobody_else_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """All deliveries to such a name wait for one look-up. Who gives up does not end it for the others."""
    looked_up: list[str] = []
    answered = threading.Event()

    def look_up(name: str, port: int, **how: object) -> list[tuple[object, ...]]:
        looked_up.append(name)
        if name == "silent.test.":
            assert answered.wait(START)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    async with receiving() as receiver:
        allowing = _allowing(receiver, timeout=30.0)
        with monkeypatch.context() as patched:
            patched.setattr(socket, "getaddrinfo", look_up)
            patched.setattr(requests, "_RESOLVE_TIMEOUT", 30.0)
            silent = [
                asyncio.create_task(post(f"http://silent.test:{receiver.port}/", b"{}", {}, allowing))
                for _ in range(100)
            ]
            answer = await post(f"http://other.test:{receiver.port}/", b"{}", {}, allowing)
            assert answer.status == 204
            silent[0].cancel()
            with pytest.raises(asyncio.CancelledError):
                await silent[0]
            answered.set()
            assert [(await one).status for one in silent[1:]] == [204] * 99
            assert sorted(looked_up) == ["other.test.", "silent.test."]
            assert (await post(f"http://silent.test:{receiver.port}/", b"{}", {}, allowing)).status == 204
            assert looked_up.count("silent.test.") == 2, "an answer is not kept"


async def test_an_allowed_name_may_have_a_private_address() -> None:
    async def resolve(name: str, port: int) -> Sequence[str]:
        assert name == "hooks.internal", "as the operator wrote it"
        return ["127.0.0.1"]

    async with receiving() as receiver:
        policy = TargetPolicy(allow_http=True, allow_ports=[receiver.port], allow_hosts=["hooks.internal"])
        answer = await post(f"http://hooks.internal:{receiver.port}/", b"{}", {}, policy, resolve=resolve)
        assert answer.status == 204
        assert receiver.requests[0].headers["host"] == f"hooks.internal:{receiver.port}"


async def test_a_redirect_is_an_answer_and_not_followed() -> None:
    async with receiving() as other:
        async with receiving(status(302, f"location: {other.url}")) as receiver:
            policy = TargetPolicy(
                allow_http=True, allow_ports=[receiver.port, other.port], allow_networks=["127.0.0.0/8"]
            )
            assert (await post(receiver.url, b"{}", {}, policy)).status == 302
        assert other.connections == 0


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as proxy, receiving() as receiver:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        assert (await post(receiver.url, b"{}", {}, _allowing(receiver))).status == 204
        assert (proxy.connections, receiver.connections) == (0, 1)


async def _forever(writer: asyncio.StreamWriter, first: bytes, piece: bytes, pause: float) -> None:
    writer.write(first)
    while not writer.is_closing():
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(pause)


def _endless(first: bytes, piece: bytes, pause: float = 0.0) -> Speak:
    return lambda writer: _forever(writer, first, piece, pause)


async def test_of_a_huge_body_the_beginning_is_read() -> None:
    async with receiving(_endless(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65_536)) as receiver:
        answer = await post(receiver.url, b"{}", {}, _allowing(receiver))
        assert (answer.status, len(answer.body)) == (200, MOST_READ)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (_endless(b"HTTP/1.1 200 OK\r\n", b"x-more: " + b"y" * 60_000 + b"\r\n"), "http"),
        (_endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), "http"),
        (_endless(b"HTTP/1.1 200 OK\r\n", b"", 0.01), "timeout"),
        (_endless(b"HTTP/1.1 200 OK\r\nx", b"y", 0.01), "timeout"),
        (b"220 smtp.example.test\r\n", "http"),
        (b"", "http"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n", "http"),
    ],
    ids=["head", "informational", "slow head", "slow header", "other protocol", "nothing", "bad length"],
)
async def test_an_answer_is_bounded_in_bytes_and_time(answer: bytes | Speak, code: str) -> None:
    async with receiving(answer) as receiver:
        assert await _code(receiver.url, _allowing(receiver, timeout=0.5 if code == "timeout" else 15.0)) == code


@pytest.mark.parametrize(
    "answer",
    [
        _endless(b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n", b"", 0.01),
        b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nno length\r\n",
    ],
    ids=["slow", "breaks off", "not valid"],
)
async def test_a_body_does_not_change_the_answer(answer: bytes | Speak, monkeypatch: pytest.MonkeyPatch) -> None:
    """The receiver has accepted the delivery once it has sent its status: it need not get it again."""
    monkeypatch.setattr(requests, "_BODY_SECONDS", 0.05 if callable(answer) else 60.0)
    async with receiving(answer) as receiver:
        assert (await post(receiver.url, b"{}", {}, _allowing(receiver))).status == 200


async def test_another_address_of_the_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two do not answer, or refuse; they have not all of the time."""
    connect = requests._connected_to
    tried = []

    async def connected_to(target: Target, address: Address, policy: TargetPolicy) -> object:
        tried.append(str(address))
        if len(tried) == 1:
            await asyncio.Event().wait()
        if len(tried) == 2:
            raise ConnectionRefusedError
        return await connect(target, address, policy)

    async def resolve(name: str, port: int) -> Sequence[str]:
        return ["127.0.0.3", "127.0.0.2", "127.0.0.1"]

    monkeypatch.setattr(requests, "_connected_to", connected_to)
    async with receiving() as receiver:
        policy = _allowing(receiver, connect_timeout=1.5)
        url = f"http://hooks.test:{receiver.port}/"
        assert (await post(url, b"{}", {}, policy, resolve=resolve)).status == 204
    assert tried == ["127.0.0.3", "127.0.0.2", "127.0.0.1"]


async def test_names_are_looked_up_though_handlers_have_all_threads() -> None:
    async def taken() -> None:
        with ThreadPoolExecutor(1) as pool:
            asyncio.get_running_loop().set_default_executor(pool)
            pool.shutdown()
            assert await _code("https://name.invalid/", TargetPolicy()) in ("dns", "timeout")

    await asyncio.to_thread(asyncio.run, taken())


async def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        policy = TargetPolicy(allow_http=True, allow_ports=[port], allow_networks=["127.0.0.0/8"])
        assert await _code(f"http://127.0.0.1:{port}/", policy) == "connection"


async def test_the_certificate_is_checked_against_the_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pem = str(authority.issue("hooks.test"))

    async def resolve(name: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    async with receiving(certificate=pem) as receiver:
        trusting = _allowing(receiver, allow_hosts=["hooks.test", "other.test"], ca_file=str(authority.root))
        url = f"https://hooks.test:{receiver.port}/"
        assert (await post(url, b"{}", {}, trusting, resolve=resolve)).status == 204
        assert await _code(url.replace("hooks.", "other."), trusting, resolve=resolve) == "tls"
        assert await _code(url, _allowing(receiver, allow_hosts=["hooks.test"]), resolve=resolve) == "tls"
        read = requests._cached_context.cache_info().misses
        assert (await post(url, b"{}", {}, trusting, resolve=resolve)).status == 204
        assert requests._cached_context.cache_info().misses == read, "certificates are read once"
        Path(authority.root).write_text("none", encoding="utf-8")
        assert await _code(url, trusting, resolve=resolve) == "tls", "and again once the file has changed"


def test_no_other_module_of_the_library_makes_requests() -> None:
    clients = {"httpx", "requests", "aiohttp", "urllib3", "httpcore", "urllib.request", "http.client", "h11"}
    found = []
    for path in (ROOT / "queuert").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [str(path.relative_to(ROOT)) for name in names if name in clients]
    assert set(found) <= {"queuert/webhooks/requests.py", "queuert/cli/health.py"}, found
