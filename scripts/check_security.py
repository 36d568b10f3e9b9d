"""Run bandit over the library, and take its findings one by one: each is argued here, or it is an error."""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Assertions narrow types; random numbers spread pauses; programs are started without a shell, by lists of words that no
# payload is a part of; and that pickle is imported matters less than what is loaded by it, which is B301.
NOT_REQUESTED = "B101,B311,B403,B404,B603,B606"
# They break things on purpose, with statements of their own on databases of their own.
LEFT_OUT = ("queuert/testing", "queuert/demo")

_PIPE = "what passes between a worker and its own child process, or starts it: nobody else can write there"
_NAMES = "only the checked names of schemas and days are put in: tests/security/test_statements.py"

# test id -> file -> why it is right there.
ARGUED = {
    "B104": {"queuert/observability/http.py": "probes and Prometheus ask from other machines; counts, and no payloads"},
    "B108": {"queuert/embedded/workspace.py": "a directory with a name of its own and mode 0700 is made in it"},
    "B301": {
        **dict.fromkeys(
            (
                "queuert/worker/processes/child.py",
                "queuert/worker/processes/executor.py",
                "queuert/worker/processes/handle.py",
                "queuert/worker/processes/child_attempt.py",
            ),
            _PIPE,
        ),
    },
    "B608": dict.fromkeys(
        ("queuert/spark/read/sql.py", "queuert/state/postgres/event_log.py", "queuert/state/sqlite/listing.py"), _NAMES
    ),
}


def main() -> int:
    """Print findings that nobody has argued, and arguments without a finding; 1 if there are any."""
    command = [sys.executable, "-m", "bandit", "--quiet", "--format", "json", "--skip", NOT_REQUESTED]
    command += ["--exclude", ",".join(LEFT_OUT), "--recursive", "queuert", "alembic"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        print(done.stderr or done.stdout, file=sys.stderr)
        return 1
    report = json.loads(done.stdout)
    seen: dict[str, set[str]] = defaultdict(set)
    wrong = [f"{error['filename']}: {error['reason']}" for error in report["errors"]]
    for one in report["results"]:
        name, path = one["test_id"], one["filename"].removeprefix("./")
        seen[name].add(path)
        if path not in ARGUED.get(name, {}):
            wrong.append(f"{path}:{one['line_number']}: {name} {one['issue_text']}")
    wrong += [
        f"{path}: {name} is argued in scripts/check_security.py, and found no more"
        for name, paths in ARGUED.items()
        for path in paths
        if path not in seen[name]
    ]
    for line in wrong:
        print(line)
    print(f"bandit: {len(wrong)} findings" if wrong else "bandit: passed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
