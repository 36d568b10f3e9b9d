"""``queuert dev dashboard``, as it is run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from queuert.testing.shop.story import STUCK


def test_one_command_shows_a_shop_full_of_jobs_and_leaves_nothing(temporary: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "queuert", "dev", "dashboard", "--port", "0"],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        if found is None:
            pytest.fail("it did not say its address")
        with httpx.Client(base_url=found[0], timeout=60) as browser:
            assert "newsletter" in browser.get("").text
            assert "waits for 1 open chain" in browser.get(f"chain?id={STUCK}").text
            # Another site's name may be made to lead to this machine.
            assert browser.get("", headers={"Host": "shop.evil.test"}).status_code == 403
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        _, alive = psutil.wait_procs(children, timeout=10)
        assert not alive
    finally:
        process.kill()
        process.communicate()
    assert not [path for path in temporary.iterdir() if not path.name.startswith("queuert-pg-")]
