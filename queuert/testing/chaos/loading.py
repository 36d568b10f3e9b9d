"""Builds the history of a run from its records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from queuert.testing.chaos.history import History
from queuert.testing.chaos.records import read


def load_records(history: History, directory: Path) -> None:
    """Read the records of clients, handlers, workers and the run."""
    for path in sorted(directory.glob("client-*.jsonl")):
        history.add("a", _calls(path))
    history.add("x", (_trace(line) for line in read(directory / "traces.jsonl")))
    history.add("p", (_event(line) for line in read(directory / "events.jsonl")))
    history.add("stops", read(directory / "stops.jsonl"))
    history.add(
        "hangs", ({"pid": line["pid"], "reported": json.dumps(line)} for line in read(directory / "hangs.jsonl"))
    )
    history.add("ends", read(directory / "ends.jsonl"))
    history.add("away", read(directory / "away.jsonl"))
    history.add("leftover", read(directory / "left.jsonl"))
    history.add("f", read(directory / "faults.jsonl"))
    history.add("w", ({**line, "at": line["t"]} for line in read(directory / "receiver.jsonl")))
    history.add("deliveries", read(directory / "deliveries.jsonl"))
    history.add("resources", (_taken(line) for line in read(directory / "resources.jsonl")))


def _calls(path: Path) -> Iterator[dict[str, Any]]:
    """Return a row for each id of each call. A kill ended a call without an end: its outcome is unknown."""
    client = path.stem.removeprefix("client-")
    lines = list(read(path))
    ends = {line["call"]: line for line in lines if line["m"] == "end"}
    for line in lines:
        if line["m"] != "begin":
            continue
        end = ends.get(line["call"], {"outcome": "unknown", "results": [], "error": "the client was killed"})
        row = {"client": client, "op": line["op"], "how": line["how"], "key": line["key"], "type": line["type"]}
        row |= {"outcome": end["outcome"], "error": end["error"], "began": line["t"], "ended": end.get("t")}
        answered = end["results"] or [[id, id if end["outcome"] == "ack" else None, False] for id in line["ids"]]
        for requested, result, deduplicated in answered:
            yield row | {"id": requested or None, "result_id": result, "deduplicated": int(deduplicated)}


def _taken(line: dict[str, Any]) -> dict[str, Any]:
    return {**line, "at": line["t"], "kinds": json.dumps(line["kinds"])}


def _trace(line: dict[str, Any]) -> dict[str, Any]:
    return {**line, "job_id": line["job"], "mark": line["m"], "at": line["t"]}


def _event(line: dict[str, Any]) -> dict[str, Any]:
    attempt = line.get("attempt")
    detail = line.get("reason") or line.get("error") or line.get("loop")
    return {**line, "at": line["t"], "attempt": None if attempt is None else int(attempt), "detail": detail}
