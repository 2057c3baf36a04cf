"""Cleaning by explicit lists, against a slow statement of the same rules; ids of known texts."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.text import cleaning
from pipeline.text.cleaning import clean_text, document_id
from tests.compiled_paths import taken_path

SPACES = "\t \xa0\u1680\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
LINE_ENDS = "\n\r\v\f\x85\u2028\u2029"


@pytest.fixture(scope="module", params=["python", "compiled"], autouse=True)
def each_path(request):
    """Every test here holds both paths."""
    with taken_path(request.param, "tokenizer._matcher", cleaning, "compiled"):
        yield request.param


def slow_clean(text: str) -> str:
    dropped = f"(?![{SPACES}{LINE_ENDS}])[\0-\x1f\x7f-\x9f\ufeff\ufffd\ud800-\udfff]"
    lines = re.split(f"[{LINE_ENDS}]", re.sub(dropped, "", text))
    return "\n".join(filter(None, (re.sub(f"[{SPACES}]+", " ", line).strip(" ") for line in lines)))


@pytest.mark.parametrize(
    ("raw", "cleaned"),
    [
        ("", ""),
        (" \r\n\t\n", ""),
        ("one  two\t three", "one two three"),
        ("a\r\nb\rc\n\n\nd", "a\nb\nc\nd"),
        ("  padded line \n \u00a0 next\u3000", "padded line\nnext"),
        ("form\ffeed\vand\u2028new\u2029lines\x85end", "form\nfeed\nand\nnew\nlines\nend"),
        ("nul\0 bell\a del\x7f c1\x9f bom\ufeff bad\ufffd", "nul bell del c1 bom bad"),
        ("half \ud800 of a pair", "half of a pair"),
        ("join\u200d, soft\u00adhyphen, \ue000 stay", "join\u200d, soft\u00adhyphen, \ue000 stay"),
        ("力加勝北\u3000区。", "力加勝北 区。"),
        ("à côté, “quoted”", "à côté, “quoted”"),
        (b"bytes\r\n\xc2\xa0too", "bytes\ntoo"),
        pytest.param(" \n" * 10**6 + "x" + " " * 10**6 + "y", "x y", id="linear time"),
    ],
)
def test_examples(raw, cleaned):
    assert clean_text(raw) == cleaned


LISTED = SPACES + LINE_ENDS + "\0\x80\x9f\ufeff\ufffd\u200b\u0300é力"


@given(st.text(st.one_of(st.sampled_from(LISTED), st.characters()), max_size=60))
def test_equals_the_slow_rules_and_cleaning_twice_changes_nothing(text):
    cleaned = clean_text(text)
    assert cleaned == slow_clean(text) == clean_text(cleaned)


def test_every_character_of_the_first_planes(each_path):
    for start in range(0, 0x20000, 1 << 12):
        text = "".join(f"a{chr(code)}b {chr(code)} " for code in range(start, start + (1 << 12)))
        assert clean_text(text) == slow_clean(text), f"from {start:#x}"


def test_tables_of_another_size_are_refused(each_path):
    if each_path == "compiled":
        kinds, plain = cleaning._OF_PROSE.kinds, cleaning._OF_PROSE.plain
        for tables in ((kinds, plain[1:]), (kinds[1:], plain)):
            with pytest.raises(ValueError, match="65,536 characters and 256 bytes"):
                cleaning.compiled.clean(b"a", *tables)


def test_every_listed_space_is_one_to_unicode():
    """The list is ours; today's Unicode agrees that nothing is missing."""
    spaces = {c for c in map(chr, range(0x110000)) if unicodedata.category(c) == "Zs"}
    assert spaces == set(SPACES) - {"\t"}


def test_bytes_must_be_utf8():
    with pytest.raises(UnicodeDecodeError):
        clean_text(b"caf\xe9")


def test_the_id_is_blake2b_of_the_text():
    assert document_id("").hex() == "cae66941d9efbd404e4d88758ea67670"
    assert document_id("a") != document_id("b")
    assert len(document_id("力")) == 16
