"""The kit of all pages: text made safe, numbers for people, and the one chart."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from pipeline.pages.chart import Curve, draw_chart
from pipeline.pages.render import format_bytes, format_share, render, short_number, show_hidden

KIT = '{% import "kit.html" as kit %}'


def rendered(tmp_path, template, **values):
    (tmp_path / "t.html").write_text(KIT + template)
    return render(Path(tmp_path / "t.html"), **values)


def test_numbers_are_short():
    numbers, sizes = (0, 950, 17_705, 2_522_451), (7, 12_345, 3e9, 2e12)
    assert [short_number(each) for each in numbers] == ["0", "950", "17.7k", "2.52M"]
    assert [format_bytes(each) for each in sizes] == ["7 B", "12.3 kB", "3 GB", "2 TB"]
    assert [format_share(each) for each in (0.5, 0.00123)] == ["50 %", "0.123 %"]


def test_text_is_escaped_and_what_acts_unseen_is_written_out(tmp_path):
    assert show_hidden("naïve 日本語 שלום क्‍ष 👩‍👩‍👧") == "naïve 日本語 שלום क्‍ष 👩‍👩‍👧"
    found = rendered(tmp_path, '<b title="{{ text }}">', text="a<b>&\"'\u202eab\u2028\ud800")
    assert found == '<b title="a&lt;b&gt;&amp;&#34;&#39;⟨U+202E⟩ab⟨U+2028⟩⟨U+D800⟩">'


def test_a_table_names_its_columns_in_every_cell_for_phones(tmp_path):
    found = rendered(tmp_path, '{{ kit.table(["run", "MLM loss"], [("<a>", "2.5")], 1) }}')
    assert '<td data-name="MLM loss" class="n" dir="auto">2.5</td>' in found
    assert "&lt;a&gt;" in found
    style = (Path(__file__).parents[2] / "pipeline/pages/style.css").read_text()
    phone = style[style.index("@media (max-width: 560px)") : style.index("@media print")]
    assert "table.stacked td[data-name]::before { content: attr(data-name)" in phone
    assert "table.stacked thead { display: none; }" in phone


def test_a_wide_table_scrolls_in_its_card():
    """A comparison of runs has a column for each setting that differs."""
    style = (Path(__file__).parents[2] / "pipeline/pages/style.css").read_text()
    [card] = re.findall(r"^\.card \{(.*)\}$", style, re.MULTILINE)
    assert "overflow-x: auto" in card
    assert ".card { overflow-x: visible; }" in style[style.index("@media print") :]


def test_values_of_settings_are_said_in_words(tmp_path):
    values = {"a_b": None, "c": True, "d": [1, 2], "e": [], "f": "0" * 25}
    found = rendered(tmp_path, "{{ kit.pairs(values) }}", values=values)
    assert re.findall("<td>(.*?)</td>", found) == [
        "a b", "not set", "c", "yes", "d", "1, 2", "e", "none", "f", f"<code>{'0' * 25}</code>"
    ]  # fmt: skip


def marks(svg, tag):
    return list(ET.fromstring(svg).iter(tag))


def places(line):
    return [[float(part) for part in pair.split(",")] for pair in line.get("points").split()]


def test_long_curves_are_means_with_a_band():
    points = [(float(x), float(x % 2)) for x in range(10_000)]
    svg = draw_chart("t", [Curve("run", points)], "step")
    [line], [band] = marks(svg, "polyline"), marks(svg, "polygon")
    heights = [y for _, y in places(line)]
    assert len(heights) == 120
    assert len(places(band)) == 240
    assert max(heights) - min(heights) < 3  # means of about a half
    assert len(svg) < 60_000


def test_few_points_are_drawn_as_they_are_and_told_on_hover():
    svg = draw_chart("t", [Curve("run", [(1.0, 2.0), (2.0, 4.0)])], "step", from_zero=True)
    assert marks(svg, "polygon") == []
    assert places(marks(svg, "polyline")[0]) == [[54.0, 106.0], [508.0, 10.0]]
    assert [title.text for title in marks(svg, "title")] == ["step 1\nrun: 2", "step 2\nrun: 4"]


def test_a_guess_is_a_level_line_across_the_chart_and_no_chart_by_itself():
    guess = Curve("guess", [(1.0, 2.0)], look="guess")
    svg = draw_chart("t", [Curve("run", [(0.0, 0.0), (4.0, 4.0)]), guess], "step", from_zero=True)
    [line] = ET.fromstring(svg).findall(".//*[@class='run0 guess']/polyline")
    assert places(line) == [[54, 106], [167.5, 106], [508, 106]]
    assert draw_chart("t", [guess], "step") == draw_chart("t", [], "step") == ""


def test_text_in_a_chart_is_escaped():
    svg = draw_chart("<t>", [Curve("<c>", [(0.0, 1.0)])], "<x>", borders=[(0.0, "<b>\u202e")])
    assert {"<t>", "<c>", "<x>", "<b>", "\u202e"}.isdisjoint(re.findall("<[a-z]>|\u202e", svg))
    ET.fromstring(svg)


@pytest.mark.parametrize(
    "values", [[0.0], [5.0], [1.0, 1.0], [-3.0, 2.0], [1e-12, 1e12], [1e300, 2e300], [0.0, 1e-300]]
)
def test_any_values_can_be_drawn(values):
    curve = Curve("run", [(float(place), value) for place, value in enumerate(values)])
    for from_zero in (False, True):
        svg = draw_chart("t", [curve], "step", from_zero=from_zero)
        ET.fromstring(svg)
        assert not re.search("nan|inf", svg)
