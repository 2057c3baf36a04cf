"""Parquet: rows are documents, row groups parts, and what is no text is named by file and row."""

import io
from itertools import pairwise

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.documents import Document, records
from pipeline.documents.files import FileRange
from pipeline.documents.parts import Part, find_inputs, plan_parts
from pipeline.documents.read import read_part

URL = "memory:///table/f.parquet"


def write(columns, row_group_size=3):
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, row_group_size=row_group_size)
    return buffer.getvalue()


def read(data, part_bytes=2**20, **options):
    fsspec.filesystem("memory").pipe("/table/f.parquet", data)
    parts = plan_parts(find_inputs([URL]), "auto", part_bytes)
    return [document for part in parts for document in read_part(part, **options)]


def test_rows_are_documents():
    data = write({"id": [1, 2], "text": ["One\nline.", "é力"], "body": ["a", "b"]})
    assert read(data) == [Document("One\nline.", f"{URL}, row 1"), Document("é力", f"{URL}, row 2")]
    assert [document.text for document in read(data, text_field="body")] == ["a", "b"]


ROWS = [f"text {i}" for i in range(20)]
TABLE = write({"number": list(range(20)), "text": ROWS})


@given(cuts=st.sets(st.integers(1, len(TABLE) - 1), max_size=6))
def test_any_cut_gives_the_same_rows(cuts):
    fsspec.filesystem("memory").pipe("/table/f.parquet", TABLE)
    bounds = pairwise([0, *sorted(cuts), len(TABLE)])
    parts = [Part((FileRange(URL, *each, len(TABLE), "parquet"),)) for each in bounds]
    found = [document for part in parts for document in read_part(part)]
    assert found == [Document(text, f"{URL}, row {row}") for row, text in enumerate(ROWS, 1)]


def test_parts_hold_row_groups():
    assert [document.text for document in read(TABLE, part_bytes=len(TABLE) // 3)] == ROWS
    assert len(plan_parts(find_inputs([URL]), "auto", len(TABLE) // 3)) >= 3


@pytest.mark.parametrize(
    ("column", "row", "message", "reason"),
    [
        (["a", "b", "c", None], 4, "found NoneType 'None'", "text_is_null"),
        ([7], 1, "found int '7' in the column of text, expected a string", "text_not_a_string"),
        ([["a"]], 1, "found list", "text_not_a_string"),
        ([b"a"], 1, "found bytes", "text_not_a_string"),
        (["a", "x" * 61], 2, "found a document of more than 60 bytes", "too_long"),
    ],
)
def test_what_is_no_text_is_named_by_row(monkeypatch, column, row, message, reason):
    monkeypatch.setattr(records, "MAX_DOCUMENT_BYTES", 60)
    data = write({"text": column})
    with pytest.raises(ValueError, match=rf"^{URL}, row {row}: {message}.*--on_bad_document skip"):
        read(data)
    skipped: dict[str, int] = {}
    assert len(read(data, on_bad_document="skip", skipped=skipped)) == len(column) - 1
    assert skipped == {reason: 1}


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_broken_tables_are_named(policy):
    said = r"found the columns \['a'\], expected 'text' among them; .* --text_field"
    with pytest.raises(ValueError, match=said):
        read(write({"a": ["x"]}), on_bad_document=policy)
    for data in (b"PAR1 and no more", TABLE[:-9], TABLE[:100] + bytes(200) + TABLE[300:]):
        with pytest.raises(ValueError, match=r"f\.parquet: cannot be read as Parquet"):
            read(data, on_bad_document=policy)


def test_text_that_is_no_utf8_is_named_by_row():
    names = pa.array([b"fine", b"Zwei S\xc3\xa4t\x86e"])
    spoilt = pa.Array.from_buffers(pa.string(), 2, names.buffers())
    for column in (spoilt, spoilt.cast(pa.large_string(), safe=False)):
        data = write({"text": column})
        said = rf"^{URL}, row 2: found the byte 0x86 .* expected UTF-8"
        with pytest.raises(ValueError, match=said):
            read(data)
        skipped: dict[str, int] = {}
        [fine] = read(data, on_bad_document="skip", skipped=skipped)
        assert (fine.text, skipped) == ("fine", {"not_utf8": 1})


def test_large_and_dictionary_encoded_text_is_text():
    for kind in (pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        column = pa.array(["a", "é", "a"]).cast(kind)
        assert [document.text for document in read(write({"text": column}))] == ["a", "é", "a"]
