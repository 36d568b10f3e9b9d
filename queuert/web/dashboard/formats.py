"""How times, durations, numbers and payloads are shown."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from urllib.parse import quote

from jinja2 import pass_context
from jinja2.runtime import Context
from markupsafe import Markup
from pydantic_core import to_json

from queuert.state.webhooks import WebhookAttempt
from queuert.webhooks.endpoints import Webhook

MAX_PAYLOAD = 65_536
"""The most characters of a payload that a page shows."""

_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))

_DIRECTIONS = {code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F)}

_SYMBOLS = {
    "completed": "✓",
    "continued": "→",
    "failed": "✕",
    "cancelled": "⊘",
    "running": "▶",
    "active": "▶",
    "ready": "●",
    "scheduled": "◷",
    "blocked": "■",
    "open": "○",
    "paused": "❚❚",
    "stopping": "◐",
    "vanished": "✕",
    "ok": "✓",
    "warning": "▲",
    "error": "✕",
    "skipped": "-",
    "stale": "◌",
    "done": "✓",
    "refused": "✕",
    "enabled": "✓",
    "disabled": "⊘",
    "failing": "▲",
    "waiting": "❚❚",
    "accepted": "✓",
}


def duration(seconds: float | None) -> str:
    """Return seconds in two units at most.

    >>> [duration(one) for one in (0.0042, 3.14159, 75, 7261, 200000, None)]
    ['4 ms', '3.1 s', '1 min 15 s', '2 h 1 min', '2 d 7 h', '—']
    """
    if seconds is None:
        return "—"
    seconds = max(0.0, seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    seconds = float(round(seconds))
    for size, unit in _UNITS:
        if seconds >= size:
            whole, rest = divmod(seconds, size)
            smaller, name = {"d": (3_600.0, "h"), "h": (60.0, "min"), "min": (1.0, "s")}[unit]
            part = int(rest // smaller)
            return f"{int(whole)} {unit}" + (f" {part} {name}" if part else "")
    return f"{seconds:.1f} s"


def brief(seconds: float | None) -> str:
    """Return seconds in one unit, for tables and axes.

    >>> [brief(one) for one in (0.0042, 3.14159, 75, 7261, 200000, None)]
    ['4 ms', '3.1 s', '1.2 min', '2.0 h', '2.3 d', '—']
    """
    if seconds is None or seconds < 59.95:
        return duration(seconds)
    for size, unit in _UNITS:
        if seconds >= size:
            value = seconds / size
            return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"
    return "1.0 min"


def about(seconds: float | None) -> str:
    """Return a quantile of a histogram in one unit, which is the middle of a bucket.

    >>> about(0.0905), about(0.0005), about(None)
    ('≈ 90 ms', 'under 1 ms', '—')
    """
    if seconds is not None and seconds < 0.001:
        return "under 1 ms"
    return "—" if seconds is None else f"≈ {brief(seconds)}"


def axis(seconds: float) -> str:
    """Return a round duration for an axis.

    >>> [axis(one) for one in (0.0001, 0.01, 10, 600, 36000)]
    ['0.1 ms', '10 ms', '10 s', '10 min', '10 h']
    """
    for size, unit in ((3_600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds * 1000:g} ms"


def between(begin: datetime | None, end: datetime | None) -> str:
    """Return the time from one moment to another."""
    return duration(None if begin is None or end is None else (end - begin).total_seconds())


def zone_name(zone: tzinfo, at: datetime) -> str:
    """Return the short name of a time zone, as of a moment."""
    return _in_zone(at, zone).strftime("%Z") or "UTC"


def clock(value: datetime, zone: tzinfo, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a moment in a time zone."""
    return _in_zone(value, zone).strftime(form)


def _in_zone(value: datetime, zone: tzinfo) -> datetime:
    """Return a moment in a time zone; in UTC if the calendar there does not have it, as at the end of year 9999."""
    try:
        return value.astimezone(zone)
    except OverflowError:
        return value.astimezone(UTC)


@pass_context
def moment(context: Context, value: datetime | None, now: datetime | None = None) -> Markup:
    """Return a time relative to now, with the time itself for machines and pointers."""
    if value is None:
        return Markup('<span class="none">—</span>')
    zone = context.get("zone") or UTC
    seconds = ((now or context["now"]) - value).total_seconds()
    text = f"{duration(seconds)} ago" if seconds >= 0 else f"in {duration(-seconds)}"
    exact = f"{clock(value, zone)}.{value.microsecond // 1000:03} {zone_name(zone, value)}"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(value.astimezone(UTC).isoformat(), exact, text)


_AGO = re.compile(r"(\d{1,9}) s ago")


@pass_context
def with_ages(context: Context, text: str) -> Markup:
    """Return a sentence whose ages, such as ``12 s ago``, go on by themselves as those of moments do."""
    found, end = Markup(), 0
    for age in _AGO.finditer(text):
        since: datetime = context["now"] - timedelta(seconds=int(age[1]))
        found += text[end : age.start()]
        found += Markup('<time datetime="{}">{}</time>').format(since.astimezone(UTC).isoformat(), age[0])
        end = age.end()
    return found + text[end:]


@pass_context
def exactly(context: Context, value: datetime | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a time in the chosen zone."""
    return "—" if value is None else clock(value, context.get("zone") or UTC, form)


def pill(status: str) -> Markup:
    """Return a status as text with a symbol."""
    return Markup('<span class="pill s-{0}"><span aria-hidden="true">{1}</span>{0}</span>').format(
        str(status), _SYMBOLS.get(str(status), "·")
    )


def webhook_state(webhook: Webhook) -> str:
    """Return the state of a webhook in one word."""
    if not webhook.enabled:
        return "disabled"
    if webhook.circuit == "open":
        return "waiting"
    return "failing" if webhook.failures else "enabled"


_WEBHOOK_ERRORS = {
    "http": "the answer is not valid HTTP",
    "timeout": "no answer in time",
    "connection": "no connection",
    "dns": "the name has no address",
    "tls": "no TLS connection",
    "forbidden_target": "the TargetPolicy of the workers does not allow the address",
}


def webhook_answer(attempt: WebhookAttempt) -> str:
    """Return what a receiver answered, or why there is no answer."""
    if attempt.status is not None:
        return f"HTTP {attempt.status}"
    error = attempt.error or ""
    return f"{error}: {_WEBHOOK_ERRORS[error]}" if error in _WEBHOOK_ERRORS else error


def next_webhook_attempt(attempt: WebhookAttempt) -> datetime:
    """Return when a delivery that failed is or was tried again."""
    return attempt.at + timedelta(seconds=attempt.retry_in or 0)


def symbol(status: str) -> str:
    """Return the symbol of a status."""
    return _SYMBOLS.get(str(status), "·")


def number(value: float | None) -> str:
    """Return a number with its thousands set apart.

    >>> number(1234567), number(None)
    ('1,234,567', '—')
    """
    return "—" if value is None else f"{value:,}"


def counted(value: float | None, estimated: bool = False, exact: int = 0) -> str:
    """Return a number, which may be an estimate; one that only says that there are more than were counted says so.

    >>> counted(7), counted(1234, True, 100), counted(101, True, 100), counted(None)
    ('7', '≈ 1,234', 'over 100', '—')
    """
    if value is None or not estimated:
        return number(value)
    return f"over {exact:,}" if value <= exact + 1 else f"≈ {number(value)}"


def rate(value: float | None) -> str:
    """Return a number of times a minute.

    >>> [rate(one) for one in (0, 0.25, 7.5, 1234.5, None)]
    ['0', '0.2', '7.5', '1,234', '—']
    """
    if value is None:
        return "—"
    return f"{value:,.0f}" if value >= 99.5 or value == 0 else f"{value:.1f}"


def percent(value: float | None) -> str:
    """Return a share.

    >>> [percent(one) for one in (0.0, 0.004, 0.5, 1.0, None)]
    ['0 %', '0.4 %', '50 %', '100 %', '—']
    """
    if value is None:
        return "—"
    return f"{value * 100:.1f} %" if 0 < value < 0.0995 else f"{value * 100:.0f} %"


def size(value: float | None) -> str:
    """Return a number of bytes.

    >>> [size(one) for one in (512, 2048, 5 * 1024**2, 3.25 * 1024**3)]
    ['512 B', '2.0 kB', '5.0 MB', '3.2 GB']
    """
    if value is None:
        return "—"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TB"


def short(text: str, size: int = 120) -> str:
    """Return the first line of a text, cut.

    >>> short("one line" + chr(10) + "another")
    'one line…'
    """
    line = text.split("\n", 1)[0]
    cut = line if len(line) <= size else line[:size]
    return cut if cut == text else f"{cut}…"


def compact(id: str) -> str:
    """Return an id as tables show it: of a long one the begin and the end, which differ.

    >>> compact("order-21"), compact("01a21516-d4c5-7dbb-a36f-011eb998a262")
    ('order-21', '01a21516…98a262')
    """
    line = id.split("\n", 1)[0]
    return line if len(line) <= 24 and line == id else f"{line[:8]}…{line[-6:]}"


def payload(value: Any) -> str:
    """Return a payload as indented JSON, at most 65,536 characters of it."""
    plain = json.loads(to_json(value, bytes_mode="base64", inf_nan_mode="constants", serialize_unknown=True))
    # Characters that change the direction of the text around them would let a payload look like another one.
    text = json.dumps(plain, indent=2, ensure_ascii=False).translate(_DIRECTIONS)
    if len(text) <= MAX_PAYLOAD:
        return text
    return f"{text[:MAX_PAYLOAD]}\n… {len(text) - MAX_PAYLOAD:,} more characters: read them over HTTP or with the CLI"


def named(summary: str) -> Markup:
    """Return the summary of an error with its class without its module in front, which is shown to pointers."""
    name, colon, message = summary.partition(": ")
    if not colon or " " in name:
        return Markup('<span class="summary">{}</span>').format(summary)
    return Markup('<span class="summary" title="{}"><b>{}</b> {}</span>').format(name, name.rpartition(".")[2], message)


def in_url(text: str) -> str:
    """Return a text as a value of a query."""
    return quote(text, safe="")


FILTERS = {
    "about": about,
    "counted": counted,
    "between": between,
    "brief": brief,
    "compact": compact,
    "duration": duration,
    "exactly": exactly,
    "in_url": in_url,
    "moment": moment,
    "named": named,
    "next_webhook_attempt": next_webhook_attempt,
    "number": number,
    "percent": percent,
    "pill": pill,
    "rate": rate,
    "short": short,
    "size": size,
    "symbol": symbol,
    "webhook_answer": webhook_answer,
    "webhook_state": webhook_state,
    "with_ages": with_ages,
}
