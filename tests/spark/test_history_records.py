"""What a history remembers, and what its report draws, without Spark."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from fnmatch import fnmatch
from xml.etree import ElementTree

import pytest

from queuert.spark.errors import ArchiveCountError, HistoryOutputError
from queuert.spark.history.charts import legend, lines, nice, shown
from queuert.spark.history.records import (
    Counts,
    Identity,
    Manifest,
    Step,
    Watermark,
    add_watermark,
    check_identity,
    last_watermark,
    manifests,
    new_run,
    save_manifest,
    unfinished,
)

NOW = datetime(2026, 5, 1, 12, 30, tzinfo=UTC)


class Memory:
    """Files that are none."""

    root = "memory"

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def read(self, path: str) -> str | None:
        return self.texts.get(path)

    def write(self, path: str, text: str) -> None:
        self.texts[path] = text

    def names(self, folder: str) -> list[str]:
        return sorted(
            {path.removeprefix(f"{folder}/").split("/")[0] for path in self.texts if path.startswith(f"{folder}/")}
        )

    def remove(self, pattern: str) -> None:
        self.texts = {path: text for path, text in self.texts.items() if not fnmatch(path, pattern)}


def plan(run: str, begun: datetime = NOW) -> Manifest:
    return Manifest(run=run, step=Step.PLANNED, to_tx=7, cut=NOW, begun_at=begun)


def test_a_run_stands_where_its_last_record_says() -> None:
    files = Memory()
    late, early = plan("b-late", NOW + timedelta(days=1)), plan("z-early")
    for run in (late, early):
        save_manifest(files, run)
    counts = Counts(chains=3, jobs=4, dates={"2026-04-30": 3})
    save_manifest(files, early.model_copy(update={"step": Step.WRITTEN, "written": counts, "torn": ("t",)}))
    assert [(one.run, one.step) for one in unfinished(files)] == [("z-early", Step.WRITTEN), ("b-late", Step.PLANNED)]
    assert unfinished(files)[0].written == counts
    save_manifest(
        files, unfinished(files)[0].model_copy(update={"step": Step.DONE, "kept": {"k": "busy", "t": "changed"}})
    )
    assert [one.run for one in unfinished(files)] == ["b-late"]
    assert manifests(files)[0].excluded == ["k", "t"]
    assert [path for path in files.texts if "z-early" in path] == [
        f"archive/_runs/z-early/{name}.json" for name in ("01-planned", "02-written", "06-done")
    ]


@pytest.mark.parametrize("text", ["", "{}", '{"version": 2}', "[1]"])
def test_damaged_records_are_refused(text: str) -> None:
    files = Memory()
    save_manifest(files, plan("a"))
    files.texts["archive/_runs/a/02-written.json"] = text
    with pytest.raises(HistoryOutputError, match=r"02-written\.json is damaged"):
        unfinished(files)


def test_watermarks() -> None:
    files = Memory()
    assert last_watermark(files) is None
    for tx in range(25):
        add_watermark(files, Watermark(tx=tx, closed_to=NOW, dates=("2026-05-01",)))
        found = last_watermark(files)
        assert found is not None
        assert found.tx == tx
    assert files.names("rollups/_watermarks") == [f"{at:08}.json" for at in range(16, 26)]


def test_an_output_is_that_of_one_database() -> None:
    files = Memory()
    mine = Identity(system="1", database="app", schema_name="queuert")
    check_identity(files, mine)
    check_identity(files, mine)
    found = r"schema 'other' in .* got .* with the history of 'queuert' in 'app' of 1"
    with pytest.raises(HistoryOutputError, match=found):
        check_identity(files, mine.model_copy(update={"schema_name": "other"}))


def test_run_names_are_reported_apart() -> None:
    assert new_run(NOW.astimezone(), "ab12") == "20260501T123000Z-ab12"


def test_spans_have_no_gaps() -> None:
    from queuert.spark.history.rollups import spans_of

    days = [date(2026, 4, 29), date(2026, 4, 30), date(2026, 5, 1), date(2026, 5, 3)]
    assert spans_of(days) == [(days[0], days[2]), (days[3], days[3])]
    assert spans_of([]) == []


def test_counts_must_agree() -> None:
    from queuert.spark.history.archive import check_count

    check_count("jobs", 3, 3)
    with pytest.raises(ArchiveCountError, match="3 rows of jobs were written, 2 are there"):
        check_count("jobs", 3, 2)


@pytest.mark.parametrize(
    ("value", "above"), [(0, 1), (1, 1), (1.1, 2), (3, 5), (7, 10), (0.03, 0.05), (99, 100), (101, 200), (4e-4, 5e-4)]
)
def test_scales_end_at_easy_numbers(value: float, above: float) -> None:
    assert nice(value) == pytest.approx(above)


def test_numbers_are_short() -> None:
    assert [shown(value) for value in (0, 12, 0.12345, 1234.5, 12.345)] == ["0", "12", "0.123", "1,234", "12.3"]


def test_lines_have_gaps_where_hours_are_missing() -> None:
    hours = [NOW + timedelta(hours=at) for at in (0, 1, 3)]
    text = lines(
        {"a<b": [(hour, at) for at, hour in enumerate(hours)], "none": []}, "T & C", "s", (hours[0], hours[-1])
    )
    root = ElementTree.fromstring(text)
    assert root.attrib["aria-label"] == "T & C"
    (path,) = [one.attrib["d"] for one in root.iter("path") if one.attrib["class"] == "line"]
    assert (path.count("M"), path.count("L")) == (2, 1)
    # The axis ends at 2: from the bottom at 194 to the top at 10, from the left at 70 to the right at 868.
    assert path == "M70.0 194.0L336.0 102.0M868.0 10.0"
    titles = [one.text for one in root.iter("title")]
    assert titles[-1] == "a<b, 2026-05-01 15:30Z: 2 s"
    assert "a&lt;b" in legend(["a<b"])


def test_a_chart_of_one_hour() -> None:
    root = ElementTree.fromstring(lines({"a": [(NOW, 1.0)]}, "one", "", (NOW, NOW)))
    assert len(list(root.iter("circle"))) == 1
