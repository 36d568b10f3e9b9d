"""Medians, spreads, ratios, targets."""

from __future__ import annotations

import pytest

from benchmarks.arithmetic import Spread, paired_ratios, shown, spread
from benchmarks.targets import (
    Place,
    Target,
    Verdict,
    across,
    between,
    figure,
    to,
    to_best_peer,
    to_label,
    to_sparest_peer,
    verdicts,
)
from tests.benchmarks.building import BARE, OURS, PEER, outcome, series


def test_a_spread_is_the_median_and_the_extremes() -> None:
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert spread([1.0, 2.0]) == Spread(1.5, 1.0, 2.0)
    assert spread([]) is None


def test_ratios_are_of_the_rounds_that_both_have() -> None:
    assert paired_ratios({0: 10.0, 1: 30.0, 3: 1.0}, {0: 5.0, 1: 10.0, 2: 7.0}) == [2.0, 3.0]


def test_a_zero_has_no_ratio() -> None:
    assert paired_ratios({0: 10.0, 1: 30.0}, {0: 0.0, 1: 10.0}) == [3.0]


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.01234, "0.0123"), (1.0, "1"), (12.34, "12.3"), (123.4, "123"), (12345.6, "12,346")]
)
def test_numbers_are_shown_with_three_digits(value: float, text: str) -> None:
    assert shown(value) == text


def test_a_ratio_says_how_many_times_as_good_ours_is() -> None:
    ours, theirs = series(OURS, 100.0, 300.0), series(PEER, 50.0, 100.0)
    assert outcome(ours, theirs).ratio(ours, theirs) == Spread(2.5, 2.0, 3.0)


def test_where_less_is_better_the_ratio_is_turned_round() -> None:
    ours, theirs = series(OURS, 2.0), series(PEER, 6.0)
    assert outcome(ours, theirs, more_is_better=False).ratio(ours, theirs) == Spread(3.0, 3.0, 3.0)


def test_targets_are_judged_by_the_ratios() -> None:
    drain = outcome(series(OURS, 100.0), series(BARE, 125.0), series(PEER, 50.0), series(PEER, 80.0, label="best"))
    judged = verdicts(
        [drain],
        [
            Target("ceiling", to("drain", "bare"), least=0.9),
            Target("rival", to_best_peer("drain"), least=1.0),
            Target("one of its entries", to_label("drain", "rival"), least=1.5),
            Target("processor", figure("drain", "cpu_us"), most=5_000),
            Target("to itself", across(("drain", "best"), ("drain", "bare")), least=0.5),
        ],
    )
    assert [(one.title, one.value and round(one.value.median, 2), one.reached) for one in judged] == [
        ("ceiling", 0.8, False),
        ("rival", 1.25, True),
        ("one of its entries", 2.0, True),
        ("processor", 10_000.0, False),
        ("to itself", 0.64, True),
    ]


def test_a_verdict_has_the_spread_of_the_rounds_and_its_median_counts() -> None:
    drain = outcome(series(OURS, 100.0, 300.0, 200.0), series(BARE, 200.0, 200.0, 200.0))
    [judged] = verdicts([drain], [Target("ceiling", to("drain", "bare"), least=1.0)])
    assert (judged.value, judged.reached) == (Spread(1.0, 0.5, 1.5), True)


def test_the_sparest_peer_is_found_by_another_number() -> None:
    drain = outcome(series(OURS, 100.0), series(PEER, 400.0, label="quick"), series(PEER, 50.0, label="slow"))
    measure = to_sparest_peer("drain", "cpu_us")
    [judged] = verdicts([drain], [Target("processor", measure, least=1.0)])
    assert judged.value is not None
    assert judged.value.median == pytest.approx(0.25)
    assert verdicts([drain], [Target("none", to_sparest_peer("drain", "cpu_us", without=["rival"]), least=1.0)]) == [
        Verdict("none", None, ">= 1", reached=False)
    ]


def test_entries_are_found_by_their_options() -> None:
    drain = outcome(
        *(series(OURS, rate, label=f"{rows}", options={"rows": rows}) for rows, rate in ((10, 50.0), (1000, 40.0)))
    )
    measure = between(Place("drain", {}, greatest="rows"), Place("drain", {"rows": 10}), "rate")
    [judged] = verdicts([drain], [Target("the most to the fewest", measure, least=0.9)])
    assert judged.value == Spread(0.8, 0.8, 0.8)
    assert not judged.reached


def test_what_nobody_requested_for_is_not_judged_and_what_failed_was_not_reached() -> None:
    failed = outcome(series(OURS, 100.0), series(PEER, error="it broke"))
    targets = [Target("rival", to_best_peer("drain"), least=1.0), Target("other", to("elsewhere", "bare"), least=1.0)]
    assert verdicts([failed], targets) == [Verdict("rival", None, ">= 1", reached=False)]
