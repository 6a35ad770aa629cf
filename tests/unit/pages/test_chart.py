"""Charts: what is drawn is where its number says."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import marks_of, places_of
from jdpack.pages import chart
from jdpack.pages.chart import Axis, Lane, Point
from unit.pages.test_billboard_page import points_of

LOW, HIGH = 8.0, 352.0  # the ends of lanes


def spot(value, axis):
    part = (min(max(value, axis.low), axis.high) - axis.low) / (axis.high - axis.low)
    return LOW + (HIGH - LOW) * part


numbers = st.floats(-10, 10)
lanes = st.lists(
    st.lists(
        st.tuples(numbers, numbers, numbers, st.sampled_from(["price", "load", "bad"])), max_size=3
    ),
    max_size=5,
)


@given(lanes, st.floats(-5, -1), st.floats(1, 5))
def test_marks_of_lanes_are_where_their_numbers_say(rows, low, high):
    axis = Axis(low, high, ((0.0, "zero"),))
    given = [
        Lane(f"lane {i}", [Point(v, kind, min(a, b), max(a, b)) for v, a, b, kind in row], "text")
        for i, row in enumerate(rows)
    ]
    svg = chart.lane_chart("words", given, axis, mark=0.5)
    found = marks_of(svg)
    expected = [(kind, v) for row in rows for v, _, _, kind in row]
    assert [kind for kind, *_ in found] == [kind for kind, _ in expected]
    for (_, x, _), (_, value) in zip(found, expected, strict=True):
        assert x == pytest.approx(spot(value, axis), abs=0.06)
    reaches = re.findall(r'class="line \w+" d="M([\d.]+) [\d.]+H([\d.]+)"', svg)
    ends = [(min(a, b), max(a, b)) for row in rows for _, a, b, _ in row]
    for reach, pair in zip(reaches, ends, strict=True):
        assert [float(x) for x in reach] == pytest.approx([spot(v, axis) for v in pair], abs=0.06)
    for kind, value in (("grid", 0.0), ("mark", 0.5)):
        assert all(x == pytest.approx(spot(value, axis), abs=0.06) for x in places_of(svg, kind))
        assert len(places_of(svg, kind)) == len(rows)
    tall = int(re.search(r'viewBox="0 0 360 (\d+)"', svg)[1])
    heights = [y for *_, y in found]
    assert heights == sorted(heights) and all(0 < y < tall - 20 for y in heights)


def test_names_of_lanes_are_names_and_fit():
    harm = '</text><script>"&'
    svg = chart.lane_chart(harm, [Lane(harm, []), Lane("x" * 300, [], "1.0")], Axis(0.0, 1.0, ()))
    assert "<script" not in svg and svg.count("&lt;script&gt;") == 2
    assert f">{'x' * 46}…<" in svg


@given(st.floats(-3, 3), st.floats(-3, 3), st.lists(st.floats(-3, 3), min_size=1, max_size=9))
def test_a_line_on_an_axis_of_its_own_and_a_point_on_it(x, y, xs):
    axis, across = Axis(-1.0, 1.0, ((0.0, "middle"),)), Axis(-2.0, 2.0, ((-2.0, "a"), (1.0, "b")))
    xs = sorted(xs)
    svg = chart.line_chart(
        "words", "price", xs, [v / 3 for v in xs], axis, across=across, point=(x, y)
    )
    points = points_of(svg, "line")
    for (px, py), v in zip(points, xs, strict=len(xs) > 1):
        assert abs(px - 250 * (min(max(v, -2.0), 2.0) + 2.0)) <= 0.5
        assert abs(py - 200 * (1.0 - v / 3)) <= 0.5
    ((kind, px, py),) = marks_of(svg)
    assert kind == "price"
    assert px == pytest.approx(46 + 308 * (min(max(x, -2.0), 2.0) + 2.0) / 4, abs=0.3)
    assert py == pytest.approx(8 + 104 * (1.0 - min(max(y, -1.0), 1.0)) / 2, abs=0.3)
    assert '<path class="grid" d="M0 0V400"/><path class="grid" d="M750 0V400"/>' in svg
    assert re.search(r'<text x="46" y="127">a</text>', svg)
    assert re.search(r'<text x="277" y="127" text-anchor="middle">b</text>', svg)


@given(st.integers(-300, 250), st.integers(1, 50), st.integers(2, 8))
def test_powers_of_ten_are_few(low, width, most):
    found = chart.powers(low, low + width, most)
    assert 1 <= len(found) <= most and found[-1][0] == low + width
    for exponent, text in found:
        assert low <= exponent and math.log10(float(text)) == pytest.approx(exponent)
