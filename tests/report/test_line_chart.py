"""Charts with values from elsewhere beside ours."""

from __future__ import annotations

import re

import pytest

from kinfolk.report.dot_chart import dots
from kinfolk.report.line_chart import COLOURS, Axes, Others, chart, panels

pytestmark = pytest.mark.fast
OURS = {"a": [(1.0, 0.5, 0.1), (100.0, 0.7, 0.1)], "b": [(1.0, 0.2, 0.0), (100.0, 0.3, 0.0)]}
AXES = Axes("epsilon", log_across=True, names={100.0: "no privacy"}, spread="standard error")


def test_values_from_elsewhere_are_dashed_and_hollow_in_the_colour_of_ours() -> None:
    svg = chart("t", OURS, "accuracy", AXES, [Others("paper: b", "b", [(1.0, 0.9), (100.0, 0.95)])])
    assert re.findall(r'<polyline[^>]*stroke="(#\w+)"[^>]*stroke-dasharray', svg) == [COLOURS[1]]
    assert svg.count(f'fill="white" stroke="{COLOURS[1]}"') == 3  # two points and the key
    assert "paper: b: no privacy, 0.95" in svg


def test_values_that_belong_to_no_line_have_a_colour_of_their_own_and_need_no_line_through_them() -> None:
    svg = chart("t", OURS, "accuracy", AXES, [Others("paper: c", "c", [(1.0, 0.9)], joined=False)])
    assert f'stroke="{COLOURS[2]}"' in svg
    assert "dasharray" not in svg


def test_places_have_names_and_whiskers_say_what_they_are() -> None:
    svg = chart("t", OURS, "accuracy", AXES)
    assert ">no privacy<" in svg
    assert ">100<" not in svg
    assert ": no privacy, " in svg
    assert ": 100, " not in svg
    assert "± 1 standard error over seeds" in svg


def test_panels_lie_one_below_the_other() -> None:
    svg = panels("t", {"loss": OURS, "accuracy": OURS}, AXES, {"loss": [Others("paper: a", "a", [(1.0, 0.9)])]})
    heights = [float(n) for n in re.findall(r'<g transform="translate\(0 (\d+)\)"', svg)]
    assert heights[0] == 0 < heights[1]
    assert svg.count("paper: a<") == 2  # words and title of the key, in one panel only


def test_dots_show_both_and_rows_that_only_the_paper_has() -> None:
    svg = dots("t", {"a": (0.5, 0.1), "b": (0.2, 0.0)}, "accuracy", {"a": 0.6, "c": 0.9})
    assert [name for name in "abc" if f">{name}<" in svg] == ["a", "b", "c"]
    assert svg.count('fill="none"') == 2
    assert "rings: the paper" in svg
