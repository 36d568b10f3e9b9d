"""What a stranger gives costs no more than its size allows: nothing unpacks, matches or counts without end."""

from __future__ import annotations

import ast
import base64
import json
import re
import tracemalloc
import zlib
from datetime import UTC, datetime

import pytest

from queuert import JobType
from queuert.codecs import PayloadFormat, ZlibCodec
from queuert.errors import ConfigurationError, InvalidCursorError, PayloadDecodeError, PayloadError
from queuert.schedules import RecurringSchedule, TickSpec
from queuert.state.paging import Position
from tests.security.test_statements import sources

MEGABYTE = 1024 * 1024
zipped = JobType("zipped", input=str, output=str, format=PayloadFormat(codecs=[ZlibCodec()]))


def test_a_megabyte_that_unpacks_to_a_gigabyte_is_refused_before_it_is_unpacked() -> None:
    packing = zlib.compressobj(9)
    block = b"x" * (16 * MEGABYTE)
    # What is packed after a full flush refers to nothing before it, and can be repeated.
    first, again = (packing.compress(block) + packing.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    data = first + 63 * again
    assert len(data) < 2 * MEGABYTE
    stored = json.dumps({"queuert.codec": ["json", "zlib"], "queuert.payload": base64.b64encode(data).decode()})
    tracemalloc.start()
    try:
        with pytest.raises(PayloadDecodeError, match="zlib: the data must be at most"):
            zipped.decode_input(stored)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * MEGABYTE


@pytest.mark.parametrize(
    "cron",
    ["*/1," * 100_000 + "1 * * * *", "0-59," * 100 + "1 * * * *", "9" * 5_000 + " * * * *", "* " * 1_000, "0 0 30 2 *"],
    ids=["a long list", "a list", "a long number", "many fields", "a day that never comes"],
)
def test_cron_expressions(cron: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RecurringSchedule("x", zipped, "x", cron=cron)
    assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize("zone", ["x" * 100_000, "../../../etc/passwd", "/etc/passwd", "a\x00b", ""])
def test_time_zones(zone: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RecurringSchedule("x", zipped, "x", cron="0 3 * * *", time_zone=zone)
    assert len(str(caught.value)) < 1_000


def test_the_rarest_tick_is_found() -> None:
    """A day in forty years is looked for, and no further."""
    spec = TickSpec(cron="0 0 29 2 1", every=None, time_zone="UTC")
    assert spec.next_after(datetime(2026, 1, 1, tzinfo=UTC)) is not None


@pytest.mark.parametrize(
    "cursor", ["x" * MEGABYTE, "W" * 10_000, "[" * 100_000, base64.b64encode(b"[" * 50_000).decode()]
)
def test_cursors(cursor: str) -> None:
    with pytest.raises(InvalidCursorError) as caught:
        Position.decode(cursor)
    assert len(str(caught.value)) < 200


PATHOLOGICAL = [
    "a" * 50_000 + "!", "\\" * 50_000, '"' + "\\\\" * 50_000, "0" * 50_000 + "x", "1e" * 50_000, "[{" * 50_000,
    "://" * 20_000 + "@", "password=" * 10_000, " " * 50_000 + "x", "-" * 50_000, "1." * 50_000,
]  # fmt: skip


def patterns() -> list[str]:
    """Every regular expression that stands in the library as a constant."""

    found = set()
    for _, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re."):
                found |= {
                    one.value for one in node.args[:1] if isinstance(one, ast.Constant) and isinstance(one.value, str)
                }
    return sorted(found)


def test_regular_expressions_take_a_time_that_grows_with_the_text() -> None:
    """One that steps back for each character would take hours, and be stopped by the limit that all tests have."""
    checked = patterns()
    assert len(checked) > 20
    for pattern in checked:
        compiled = re.compile(pattern)
        for text in PATHOLOGICAL:
            compiled.search(text[:2_000])


def test_payloads_that_are_all_brackets_quotes_or_digits() -> None:
    anything: JobType[object, object] = JobType("anything", input=object, output=object)
    for text in PATHOLOGICAL:
        with pytest.raises(PayloadError):
            anything.decode_input(text)
