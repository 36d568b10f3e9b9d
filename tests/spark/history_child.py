"""A driver that archives and kills itself, with all that it has started, when it tells of a step."""

from __future__ import annotations

import os
import signal
import sys

from queuert.spark.history import Progress, run_archive
from tests.spark.children import session


def main(dsn: str, output: str, step: str) -> None:
    def told(progress: Progress) -> None:
        if progress.step == step:
            os.killpg(os.getpgid(0), signal.SIGKILL)

    run_archive(session("local[2]"), dsn, output, older_than=0, partitions=1, batch=5, on_progress=told)


if __name__ == "__main__":
    main(*sys.argv[1:])
