"""The two readers of wikitext: hard cases, everything read alike, and markup that wants to be slow."""

import html
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.storage.compression import decompress
from pipeline.wiki import wikitext
from pipeline.wiki.inline_templates import read_table, show
from pipeline.wiki.wikitext import parse_wikitext
from tests.compiled_paths import taken_path


def read_cases():
    """Name, wikitext and paragraphs of every case of the file beside this one."""
    text = Path(__file__).with_name("wikitext_cases.txt").read_text()
    for block in text.split("#### case: ")[1:]:
        name, _, rest = block.partition("\n")
        source, _, paragraphs = rest.partition("#### gives\n")
        yield pytest.param(source, paragraphs.rstrip("\n"), id=name)


def define_paragraphs(text):
    with taken_path("python", "pipeline.wiki._wikitext", wikitext, "compiled"):
        return parse_wikitext(text)


@pytest.fixture(params=["python", "compiled"])
def each_path(request):
    with taken_path(request.param, "pipeline.wiki._wikitext", wikitext, "compiled"):
        yield request.param


@pytest.fixture
def compiled_path():
    with taken_path("compiled", "pipeline.wiki._wikitext", wikitext, "compiled"):
        yield


@pytest.mark.parametrize(("source", "paragraphs"), list(read_cases()))
def test_hard_cases(source, paragraphs, each_path):
    assert parse_wikitext(source) == paragraphs


# Of broken markup, and an address with "-{" in it; variants are unknown to mwparserfromhell.
READ_OTHERWISE = {
    "references to what is no character",
    "an address with a dash and a brace",
    "templates with names of several lines",
    "templates with braces, brackets and tags in their names",
    "links with brackets and braces in their titles",
    "addresses in brackets within others",
    "tags with tags, quotes and slashes in attributes",
    "tags that are never closed",
    "tags that are closed twice",
}


def test_a_parser_by_others_reads_hard_cases_of_sound_markup_alike(each_path, monkeypatch):
    pytest.importorskip("mwparserfromhell", reason="it has no wheel for this Python")
    from tests.pipeline import wikitext_oracle

    cases = [case for case in read_cases() if not case.id.startswith("variants")]
    ours = {case.id: parse_wikitext(case.values[0]) for case in cases}
    monkeypatch.setattr(wikitext, "compiled", None)
    monkeypatch.setattr(wikitext.markup, "render", wikitext_oracle.render)
    theirs = {case.id: parse_wikitext(case.values[0]) for case in cases}
    assert {name for name in ours if ours[name] != theirs[name]} == READ_OTHERWISE
    assert len(cases) == 76


@pytest.mark.processes
def test_both_readers_read_real_pages_alike_and_leave_no_markup_of_variants(shared_data):
    """Pages in some 100 languages, 4 of them with variants, and MediaWiki's own cases."""
    num_pages = 0
    for path in sorted((shared_data / "data/wikitext_real").glob("*.jsonl.zst")):
        for line in b"".join(decompress([path.read_bytes()], str(path))).splitlines():
            page = json.loads(line)
            with taken_path("compiled", "pipeline.wiki._wikitext", wikitext, "compiled"):
                paragraphs = parse_wikitext(page["wikitext"])
            assert paragraphs == define_paragraphs(page["wikitext"]), page["source"]
            assert "-{" not in paragraphs or path.name.startswith("mediawiki"), page["source"]
            num_pages += 1
    assert num_pages == 4475


def test_hidden_prefixes(each_path):
    source = "A [[TẬP_tin : b]] [[sv:c]] [[:sv:d]] [[e:f]]."
    assert parse_wikitext(source, frozenset({"tập tin", "sv"})) == "A   sv:d e:f."


def test_items_and_arguments_behind_comments_and_templates(each_path):
    items = "{{quote|1}}\n* item\n{{a}}* item\n<!-- c -->* item\nText<ref>{{c|t=[[u]]}}</ref>."
    assert parse_wikitext(items) == "Text."
    assert parse_wikitext("A[[B|{{x}}]]c [[D|{{x}}e]]{{f\n|g=<!--}}-->{{h}}\n}}.") == "Ac e."


def test_tags_that_are_never_closed_are_not_shown(each_path):
    assert parse_wikitext("A <small>b. C</b> d.") == "A b. C d."
    assert parse_wikitext("A<ref name=b>c. D<ref>e</ref>.") == "Ac. D."
    assert parse_wikitext("A <ref>b</ref c> d</ref> e.") == "A  e."


def test_no_space_is_left_before_a_full_stop(each_path):
    assert parse_wikitext("In 1066 {{note|a}}. Then {{x}} .") == "In 1066. Then."
    assert parse_wikitext("One {{x}}.\nTwo .5 and .com ... end") == "One. Two .5 and .com ... end"
    assert parse_wikitext("A {{x}}. {{y}}. B") == "A.. B"


@pytest.mark.parametrize("end", ["", ">"])
def test_tags_without_an_end_take_linear_time(end, each_path):
    assert parse_wikitext("<nowiki " * 100_000 + end).startswith("<nowiki <nowiki")


PIECES = """
{{ }} {{{ }}} [[ ]] [ ] | {| |} <ref> </ref> <ref/> <!-- --> <nowiki> </nowiki> <li> </li> <table> </table> = == '' '
__TOC__ http:// File: .jpg &amp; &#8211; & ; : * # ( ) <br> < > / é 力 a b
{{nowrap| {{lang|fr| {{s-|V}} formatnum: 5 -{ }- zh-hans: zh-hant: -{H| ---- <ref <references> mailto: &#x &#] </nowiki
"""
pieces = st.sampled_from([*PIECES.split(), "\n", " ", "\n{|", "\n|}", "\u3000"])


@given(st.lists(pieces, max_size=60).map("".join))
def test_both_readers_read_any_markup_to_the_same_paragraphs(source):
    with taken_path("compiled", "pipeline.wiki._wikitext", wikitext, "compiled"):
        paragraphs = parse_wikitext(source)
        assert paragraphs == define_paragraphs(source)
    assert len(paragraphs.encode()) <= len(source.encode()) * 1.5
    assert all(line == line.strip() != "" for line in paragraphs.split("\n") if paragraphs)


ARGUMENTS = ["", " ", "a", "5", " 7 ", "to", "\u22123", "km", "力", "\n", "é é"]
ARGUMENTS += ["text=b", "2=c", "1=", "="]
OPENERS = ["{{", "{{a|", "[[", "[[a|", "[[File:a|", "<ref", "<ref>", "\n{|\n|", "<math>", "<!--"]
names = st.sampled_from([*read_table(), "unknown", ""])
spaces = st.sampled_from(["", " ", "\n", "a "])


@given(names, st.lists(st.sampled_from(ARGUMENTS), max_size=14), spaces)
def test_both_readers_show_the_same_of_a_template(name, values, before):
    call = "|".join([before + name, *values])
    with taken_path("compiled", "pipeline.wiki._wikitext", wikitext, "compiled"):
        assert parse_wikitext(f"A {{{{{call}}}}} b.") == define_paragraphs(f"A {{{{{call}}}}} b.")


def test_what_templates_show_fits_the_reader():
    """Its text is at most a half longer than the page, of no argument twice."""
    for name, ways in read_table().items():
        assert len(name.encode()) <= 64
        for way in ways.split("|"):
            parts = re.split(r"\{([^{}]+)\}", way)
            keys = parts[1::2]
            assert len(keys) == len(set(keys))
            values = dict.fromkeys(keys, "x") | {"0": name, "~": "5"}
            shown = "".join([*parts[::2], *map(values.get, keys)])
            call = "|".join([name, *(values[key] for key in keys if key != "0")])
            assert len(shown.encode()) <= min(100, 1.5 * len(f"{{{{{call}}}}}".encode())), name


def test_a_long_call_is_no_part_of_a_sentence(each_path):
    assert parse_wikitext(f"A {{{{nowrap|{'b' * 993}}}}} c.") == f"A {'b' * 993} c."
    assert parse_wikitext(f"A {{{{nowrap|{'b' * 994}}}}} c.") == "A  c."


# Tags that only MediaWiki's own tests define.
TEST_TAGS = re.compile(
    r"</?(?:dummyanno|ann2|spantag|tag|i18ntag|asidetag|divtag|statictag)\b", re.IGNORECASE
)
MARKUP = re.compile(
    r"\{\{|\}\}|\[\[|\]\]|\{\||\|\}|''+|</?\w[\w-]*[^<>]*>|<!--|-->|^[*#:;=|!]+|__[A-Z]+__|&\w+;",
    re.MULTILINE,
)


def test_parser_cases_leave_no_markup_that_is_not_shown(shared_data, compiled_path):
    """Of MediaWiki's own cases; wikitext_residue.txt has those that do, each with its reason."""
    path = shared_data / "data/wikitext_real/mediawiki_parser_tests.jsonl.zst"
    lines = b"".join(decompress([path.read_bytes()], str(path))).splitlines()
    cases = list(map(json.loads, lines))
    assert len(cases) == 2723
    known = Path(__file__).with_name("wikitext_residue.txt").read_text().split("\n")
    names = {line.partition(" | ")[0] for line in known if line}
    assert {case["name"] for case in cases if find_residue(case)} == names


def find_residue(case):
    """Markup that stands in the text more often than in what MediaWiki shows of it."""
    found = parse_wikitext(case["wikitext"])
    if case["html"] is None:
        return set()
    shown = html.unescape(re.sub("<[^<>]*>", "", case["html"]))
    left = {mark for mark in MARKUP.findall(found) if not TEST_TAGS.match(mark)}
    return {mark for mark in left if shown.count(mark) < found.count(mark)}


def test_templates_by_hand():
    calls = [" formatnum:5|6", "Lang |fr|mot", "LANG|fr|mot", "convert|5|x|7|cm|in", "nihongo|a|b"]
    assert list(map(show, calls)) == ["5", "mot", "", "5 x 7 cm", "a (b)"]


def test_letters_of_an_address_are_not_taken_back_twice(each_path):
    assert parse_wikitext("A 力力 mailto:news:... b.") == "A 力力 :... b."


@pytest.mark.parametrize("opener", OPENERS)
def test_deep_markup_is_text(opener, each_path):
    """200,000 openers: no recursion, and nothing is lost but what is never shown."""
    assert parse_wikitext(opener * 200_000 + "\n\nEnd.").endswith("End.")


def test_what_is_closed_is_closed_at_any_depth(each_path):
    assert parse_wikitext("{{a|" * 90 + "b" + "}}" * 90 + "c") == "c"
    assert parse_wikitext("[[a|" * 90 + "b" + "]]" * 90) == "b"
