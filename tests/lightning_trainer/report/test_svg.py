"""Charts: positions computed by hand, gaps left where nothing was measured, XML that parses."""

import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.report.curves import Curve, curve_chart, ticks_between
from lightning_trainer.report.svg import Scale, Series, interval_chart, line_chart, nice_ticks, stacked_bars


def test_a_scale_turns_round():
    y = Scale(0, 1, 100, 0)
    assert (y(0), y(0.25), y(1)) == (100, 75, 0)


@pytest.mark.parametrize(
    ("high", "ticks"),
    [(21.3, [0, 5, 10, 15, 20, 25]), (5, [0, 1, 2, 3, 4, 5]), (0.07, [0, 0.02, 0.04, 0.06, 0.08]), (0, [0, 1])],
)
def test_ticks_are_round_and_reach_the_highest_value(high, ticks):
    assert nice_ticks(high) == ticks


@given(st.floats(1e-6, 1e9))
def test_ticks_always_cover_with_few_lines(high):
    ticks = nice_ticks(high)
    assert ticks[0] == 0
    assert ticks[-1] >= high * (1 - 1e-6)
    assert 2 <= len(ticks) <= 7


def test_a_missing_value_breaks_the_line():
    chart = line_chart([1, 2, 3, 4, 5], [0.1, 0.2, None, 0.4, 0.5], width=400, height=200, titles=["t"] * 5, label="l")
    root = ET.fromstring(chart)
    lines = [e.get("points", "").split() for e in root.iter("polyline")]
    assert [len(points) for points in lines] == [2, 2]
    assert len(list(root.iter("circle"))) == 4


def test_one_step_is_a_dot():
    chart = line_chart([7], [0.5], width=400, height=200, titles=["only"], label="l")
    assert chart.count("<circle") == 1
    assert "<polyline" not in chart
    assert ">7<" in chart


def test_stacks_stand_on_each_other():
    series = [Series("a", "stage-a", [2.0]), Series("b", "stage-b", [3.0])]
    chart = stacked_bars([1], series, width=400, height=250, titles=["t"], unit="s", label="l")
    a, b = (e for e in ET.fromstring(chart).iter("rect") if (e.get("class") or "").startswith("stage"))
    bottom_of_b = float(b.get("y", "")) + float(b.get("height", ""))
    assert bottom_of_b == pytest.approx(float(a.get("y", "")), abs=0.11)
    assert float(b.get("height", "")) / float(a.get("height", "")) == pytest.approx(1.5, abs=0.01)


def test_intervals_are_drawn_where_they_are():
    chart = interval_chart([("before", "before", 0.5, (0.25, 0.75))], width=486, label="l")
    # 64 px for names, 22 px on the right: 400 px from 0 to 100 %.
    assert 'd="M164.0 ' in chart
    assert "H364.0" in chart
    assert re.search(r'class="share" x="64.0" y="[\d.]+" width="200.0"', chart)


def test_text_is_escaped():
    chart = line_chart([1], [0.5], width=400, height=200, titles=["<b>&"], label='"<')
    ET.fromstring(chart)
    assert "<b>" not in chart


@pytest.mark.parametrize(
    "values", [[1e-13], [1e-15, -3e-15], [5e-12, 6e-12], [3.0, 3.0 + 1e-13], [0.0, 0.0], [1e15, 1e20]]
)
def test_values_of_any_size_are_drawn_between_ticks_that_differ(values):
    ticks = ticks_between(min(values), max(values))
    assert ticks == sorted(set(ticks))
    assert ticks[0] <= min(values)
    assert ticks[-1] >= max(values)
    steps = list(range(1, len(values) + 1))
    ET.fromstring(curve_chart([Curve("kl", steps, values)], width=360, height=170, label="l"))


def _drawn(xs: list[int], ys: list[float | None]) -> ET.Element:
    return ET.fromstring(curve_chart([Curve("a", xs, ys)], width=360, height=170, label="l"))


def test_a_point_between_gaps_is_seen_in_a_long_curve_too():
    root = _drawn(list(range(300)), [None if step % 2 else 0.5 for step in range(300)])
    assert len(list(root.iter("circle"))) == 150


def test_of_steps_that_lie_far_apart_each_has_a_column_to_point_at_and_the_axis_round_numbers():
    root = _drawn([round(1 + index * 19_999 / 99) for index in range(100)], [0.5] * 100)
    columns = [(float(e.get("x", "")), float(e.get("width", ""))) for e in root.iter("rect") if e.get("class") == "hit"]
    assert min(width for _, width in columns) > 1
    assert columns[-1][0] + columns[-1][1] == pytest.approx(360 - 12, abs=0.2)
    labels = [e for e in root.iter("text") if e.get("text-anchor") == "middle" and e.text != "step"]
    assert [int(e.text or "") for e in labels] == [5000, 10_000, 15_000, 20_000]
    assert float(labels[-1].get("x", "")) <= 360 - 5 * 8 / 2, "all of its digits are inside the drawing"


def test_ticks_of_small_values_are_short_enough_for_their_place():
    root = _drawn([1, 2], [-0.00075, 0.00025])
    assert [e.text for e in root.iter("text") if e.get("text-anchor") == "end"] == ["-0.001", "-5e-4", "0", "5e-4"]
