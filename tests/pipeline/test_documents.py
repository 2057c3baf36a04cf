"""Every line layout from literal bytes: texts, places, and errors that name file and line."""

import fsspec
import pytest
import zstandard

from pipeline.documents import Document
from pipeline.documents import files as document_files
from pipeline.documents.files import FileRange
from pipeline.documents.formats import FORMATS
from pipeline.documents.jsonl import split_jsonl
from pipeline.documents.lines import split_lines
from pipeline.documents.parts import Part, find_inputs, plan_parts
from pipeline.documents.read import read_part
from pipeline.documents.records import Format


def read(
    data: bytes, text_format: str, name: str = "f", part_bytes: int = 2**30, **options
) -> list[Document]:
    fsspec.filesystem("memory").pipe(f"/read/{name}", data)
    parts = plan_parts(find_inputs([f"memory://read/{name}"]), text_format, part_bytes)
    return [document for part in parts for document in read_part(part, **options)]


def texts(data: bytes, text_format: str, **options) -> list[str]:
    return [document.text for document in read(data, text_format, **options)]


PAGES = (
    b'{"index":{"_type":"_doc","_id":"12"}}\n{"title":"A","namespace":0,"text":"One. Two."}\n'
    b'{"index": {"_id": "13"}}\n{"text":"{\\"index\\": {}}"}\n{"index":{"_id":"14"}}\n'
)
EXTRACTED = (
    b'<doc id="1" url="u" title="A &quot;B&quot;">\nA "B"\n\nBody.\n\n</doc>\n\n'
    b'<doc id="2" url="u" title="The "C"">\nThe "C"\n</doc>\n'
    b'<doc id="3" title="D">\nNo title line.\n</doc>\n<doc id="4">\nE\n</doc>\n'
)
LINES = '\ufeff{"text": "One\\nline", "id": 1}\n\n{"text": ""}\r\n{"text": "\\u00e9"}'.encode()
BLOCKS = b"\n\nOne.\nStill one.\n \t\r\n\nTwo.\r\n\nThree."


@pytest.mark.parametrize(
    ("text_format", "data", "expected"),
    [
        ("text", b"\xef\xbb\xbfOne.\r\n\nTwo.\n", {"": "One.\r\n\nTwo.\n"}),
        ("text-blank-lines", BLOCKS, {":3": "One.\nStill one.", ":7": "Two.\r", ":9": "Three."}),
        ("jsonl", LINES, {":1": "One\nline", ":3": "", ":4": "é"}),
        ("cirrus", PAGES, {":2": "One. Two.", ":4": '{"index": {}}'}),
        (
            "wikiextractor",
            EXTRACTED,
            {":1": "\nBody.\n", ":8": "", ":11": "No title line.", ":14": "E"},
        ),
    ],
)
def test_texts_and_their_places(text_format, data, expected):
    found = [(each.where, each.text) for each in read(data, text_format)]
    assert found == [(f"memory:///read/f{place}", text) for place, text in expected.items()]


def test_texts_are_in_the_field_that_is_named():
    assert texts(b'{"body": "x", "text": 1}\n', "jsonl", text_field="body") == ["x"]


def test_an_empty_file_among_others_is_an_empty_document():
    part = Part((FileRange("memory://read/empty", 0, 0, 0, "text"),))
    fsspec.filesystem("memory").pipe("/read/empty", b"")
    assert [document.text for document in read_part(part)] == [""]


def test_the_sample_of_the_reference(shared_data):
    path = shared_data / "data/bert_sample/sample_text.txt"
    [part] = plan_parts(find_inputs([str(path)]), "text-blank-lines", 2**20)
    documents = list(read_part(part))
    assert [len(document.text.split("\n")) for document in documents] == [3, 13, 15]
    assert documents[1].where == f"{path}:5"


def test_real_wikipedia(shared_data):
    [part] = plan_parts(
        find_inputs([str(shared_data / "data/wiki_en/wiki_en_00.txt.zst")]), "auto", 2**20
    )
    documents = list(read_part(part))
    assert documents[0].text.startswith("\nAnarchism is a political philosophy")
    assert len(documents) == 264
    assert not any("<doc" in document.text for document in documents)


NO_TEXT = b'{"index":{"_id":"1"}}\n{"title":"A"}\n'
TWO_OPENED = b'<doc id="1">\na\n<doc id="2">\n</doc>\n'


@pytest.mark.parametrize(
    ("text_format", "data", "line", "message", "reason"),
    [
        ("text", b"a\nb\ncaf\xe9", 3, "found the byte 0xe9 .*, expected UTF-8; con", "not_utf8"),
        ("text-blank-lines", b"a\n\nb\n\xe9\n", 4, "found the byte 0xe9", "not_utf8"),
        ("jsonl", b'{"text": ""}\n{"a"\n', 2, "found no JSON .*, expected an object", "not_json"),
        ("jsonl", b"[" * 100_000, 1, "found no JSON", "not_json"),
        ("jsonl", b'\n\n["a"]\n', 3, "found a JSON list, expected an object", "not_an_object"),
        ("jsonl", b'{"b": 1}', 1, r"found the fields \['b'\], expected 'text'", "no_text_field"),
        ("cirrus", NO_TEXT, 2, r"found the fields \['title'\], expected 'text'", "no_text_field"),
        ("jsonl", b'{"text": null}', 1, "found NoneType 'None' in the", "text_not_a_string"),
        ("wikiextractor", b"\nplain\ntext\n", 2, "found b'plain' outside <doc", "text_outside_doc"),
        ("wikiextractor", b'<doc id="1">\na\n', 1, ".*</doc> line: the file ends", "unclosed_doc"),
        ("wikiextractor", TWO_OPENED, 1, ".*another one starts 2 lines below", "unclosed_doc"),
        ("wikiextractor", b'<doc id="1">\na\n\xe9\n</doc>', 3, "found the byte 0xe9", "not_utf8"),
    ],
)
def test_malformed_documents_stop_with_file_and_line(text_format, data, line, message, reason):
    said = f"^memory:///read/f:{line}: {message}.* --on_bad_document skip"
    with pytest.raises(ValueError, match=said):
        read(data, text_format)
    skipped: dict[str, int] = {}
    read(data, text_format, on_bad_document="skip", skipped=skipped)
    assert skipped == {reason: 1}


@pytest.mark.parametrize("text_format", ["text", "text-blank-lines", "jsonl", "mediawiki"])
@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        ("utf-16-le", "found a zero in every second byte, as UTF-16 without"),
        ("utf-16-be", "found a zero in every second byte, as UTF-16 without"),
        ("utf-32", "found UTF-32"),
    ],
)
def test_other_encodings_that_seem_utf8_are_refused(text_format, encoding, message):
    data = '<mediawiki>{"text": "A line of text."}'.encode(encoding)
    with pytest.raises(ValueError, match=f"memory:///read/f: {message}.*convert it by iconv"):
        read(data, text_format, on_bad_document="skip")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.json", b' [\n {"text": "One."}]'),
        ("a.json", b'["One."]'),
        ("a.json", b'"One."'),
        ("a.txt", b'[{"text": "One."},{"text": "Two."}]'),
        ("a", b'\xef\xbb\xbf["One.", "Two \\" and"]'),
        ("a.json.zst", zstandard.compress(b'[[["a"]]]')),
        ("a.geojson", b"[1, 2]"),
    ],
)
def test_json_that_is_no_lines_of_objects_is_refused(name, data):
    said = rf"/{name}: begins with .*expected an object in each line; .*jq -c.*--format"
    with pytest.raises(ValueError, match=said):
        read(data, "auto", name=name)
    assert len(read(data, "text", name=name)) == 1


@pytest.mark.parametrize(
    "data", [b"[Illustration]\nOne.", b"[[File:A.jpg]]", b'["Ho," he said.', b"[1] A note.", b"[]"]
)
def test_text_that_begins_with_a_bracket_is_text(data):
    assert texts(data, "auto") == [data.decode()]


def test_one_json_object_over_several_lines_is_refused():
    said = r"f\.json:1: found no JSON .* a single object by `jq -c \.`"
    with pytest.raises(ValueError, match=said):
        read(b'{\n "type": "FeatureCollection",\n "features": []\n}', "auto", name="f.json")


def test_ranges_without_text_are_noted():
    without_text: list[str] = []
    files = {"/n/a.txt": b" \n", "/n/b.jsonl": b"\n", "/n/c.txt": b"c"}
    files["/n/d.xml"] = b"<mediawiki></mediawiki>"
    fsspec.filesystem("memory").pipe(files)
    [part] = plan_parts(find_inputs(["memory://n"]), "auto", 2**20)
    expected = [" \n", "c"]
    assert [document.text for document in read_part(part, without_text=without_text)] == expected
    assert without_text == [f"memory:///n/{name}" for name in ("a.txt", "b.jsonl", "d.xml")]


def test_lines_are_counted_from_the_start_of_the_file_in_any_part():
    data = b'{"text": "a"}\n' * 1000 + b"bad\n" + b'{"text": "a"}\n' * 10
    with pytest.raises(ValueError, match=r"^memory:///read/f:1001: found no JSON"):
        read(data, "jsonl", part_bytes=5000)
    assert read(data[:14000], "jsonl", part_bytes=5000)[-1].where == "memory:///read/f, byte 13986"


def test_skipping_keeps_the_others():
    skipped: dict[str, int] = {}
    data = b'{"text": "a"}\nbad\n{"text": "b"}\n{"text": 1}\nworse\n'
    assert texts(data, "jsonl", on_bad_document="skip", skipped=skipped) == ["a", "b"]
    assert skipped == {"not_json": 2, "text_not_a_string": 1}


def test_unknown_policies_are_refused():
    with pytest.raises(ValueError, match="on_bad_document is 'ignore', expected one of stop, skip"):
        read(b"a", "text", on_bad_document="ignore")


def test_a_file_that_changed_stops(tmp_path):
    path = tmp_path / "f.txt"
    path.write_text("some text")
    parts = plan_parts(find_inputs([str(path)]), "text", 100)
    path.write_text("some more text")
    with pytest.raises(ValueError, match=r"f\.txt: found 14 bytes, expected 9: the file changed"):
        list(read_part(parts[0]))


def test_small_blocks_change_nothing(monkeypatch):
    data = b'{"text": "one"}\n{"text": "two"}\n{"text": "three"}'
    monkeypatch.setattr(document_files, "BLOCK_BYTES", 3)
    monkeypatch.setattr(document_files, "TAIL_BLOCK_BYTES", 2)
    assert texts(data, "jsonl", part_bytes=20) == ["one", "two", "three"]


def test_lines_of_blocks():
    lines = list(split_lines([b"a\nb", b"", b"c", b"\n\nd\n", b"e"], offset=10))
    expected = [(1, 10, b"a"), (2, 12, b"bc"), (3, 15, b""), (4, 16, b"d"), (5, 18, b"e")]
    assert [line[:3] for line in lines] == expected
    assert [line.data for line in split_lines([b"a\n", b"b\n"])] == [b"a", b"b"]
    assert list(split_lines([])) == []


def test_a_format_is_one_line_of_the_table(monkeypatch, tmp_path):
    second_column = Format(
        parse=lambda text, *_: text.split(",")[1],
        detect=lambda beginning: beginning.suffix == ".csv",
        split=split_jsonl,
    )
    monkeypatch.setitem(FORMATS, "csv", second_column)
    tmp_path.joinpath("a.csv").write_text("1,one\n2,two\n3,three\n")
    for part_bytes in (5, 1000):
        parts = plan_parts(find_inputs([str(tmp_path)]), "auto", part_bytes)
        expected = ["one", "two", "three"]
        assert [document.text for part in parts for document in read_part(part)] == expected
