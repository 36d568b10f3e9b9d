"""Phases on each store: S05 to S11 of the design that they follow."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from typing import Any

import pytest

from queuert import Attempt, JobStatus, JobType, JobTypes, RetryPolicy
from queuert.event_log import EventKind
from queuert.observability.events import PhaseCompleted, PhaseFailed, PhaseStarted
from queuert.phases import JobPhase, PhaseStatus
from queuert.state.steps import NewStep
from queuert.worker.phases import PhaseTracker
from tests.behaviours.conftest import NewHarness
from tests.support.harness import Harness
from tests.support.waiting import WAIT

video = JobType("video", input=str, output=str, phases={"download": 3, "transcode": 6, "upload": 1})
TWICE = RetryPolicy(max_attempts=2, initial_delay=0.0, jitter=0.0)


@pytest.fixture
def harness(new_harness: NewHarness) -> Harness:
    return new_harness(JobTypes(video))


class Work:
    """What the phases do: the first attempt to transcode fails half way, after somebody has looked."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.looked = threading.Event()

    def download(self, url: str) -> dict[str, str]:
        self.done.append(f"download {url}")
        return {"file": f"{url}.raw"}

    def transcode(self, attempt: Attempt[str, str], file: dict[str, str]) -> str:
        self.done.append(f"transcode {file['file']}")
        attempt.record_progress(1 if attempt.number == 1 else 0, 2, message="frames")
        if attempt.number == 1:
            assert self.looked.wait(WAIT)
            raise ValueError("a broken frame")
        return f"{file['file']}.mp4"

    async def transcode_soon(self, attempt: Attempt[str, str], file: dict[str, str]) -> str:
        return await asyncio.to_thread(self.transcode, attempt, file)

    def upload(self, file: str) -> str:
        self.done.append(f"upload {file}")
        return f"https://{file}"


def shown(phases: list[JobPhase]) -> list[tuple[str, str, int | None]]:
    return [(one.name, one.status.value, one.attempt) for one in phases]


@pytest.mark.parametrize("mode", ["coroutine", "thread"])
async def test_a_retry_begins_with_the_phase_that_failed(harness: Harness, mode: str) -> None:
    """S05, S06, S07, S08, S09, S11, S16, S17: phases in order, kept results, progress that never decreases."""
    work = Work()

    async def in_loop(attempt: Attempt[str, str]) -> str:
        file = await attempt.phase("download", work.download, attempt.input)
        small = await attempt.phase("transcode", work.transcode_soon, attempt, file)
        return await attempt.phase("upload", work.upload, small)

    def in_thread(attempt: Attempt[str, str]) -> str:
        file = attempt.phase_sync("download", work.download, attempt.input)
        small = attempt.phase_sync("transcode", work.transcode, attempt, file)
        return attempt.phase_sync("upload", work.upload, small)

    harness.handles(video, in_loop if mode == "coroutine" else in_thread, retry=TWICE)
    chain = await harness.client.start_chain(video, "a")
    assert shown(await chain.phases()) == [(name, "pending", None) for name in video.phases]
    async with harness.worker():
        await harness.log.wait_for(PhaseStarted, times=2)
        await _half_way(harness, chain.id)
        running = await harness.client.get_phases(chain.id)
        assert shown(running) == [("download", "completed", 1), ("transcode", "active", 1), ("upload", "pending", None)]
        assert running[1].progress is not None
        assert running[1].progress.message == "frames"
        work.looked.set()
        assert await chain.result(WAIT) == "https://a.raw.mp4"
    assert work.done == ["download a", "transcode a.raw", "transcode a.raw", "upload a.raw.mp4"]
    done = await chain.phases()
    assert shown(done) == [("download", "completed", 1), ("transcode", "completed", 2), ("upload", "completed", 2)]
    assert done[0].result == {"file": "a.raw"}
    times = [time for one in done for time in (one.started_at, one.completed_at) if time is not None]
    assert times == sorted(times)
    assert len(times) == 6
    [failed] = harness.log.of(PhaseFailed)
    assert (failed.phase, failed.number, failed.count, failed.error.message) == ("transcode", 2, 3, "a broken frame")
    assert [one.phase for one in harness.log.of(PhaseCompleted)] == ["download", "transcode", "upload"]
    await _check_events(harness, chain.id)


async def _half_way(harness: Harness, id: str) -> None:
    """Wait until the progress of the first attempt is written, for which nobody sends a signal."""
    async with aclosing((await harness.client.get_chain(id)).watch(interval=0.05, timeout=WAIT)) as states:
        async for state in states:
            if state.progress is not None and state.progress.fraction == pytest.approx(0.6):
                return


async def _check_events(harness: Harness, id: str) -> None:
    events = [one for one in await harness.client.list_events(chain=id, oldest_first=True) if one.progress is not None]
    shown = [(one.kind, one.progress.phase.name, one.attempt) for one in events if one.progress and one.progress.phase]
    assert [one for one in shown if one[0] != EventKind.PROGRESSED] == [
        ("phase_started", "download", 1),
        ("phase_completed", "download", 1),
        ("phase_started", "transcode", 1),
        ("phase_started", "transcode", 2),
        ("phase_completed", "transcode", 2),
        ("phase_started", "upload", 2),
        ("phase_completed", "upload", 2),
    ]
    overall = [one.progress.fraction for one in events if one.progress is not None]
    assert overall == sorted(overall)  # type: ignore[type-var]
    assert overall[-1] == 1.0
    # The second attempt has to catch up with the first.
    assert overall[[one[0:3] for one in shown].index(("phase_started", "transcode", 2))] == pytest.approx(0.6)


async def test_a_failed_chain_that_is_retried_goes_on_and_keeps_its_failures(harness: Harness) -> None:
    """S03, S08, S14: a retry by hand runs what had failed; the phase shows the error until then, the job all."""
    broken = [True]

    async def handler(attempt: Attempt[str, str]) -> str:
        await attempt.phase("download", _nothing)
        await attempt.phase("upload", _broken if broken else _nothing)
        return "done"

    harness.handles(video, handler, retry=RetryPolicy(max_attempts=1))
    async with harness.worker():
        chain = await (await harness.client.start_chain(video, "a")).wait(WAIT)
        download, transcode, upload = await chain.phases()
        assert (download.status, transcode.status, upload.status) == (
            PhaseStatus.COMPLETED,
            PhaseStatus.SKIPPED,
            PhaseStatus.FAILED,
        )
        assert upload.error is not None
        assert upload.error.message == "out of order"
        broken.clear()
        await harness.client.retry_chain(chain)
        assert await chain.result(WAIT) == "done"
    assert shown(await chain.phases()) == [
        ("download", "completed", 1),
        ("transcode", "skipped", None),
        ("upload", "completed", 2),
    ]
    job = await harness.job(chain.id)
    assert [one.error.message for one in job.failures] == ["out of order"]
    assert (job.status, job.progress and job.progress.fraction) == (JobStatus.COMPLETED, 1.0)


async def test_a_phase_that_a_dead_worker_had_begun_is_begun_again(harness: Harness) -> None:
    """S09: what the dead worker had completed is kept, and where it was is seen."""
    store = harness.state.async_store()
    await store.open()
    chain = await harness.client.start_chain(video, "a")
    dead = await harness.claim_and_die(video)
    tracker = PhaseTracker(dead, video)
    begun = await store.begin_phase(dead.lease, tracker.begin("download"))
    await store.record_step(
        dead.lease, NewStep(1, "download", 1, '"kept"', started_at=begun, progress=tracker.complete())
    )
    await store.begin_phase(dead.lease, tracker.begin("transcode"))
    await store.aclose()
    got: list[Any] = []

    async def handler(attempt: Attempt[str, str]) -> str:
        got.append(await attempt.phase("download", _nothing, returns=str))
        await attempt.phase("transcode", _nothing)
        return "done"

    harness.handles(video, handler)
    async with harness.worker():
        assert await chain.result(WAIT) == "done"
    assert got == ["kept"]
    assert shown(await chain.phases()) == [
        ("download", "completed", 1),
        ("transcode", "completed", 2),
        ("upload", "skipped", None),
    ]


async def test_a_cancelled_chain_stops_its_phase(harness: Harness) -> None:
    """S10: the function of the phase is cancelled, nothing of it is recorded, and the phase shows it."""

    async def for_ever() -> None:
        await asyncio.Event().wait()

    async def handler(attempt: Attempt[str, str]) -> str:
        await attempt.phase("download", for_ever)
        return ""

    harness.handles(video, handler)
    chain = await harness.client.start_chain(video, "a")
    async with harness.worker():
        await harness.log.wait_for(PhaseStarted)
        await chain.cancel()
    assert shown(await chain.phases()) == [
        ("download", "cancelled", 1),
        ("transcode", "pending", None),
        ("upload", "pending", None),
    ]
    assert not harness.log.of(PhaseCompleted)
    assert not harness.log.of(PhaseFailed)


def _nothing() -> None:
    """Do nothing."""


def _broken() -> None:
    raise ValueError("out of order")
