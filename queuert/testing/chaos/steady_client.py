"""The client of the leak probes: it lives as long as the run, and starts the jobs that their worker handles.

It takes its orders from files: while the file ``steady`` exists, it starts one chain after the other, a few a second.
For each ``exercise-N`` it uses all connections of client and worker at once, which neither does just after its start.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from queuert.errors import QueuertError
from queuert.testing.chaos.client import ChaosClient
from queuert.testing.chaos.plan import Op
from queuert.testing.chaos.resources import fill_pools_of_threads, tidy
from queuert.testing.chaos.workload import TIDY, Task, steady, steady_in_thread

STEADY = "steady"
EXERCISE = "exercise"
EXERCISED = "exercised"

_POLL = 0.02
_PAUSE = 0.1
_ANSWER = 60.0
_AT_ONCE = 16
"""The number of starts, and of jobs of each kind: twice as many as a worker of a run has slots."""
_CALLS = 4


class SteadyClient(ChaosClient):
    """Starts jobs until it is killed."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        self._orders = Path(settings["directory"]) / "gates"
        self._inside: float = settings["inside"]
        self._seed: int = settings["seed"]
        self._number = 0
        self._crowd = ThreadPoolExecutor(_AT_ONCE)

    def run(self) -> int:
        """Read the orders and follow them."""
        exercises = 0
        while True:
            if (self._orders / f"{EXERCISE}-{exercises + 1}").exists():
                exercises += 1
                self._exercise()
                self._log.add(m=EXERCISED, number=exercises)
            elif (self._orders / STEADY).exists():
                self._work()
                time.sleep(_PAUSE)
            else:
                time.sleep(_POLL)

    def _op(self, call: str = "start", *, count: int = 1, threads: bool = False, delay: float = 0.0, **task: Any) -> Op:
        self._number += 1
        ids = tuple(f"w{self._seed}-{self._number}-{index}" for index in range(count))
        job_type = steady_in_thread if threads else steady
        fields = Task(**task).model_dump(exclude_defaults=True)
        return Op(self._number, 0.0, call, ids, job_type.name, fields, delay=delay)

    def _work(self) -> None:
        """Make a start of the next kind."""
        match self._number % 7:
            case 0:
                self._make_and_wait(self._op())
            case 1:
                self._make(self._op("batch", count=3), repeated=False)
            case 2:
                self._make(self._op("transaction" if self._settings["store"] != "redis" else "start"), repeated=False)
            case 3:
                self._make(self._op(threads=True), repeated=False)
            case 4:
                self._make(self._op(links=1), repeated=False)
            case 5:
                self._make(self._op(fails=1, how="wrong"), repeated=False)
            case _:
                self._make(self._op(delay=0.3), repeated=False)

    def _make_and_wait(self, op: Op) -> None:
        """Make the starts, and wait until all their chains have closed, whatever fault occurs meanwhile."""
        self._make(op, repeated=False)
        deadline = time.monotonic() + _ANSWER
        for id in op.ids:
            while not self._is_closed(id) and time.monotonic() < deadline:
                time.sleep(_PAUSE)

    def _is_closed(self, id: str) -> bool:
        try:
            self._client.get_chain(id).wait(_ANSWER)
        except QueuertError:
            # The store is broken just now, or this takes too long: the checks will show whether the chain ends.
            return False
        return True

    def _exercise(self) -> None:
        """Use all connections of this process and of the worker, and release garbage in both."""
        for _ in range(_CALLS):
            ops = [self._op(threads=number % 2 > 0) for number in range(_AT_ONCE)]
            list(self._crowd.map(lambda op: self._make(op, repeated=False), ops))
        for threads in (False, True):
            self._make_and_wait(self._op("batch", count=_AT_ONCE, threads=threads, inside=self._inside))
        self._make_and_wait(self._op(how=TIDY))
        fill_pools_of_threads()
        tidy()


def main(settings: dict[str, Any]) -> int:
    """Run this client until it is asked to end."""
    return SteadyClient(settings).run()
