"""Whole files of lines, JSON lines and comma-separated rows, and what is said of broken ones."""

import gzip
import io
import tarfile
import zipfile

import pytest

from pipeline.documents.text_files import read_csv_rows, read_json_lines, read_text, read_text_lines


@pytest.fixture
def write(tmp_path):
    return lambda name, data: (tmp_path / name).write_bytes(data) and str(tmp_path / name)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize(("name", "pack"), [("a", bytes), ("a.gz", gzip.compress)])
def test_text_and_lines(write, name, pack, encoding):
    url = write(name, pack("é one\r\n\ntwo\n".encode(encoding)))
    assert read_text(url) == "é one\r\n\ntwo\n"
    expected = [(f"{url}:1", "é one"), (f"{url}:2", ""), (f"{url}:3", "two")]
    assert list(read_text_lines(url)) == expected


def pack_tar(data):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        member = tarfile.TarInfo("a.jsonl")
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def pack_zip(data):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.jsonl", data)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("name", "pack", "said"),
    [
        ("a.zip", pack_zip, "a.zip: is a zip archive, expected a single file; unpack it and give"),
        ("a.tgz", pack_tar, "a.tgz: is a tar archive, expected a single file; unpack it and give"),
        ("a.TAR.GZ", pack_tar, "a.TAR.GZ: is a tar archive, expected a single file; unpack it"),
        ("a.jsonl", pack_zip, "holds zip data, which its name does not say; rename it to end"),
    ],
)
def test_an_archive_is_no_single_file(write, name, pack, said):
    with pytest.raises(ValueError, match=said):
        list(read_json_lines(write(name, pack(b'{"a": 1}\n'))))


def test_json_lines(write):
    url = write("a.jsonl", b'{"a": 1}\n \n{"b": "x"}')
    assert list(read_json_lines(url)) == [(f"{url}:1", {"a": 1}), (f"{url}:3", {"b": "x"})]


def test_rows_whose_cells_hold_line_ends(write):
    url = write("a.csv", b'text,n\r\n"a ""b"",\nc",1\r\n\r\nd,2\r\n')
    assert list(read_csv_rows(url)) == [
        (f"{url}:1", ["text", "n"]),
        (f"{url}:2", ['a "b",\nc', "1"]),
        (f"{url}:5", ["d", "2"]),
    ]


@pytest.mark.parametrize(
    ("read", "data", "said"),
    [
        (read_text, b"a\nb\xe9", ":2: found the byte 0xe9 .* expected UTF-8; convert"),
        (read_text_lines, b"a\nb\xe9", ":2: found the byte 0xe9 .* expected UTF-8; convert"),
        (read_json_lines, b"{}\n[]", ":2: found a JSON list, expected an object in each line"),
        (read_json_lines, b"{}\n{", ":2: found no JSON .* expected a value in each line"),
        (read_json_lines, b"[\n{}\n]", r":1: found no JSON .*; `jq -c '\.\[\]' FILE > NEW` writes"),
        (read_json_lines, b'[{"a": 1}]', r":1: found a JSON list, .*; `jq -c '\.\[\]' FILE > NEW`"),
        (read_json_lines, b'{\n"a": 1\n}', ":1: found no JSON .*; `jq -c . FILE > NEW` writes"),
        (
            read_json_lines,
            rb'{"a": "\uD83D\uDE00 \\ud800"}' + b"\n" + rb'{"a": ["x\uD83D y"]}',
            r""":2: half of a character ends '\{"a": \["x\\ud83d', expected whole ones, such as""",
        ),
        (read_json_lines, b"[" * 100_000, ":1: found no JSON .* expected a value in each line"),
        (
            read_csv_rows,
            b'a\n"b\nc',
            ":2: unexpected end of data, with commas between cells, quotes doubled",
        ),
    ],
)
def test_what_is_broken_is_named_by_its_line(write, read, data, said):
    with pytest.raises(ValueError, match=said):
        list(read(write("a", data)))
