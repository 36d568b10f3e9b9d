"""A process that runs programs one after the other, as ``python -m`` would, and keeps its JVM between them.

A program is a line of JSON on standard input, what came of it a line on standard output.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
import traceback
from typing import Any


def run(module: str, arguments: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """What a program printed, and what it ended with."""
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    output, errors = io.StringIO(), io.StringIO()
    status: object = 0
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as left:
            status = left.code or 0
        except BaseException:
            traceback.print_exc()
            status = 1
    return {"returncode": status, "stdout": output.getvalue(), "stderr": errors.getvalue()}


def main() -> None:
    """Until there is no more input."""
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
