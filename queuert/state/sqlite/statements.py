"""The SQL, one statement a file in ``sql/`` (the schema excepted), read once."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def statements() -> dict[str, str]:
    """The statements by name: the file ``sql/claim.sql`` is ``claim``."""
    folder = files("queuert.state.sqlite") / "sql"
    return {
        entry.name.removesuffix(".sql"): entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".sql")
    }
