"""Signatures: those of the Standard Webhooks package and of Svix are ours, both ways; nothing forged is accepted."""

from __future__ import annotations

import base64
import hmac
import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest
import standardwebhooks
from hypothesis import given
from hypothesis import strategies as st

from queuert.errors import ConfigurationError
from queuert.webhooks import RecentIds, WebhookVerificationError, new_secret, signed_headers, signing, verify

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
# The vector of the libraries of Svix, which the package for Standard Webhooks has as well.
VECTOR_ID, VECTOR_TIME, VECTOR_BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
VECTOR_SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def _vector(prefix: str = "webhook", **changes: str) -> dict[str, str]:
    headers = {"id": VECTOR_ID, "timestamp": str(VECTOR_TIME), "signature": VECTOR_SIGNATURE, **changes}
    return {f"{prefix}-{name}": value for name, value in headers.items()}


def test_the_published_vector_is_signed_and_verified() -> None:
    assert signing.signature(SECRET, VECTOR_ID, VECTOR_TIME, VECTOR_BODY) == VECTOR_SIGNATURE
    for headers in (_vector(), _vector("svix"), _vector("WebHook")):
        found = verify(VECTOR_BODY, headers, SECRET, now=VECTOR_TIME + 1)
        assert (found.id, found.payload, found.type) == (VECTOR_ID, {"test": 2432232314}, None)
        assert found.sent_at == datetime.fromtimestamp(VECTOR_TIME, UTC)


@pytest.mark.parametrize(
    "secret",
    [SECRET, SECRET.removeprefix("whsec_"), new_secret(), new_secret().rstrip("=")],
    ids=["published", "without prefix", "new", "without padding"],
)
def test_the_package_verifies_what_we_sign_and_we_what_it_signs(secret: str) -> None:
    body = json.dumps({"type": "chain.completed", "data": {"naïve": "é"}})
    padded = secret + "=" * (-len(secret.removeprefix("whsec_")) % 4)
    package = standardwebhooks.Webhook(padded)
    assert package.verify(body, signed_headers(secret, "evt_1", body.encode())) == json.loads(body)
    now = datetime.now(UTC)
    headers = {
        "webhook-id": "evt_2",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": package.sign("evt_2", now, body),
    }
    found = verify(body.encode(), headers, secret)
    assert (found.id, found.type, found.data) == ("evt_2", "chain.completed", {"naïve": "é"})


def test_old_and_new_secret_both_sign_during_a_rotation() -> None:
    old, new = new_secret(), new_secret()
    headers = signed_headers([new, old], "evt_1", b"{}")
    for secret in (old, new, [new, old], [new_secret(), old]):
        assert verify(b"{}", headers, secret).id == "evt_1"
    for one in (old, new):
        assert standardwebhooks.Webhook(one).verify("{}", headers) == {}
    with pytest.raises(WebhookVerificationError):
        verify(b"{}", headers, new_secret())


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (_vector(), b'{"test": 2432232315}'),
        (_vector(id="msg_other"), VECTOR_BODY),
        (_vector(timestamp=str(VECTOR_TIME + 1)), VECTOR_BODY),
        (_vector(timestamp="1614265330.0"), VECTOR_BODY),
        (_vector(timestamp="-1"), VECTOR_BODY),
        (_vector(timestamp="9" * 40), VECTOR_BODY),
        (_vector(timestamp="\u0661"), VECTOR_BODY),
        (_vector(signature="v1"), VECTOR_BODY),
        (_vector(signature="v1,"), VECTOR_BODY),
        (_vector(signature="v1,not base64!"), VECTOR_BODY),
        (_vector(signature="v1,\udcff\u1234"), VECTOR_BODY),
        (_vector(signature=VECTOR_SIGNATURE.replace("v1,", "v2,")), VECTOR_BODY),
        (_vector(signature=" ".join(["v1,AAAA"] * 40 + [VECTOR_SIGNATURE])), VECTOR_BODY),
        (_vector(signature=""), VECTOR_BODY),
        ({}, VECTOR_BODY),
    ],
)
def test_whatever_is_wrong_is_one_error(headers: dict[str, str], body: bytes) -> None:
    with pytest.raises(WebhookVerificationError):
        verify(body, headers, SECRET, now=VECTOR_TIME)


@given(
    st.dictionaries(st.sampled_from(["webhook-id", "webhook-timestamp", "webhook-signature"]), st.text(max_size=40)),
    st.binary(max_size=40),
)
def test_nothing_that_somebody_sends_is_another_error(headers: dict[str, str], body: bytes) -> None:
    with pytest.raises(WebhookVerificationError):
        verify(body, headers, SECRET)


def test_a_body_that_is_no_json_is_refused_though_it_is_signed() -> None:
    with pytest.raises(WebhookVerificationError):
        verify(b"{", signed_headers(SECRET, "evt_1", b"{"), SECRET)


def test_without_a_limit_every_time_is_one_of_python() -> None:
    verify(VECTOR_BODY, _vector(), SECRET, now=10 * VECTOR_TIME, tolerance=math.inf)
    with pytest.raises(WebhookVerificationError):
        verify(VECTOR_BODY, _vector(timestamp="9" * 12), SECRET, tolerance=math.inf)
    with pytest.raises(WebhookVerificationError):
        verify(VECTOR_BODY, _vector(timestamp="9" * 11), SECRET, tolerance=math.inf)


@pytest.mark.parametrize("tolerance", [math.nan, -1.0])
def test_a_tolerance_that_is_no_time_is_refused(tolerance: float) -> None:
    """With NaN every time would be accepted."""
    with pytest.raises(ConfigurationError, match="tolerance must be at least 0 seconds"):
        verify(VECTOR_BODY, _vector(), SECRET, tolerance=tolerance)
    with pytest.raises(ConfigurationError, match="tolerance must be at least 0 seconds"):
        verify(VECTOR_BODY, {}, SECRET, tolerance=tolerance)
    with pytest.raises(ConfigurationError, match="seconds must be at least 0"):
        RecentIds(seconds=tolerance)
    with pytest.raises(ConfigurationError, match="most at least 1"):
        RecentIds(most=0)


def test_an_old_request_is_refused_and_so_is_one_of_the_future() -> None:
    for now in (VECTOR_TIME + 301, VECTOR_TIME - 301):
        with pytest.raises(WebhookVerificationError):
            verify(VECTOR_BODY, _vector(), SECRET, now=now)
    verify(VECTOR_BODY, _vector(), SECRET, now=VECTOR_TIME + 3_000, tolerance=3_600)


def test_a_repeated_id_is_known_until_it_is_forgotten() -> None:
    recent = RecentIds()
    assert [recent.add(id) for id in ("a", "b", "a", "b", "c")] == [True, True, False, False, True]
    for forgetting in (RecentIds(seconds=0.0), RecentIds(most=1)):
        assert [forgetting.add(id) for id in ("a", "b", "a")] == [True, True, True]


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_é", "whsec_AAAA", "whsec_" + base64.b64encode(b"x" * 65).decode(), 7, None, b"x"]
)
def test_a_weak_or_malformed_secret_is_refused_and_not_repeated(secret: Any) -> None:
    for call in (lambda: signing.checked_secret(secret), lambda: verify(VECTOR_BODY, _vector(), [SECRET, secret])):
        with pytest.raises(ConfigurationError) as caught:
            call()
        assert len(str(secret)) < 8 or str(secret) not in str(caught.value)


@pytest.mark.parametrize("id", ["", "evt.1", "evt 1", "evt\n1", "é"])
def test_an_id_that_could_shift_what_is_signed_is_refused(id: str) -> None:
    with pytest.raises(ConfigurationError):
        signed_headers(SECRET, id, b"{}")


def test_signatures_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    constant_time = hmac.compare_digest

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return constant_time(a, b)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    verify(VECTOR_BODY, _vector(signature=f"{VECTOR_SIGNATURE} v1,AAAA"), [new_secret(), SECRET], now=VECTOR_TIME)
    assert len(compared) == 4, "each given signature with each secret, though one fits"
