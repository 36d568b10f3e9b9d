"""Where webhooks may go: every spelling of a private address is refused, and so is what contains one (S9)."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuert.errors import ConfigurationError
from queuert.webhooks import ForbiddenTargetError, TargetPolicy
from queuert.webhooks.addresses import contained, parsed

POLICY = TargetPolicy()

SPELLINGS = [
    *(
        "127.0.0.1",
        "127.1",
        "127.0.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "017700000001",
        "0x7F.0.0.0x1",
    ),
    *("127.0.0.1.", "0", "0.0.0.0", "00000177.1", "1.2.3.4.5", "256.1.1.1", "0x", "1.0x", "127.0.0.01"),
    *("[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[0:0:0:0:0:ffff:7f00:1]"),
    *("[64:ff9b::7f00:1]", "[64:ff9b::10.0.0.1]", "[64:ff9b:1::7f00:1]", "[2002:7f00:1::]", "[2002:a00:1::1]"),
    *("[2001:0:0:0:0:0:80ff:fffe]", "[2001:db8::5efe:7f00:1]", "[fe80::1]", "[fe80::1%25eth0]", "[fe80::1%eth0]"),
    *("[fc00::1]", "[fd00:ec2::254]", "[ff02::1]", "[fec0::1]", "[100::1]", "[3fff::1]", "[5f00::1]"),
    *("10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254", "100.64.0.1", "100.100.100.200"),
    *("192.0.0.192", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1"),
    *("255.255.255.255", "168.63.129.16", "192.88.99.1"),
]


@pytest.mark.parametrize("host", SPELLINGS)
def test_no_spelling_of_a_private_address_is_allowed(host: str) -> None:
    with pytest.raises(ForbiddenTargetError):
        POLICY.check_url(f"https://{host}/")


@pytest.mark.parametrize("host", ["1.1.1.1", "93.184.216.34", "172.32.0.1", "[2606:4700::1111]", "[64:ff9b::1.1.1.1]"])
def test_public_addresses_are_allowed(host: str) -> None:
    assert POLICY.check_url(f"https://{host}/").address is not None


WRAPPED = {
    "mapped": lambda v4: (0xFFFF << 32) | v4,
    "compatible": lambda v4: v4,
    "translated": lambda v4: (0xFFFF_0000 << 32) | v4,
    "nat64": lambda v4: (0x0064_FF9B << 96) | v4,
    "local nat64": lambda v4: (0x0064_FF9B_0001 << 80) | v4,
    "6to4": lambda v4: (0x2002 << 112) | (v4 << 80) | 1,
    "teredo client": lambda v4: (0x2001_0000 << 96) | (v4 ^ 0xFFFF_FFFF),
    "teredo server": lambda v4: (0x2001_0000 << 96) | (v4 << 64),
    "isatap": lambda v4: (0x2606_4700 << 96) | (0x5EFE << 32) | v4,
    "isatap, global": lambda v4: (0x2606_4700 << 96) | (0x0200_5EFE << 32) | v4,
}


@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(WRAPPED)))
def test_an_address_that_contains_another_gets_its_verdict_at_least(number: int, how: str) -> None:
    inner = ipaddress.IPv4Address(number)
    outer = ipaddress.IPv6Address(WRAPPED[how](number))
    assert inner in contained(outer)
    if POLICY.forbids(inner):
        assert POLICY.forbids(outer), how


@pytest.mark.parametrize(
    "url",
    [
        *("http://example.com/", "ftp://example.com/", "//example.com/", "example.com", "", "https://", "https:///x"),
        *(
            "https://user@example.com/",
            "https://user:pw@example.com/",
            "https://@example.com/",
            "https://example.com/#a",
        ),
        *(
            "https://example.com:8443/",
            "https://example.com:22/",
            "https://example.com:99999/",
            "https://example.com:x/",
        ),
        *(
            "https://exa mple.com/",
            "https://example.com/a b",
            "https://example.com/\n",
            "https://example.com\\@evil.test/",
        ),
        *("https://exam\tple.com/", "https://-a.test/", "https://a..test/", "https://a%2e.test/", "https://[::1/"),
        *("https://example.com/\u202e", "https://example.com/é", "https://" + "a" * 300 + ".test/", "x" * 3_000),
        "file:///etc/passwd",
    ],
)
def test_only_plain_urls_of_https_are_allowed(url: str) -> None:
    with pytest.raises(ForbiddenTargetError) as caught:
        POLICY.check_url(url)
    assert "pw" not in str(caught.value)


def test_a_url_is_taken_apart() -> None:
    target = POLICY.check_url("https://Bücher.Example.COM.:443/a?b=c")
    assert (target.host, target.port, target.path) == ("xn--bcher-kva.example.com", 443, "/a?b=c")
    assert target.host_header == "xn--bcher-kva.example.com"
    assert parsed("http://[2606:4700::1]:8080").host_header == "[2606:4700::1]:8080"


def test_an_operator_allows_networks_names_and_ports_but_no_metadata() -> None:
    policy = TargetPolicy(
        allow_http=True, allow_ports=[8080], allow_networks=["10.0.0.0/8", "169.254.0.0/16", "fd00::/8"]
    )
    assert policy.check_url("http://10.1.2.3:8080/").port == 8080
    assert policy.check_url("http://[fd00::1]:80/").port == 80
    for host in ("169.254.169.254", "[fd00:ec2::254]", "[fe80::1]", "0.0.0.0", "127.0.0.1", "192.168.0.1"):
        with pytest.raises(ForbiddenTargetError):
            policy.check_url(f"http://{host}/")
    named = TargetPolicy(allow_hosts=["Hooks.Internal"])
    private, metadata = ipaddress.ip_address("10.0.0.1"), ipaddress.ip_address("169.254.169.254")
    named.check_addresses("hooks.internal", [private])
    for host, address in (("hooks.internal", metadata), ("other.internal", private)):
        with pytest.raises(ForbiddenTargetError):
            named.check_addresses(host, [address])


def test_one_forbidden_address_of_a_name_forbids_it() -> None:
    public, private = ipaddress.ip_address("1.1.1.1"), ipaddress.ip_address("10.0.0.1")
    POLICY.check_addresses("example.com", [public])
    for addresses in ([public, private], [private, public], []):
        with pytest.raises(ForbiddenTargetError):
            POLICY.check_addresses("example.com", addresses)


@pytest.mark.parametrize(
    "settings",
    [
        {"allow_networks": ["10.0.0.1/8"]}, {"allow_networks": "10.0.0.0/8"}, {"allow_ports": [0]}, {"timeout": 31},
        {"allow_ports": [70_000]}, {"allow_hosts": ["a b"]}, {"connect_timeout": 0}, {"keep_answer": 5_000},
        {"ca_file": "no/such/file"}, {"ca_file": __file__},
    ],
)  # fmt: skip
def test_a_policy_is_checked_when_it_is_made(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        TargetPolicy(**settings)  # type: ignore[arg-type]
