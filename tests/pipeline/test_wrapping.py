"""Paragraphs of plain text in each of its three layouts, from literals and from whole books."""

import textwrap

import fsspec
import pytest
import zstandard

from pipeline.documents.parts import find_inputs, plan_parts
from pipeline.documents.read import read_part
from pipeline.documents.wrapping import detect_wrapping, unwrap

PARAGRAPHS = [
    " ".join(f"{word} number {i} of the paragraph follows" for i in range(9)) + " and ends."
    for word in ("word", "term", "name", "clause", "phrase")
]
WRAPPED = [textwrap.fill(paragraph, 70) for paragraph in PARAGRAPHS]
BLANK_LINES, HARD, NONE = "\n\n".join(WRAPPED), "\n".join(WRAPPED), "\n\n".join(PARAGRAPHS)
HARD_BOOKS = "Villette Almayer Nostromo Bleak Expectations Oliver Adam Madding Ambassadors Phineas"
BLANK_LINE_BOOKS = "Satan Mines She Tess Roderick Kenelm Roots Wood Ashe Basil"


def kind(text):
    return detect_wrapping([line.strip() for line in text.split("\n")])


def test_literals():
    found = unwrap("One\nline.\n\n\nTwo well-\nknown --\nlines.\n", "blank-lines")
    assert found == "One line.\nTwo well-known -- lines."
    found = unwrap("A full line of text\nends here.\nNew one is a longer\nline", "hard")
    assert found == "A full line of text ends here.\nNew one is a longer line"
    assert unwrap("One\n\nline.\n", "none") == "One\n\nline.\n"
    for wrapping in ("auto", "none", "blank-lines", "hard"):
        assert unwrap("", wrapping) == ""


def test_auto_finds_every_layout_and_the_paragraphs():
    assert [kind(text) for text in (BLANK_LINES, HARD, NONE)] == ["blank-lines", "hard", "none"]
    for text in (BLANK_LINES, HARD, BLANK_LINES.replace("\n", "\r\n")):
        assert unwrap(text, "auto").split("\n") == PARAGRAPHS
    assert unwrap(NONE, "auto") == NONE


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(WRAPPED[:2]),  # too short to tell
        "\n".join(["A short line.", "And one that is of a rather different length.", "Tiny."] * 20),
        "\n".join(["Each line is a sentence of its own, and they differ.", "This one has a good many more words in it"
                   " than the ones beside it."] * 30 + ["x" * 101]),
        "\n".join(["A list of names"] * 40),
    ],
)  # fmt: skip
def test_auto_leaves_other_lines_alone(text):
    assert unwrap(text, "auto") == text


def test_all_books(shared_data):
    found = {}
    for path in sorted((shared_data / "data/books_en").glob("*.zst")):
        text = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read().decode()
        name = path.name.split("_")[1]
        found.setdefault(kind(text), set()).add(name)
        paragraphs = [line for line in unwrap(text, "auto").split("\n") if line.strip()]
        assert 80 < len(text) / len(paragraphs) < 1000, name
        assert max(map(len, paragraphs)) < 15_000, name
        assert "".join("".join(paragraphs).split()) == "".join(text.split())
    assert found["hard"] == set(HARD_BOOKS.split())
    assert found["blank-lines"] == set(BLANK_LINE_BOOKS.split())
    assert len(found["none"]) == 17


def test_it_reaches_the_documents():
    fsspec.filesystem("memory").pipe("/wrapped/f.txt", HARD.encode())

    files, paragraphs = find_inputs(["memory://wrapped/f.txt"]), "\n".join(PARAGRAPHS)
    for wrapping, text in (((), paragraphs), (("auto",), paragraphs), (("none",), HARD)):
        [part] = plan_parts(files, "text", 2**20, None, *wrapping)
        assert [document.text for document in read_part(part)] == [text]
