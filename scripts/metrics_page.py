"""Write the tables of docs/metrics.md from queuert/observability/metrics.py; with --check, only say if they differ."""

import sys
from pathlib import Path

from queuert.observability.metrics import METRICS, Metric, Source

PAGE = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"
BEGIN, END = "<!-- generated: {} -->", "<!-- end: {} -->"
HEAD = "| metric | in Prometheus | kind | unit | attributes | meaning |\n|---|---|---|---|---|---|"


def row(metric: Metric) -> str:
    """One metric as a row of its table."""
    attributes = ", ".join(f"`{name}`" for name in metric.attributes) or "-"
    names = f"`{metric.name}` | `{metric.prometheus_name}`"
    return f"| {names} | {metric.kind} | `{metric.unit}` | {attributes} | {metric.description} |"


def table(source: Source) -> str:
    """The table of the metrics that come from one source."""
    rows = [row(metric) for metric in METRICS if metric.source is source]
    return "\n".join([HEAD, *rows])


def generated(text: str) -> str:
    """The page with its tables written anew."""
    for source in Source:
        begin, end = BEGIN.format(source), END.format(source)
        head, rest = text.split(f"{begin}\n", 1)
        _, tail = rest.split(f"\n{end}", 1)
        text = f"{head}{begin}\n{table(source)}\n{end}{tail}"
    return text


def main() -> int:
    """Write the page, or check it."""
    text = PAGE.read_text(encoding="utf-8")
    if text == generated(text):
        return 0
    if "--check" in sys.argv[1:]:
        print(f"{PAGE.name} is out of date: run make format", file=sys.stderr)
        return 1
    PAGE.write_text(generated(text), encoding="utf-8")
    print(f"wrote {PAGE.name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
