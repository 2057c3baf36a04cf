"""Zip archives: members are files, any cut gives them once, hostile ones are refused."""

import gzip
import io
import zipfile
from itertools import chain, pairwise

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.documents import Document
from pipeline.documents.files import FileRange
from pipeline.documents.parts import Part, find_inputs, plan_parts
from pipeline.documents.read import read_part
from pipeline.storage import compression

URL = "memory:///zipped/a.zip"


def pack(members, method=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def read(data, text_format="auto", part_bytes=2**20, **options):
    fsspec.filesystem("memory").pipe("/zipped/a.zip", data)
    parts = plan_parts(find_inputs([URL]), text_format, part_bytes)
    return [document for part in parts for document in read_part(part, **options)]


MEMBERS = {
    "b.txt": b"A text.\n",
    "folder/a.jsonl": b'{"text": "One."}\n{"text": "Two."}\n',
    "folder/.hidden": b"x",
    "c.jsonl.gz": gzip.compress(b'{"text": "Three."}\n'),
    "d": "\ufeffWide.".encode("utf-16-le"),
}


def test_members_are_files():
    assert read(pack(MEMBERS)) == [
        Document("A text.\n", f"{URL}/b.txt"),
        Document("One.", f"{URL}/folder/a.jsonl:1"),
        Document("Two.", f"{URL}/folder/a.jsonl:2"),
        Document("Three.", f"{URL}/c.jsonl.gz:1"),
        Document("Wide.", f"{URL}/d"),
    ]
    found = read(pack({"a": b"One.\n\nTwo."}), "text-blank-lines")
    assert [document.text for document in found] == ["One.", "Two."]


@given(cuts=st.sets(st.integers(1, 900), max_size=6))
def test_any_cut_gives_the_same_documents(cuts):
    data = pack(MEMBERS)
    fsspec.filesystem("memory").pipe("/zipped/a.zip", data)
    bounds = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    ranges = [FileRange(URL, start, end, len(data), "auto") for start, end in pairwise(bounds)]
    found = [document.text for each in ranges for document in read_part(Part((each,)))]
    assert found == ["A text.\n", "One.", "Two.", "Three.", "Wide."]


@pytest.mark.parametrize(
    "name", ["../up.txt", "a/../../up.txt", "/etc/text", "C:/text", "..\\up.txt", "a\\..\\b"]
)
def test_names_outside_are_refused(name):
    said = r"a\.zip: found the member .*, expected names below the archive's own folder"
    with pytest.raises(ValueError, match=said):
        read(pack({"fine.txt": b"x", name: b"text"}), on_bad_document="skip")


@pytest.mark.parametrize("name", ["deep.zip", "data.parquet"])
def test_archives_and_tables_inside_are_refused(name):
    said = rf"a\.zip/{name}: found a .* in an archive, expected text.*unpack"
    with pytest.raises(ValueError, match=said):
        read(pack({name: b"PK"}))


def test_bombs_are_refused(monkeypatch):
    monkeypatch.setattr(compression, "FREE_BYTES", 100_000)
    with pytest.raises(ValueError, match=r"a\.zip/b\.txt: \d+ stored bytes became over \d+"):
        read(pack({"b.txt": b"x" * 4_000_000}))


def test_members_that_share_bytes_are_refused():
    data = pack({"a.txt": b"one text " * 99, "b.txt": b"x"})
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        start = archive.start_dir
    # The size of the second member in the directory now says more than the whole file holds.
    second = data.index(b"PK\x01\x02", start + 4)
    forged = data[: second + 20] + (10**6).to_bytes(4, "little") + data[second + 24 :]
    with pytest.raises(
        ValueError, match=r"a\.zip: the members share their bytes: a decompression b"
    ):
        read(forged)


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_broken_archives_are_named(policy):
    data = pack({"b.txt": b"text " * 100})
    with pytest.raises(ValueError, match=r"a\.zip: cannot be read as zip"):
        read(data[:-30], on_bad_document=policy)
    flipped = bytearray(pack({"b.txt": b"text " * 100}, zipfile.ZIP_STORED))
    flipped[60] ^= 1
    with pytest.raises(ValueError, match=r"a\.zip/b\.txt: cannot be read as zip .Bad CRC-32"):
        read(bytes(flipped), on_bad_document=policy)


def test_malformed_members_are_named_by_line_and_counted():
    data = pack({"a.jsonl": b'{"text": "a"}\nbad\n', "b.txt": b"one\n\xe9"})
    with pytest.raises(ValueError, match=rf"^{URL}/a\.jsonl:2: found no JSON"):
        read(data)
    skipped: dict[str, int] = {}
    [document] = read(data, on_bad_document="skip", skipped=skipped)
    assert (document.text, skipped) == ("a", {"not_json": 1, "not_utf8": 1})


def read_file(path, part_bytes):
    skipped: dict[str, int] = {}
    parts = plan_parts(find_inputs([str(path)]), "auto", part_bytes)
    found = (read_part(part, on_bad_document="skip", skipped=skipped) for part in parts)
    return [document.text for document in chain(*found)], skipped


def test_real_archives(shared_data):
    texts, skipped = read_file(shared_data / "data/inaugural/inaugural.zip", 2**20)
    assert len(texts) + skipped["not_utf8"] >= 59
    assert skipped == {"not_utf8": 1}
    assert any(text.startswith("Fellow-Citizens of the Senate") for text in texts)
    assert read_file(shared_data / "data/inaugural/inaugural.zip", 50_000) == (texts, skipped)
    texts, skipped = read_file(shared_data / "data/udhr2/udhr2.zip", 2**20)
    assert skipped == {}
    assert len(texts) >= 388


def test_a_member_without_a_name_is_refused():
    data = pack({"a": b"One."})
    at = data.index(b"PK\x01\x02")
    spoilt = data[: at + 28] + b"\0\0" + data[at + 30 : at + 46] + data[at + 47 :]
    end = spoilt.index(b"PK\x05\x06")
    size = int.from_bytes(spoilt[end + 12 : end + 16], "little") - 1
    spoilt = spoilt[: end + 12] + size.to_bytes(4, "little") + spoilt[end + 16 :]
    with pytest.raises(ValueError, match=r"a\.zip: (cannot be read as zip|found the member '')"):
        read(spoilt)
