"""Charts: positions computed by hand, gaps left where nothing was measured, XML that parses."""

import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
