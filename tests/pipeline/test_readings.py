"""What is said of each source before any work, and fields of text that a source has not."""

import gzip
import io

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.documents.parts import find_inputs, plan_parts
from pipeline.documents.readings import check_text_field, describe_readings


def plan(**files):
    filesystem = fsspec.filesystem("memory")
    if filesystem.exists("/readings"):
        filesystem.rm("/readings", recursive=True)
    filesystem.pipe({f"/readings/{name.replace('_', '.')}": data for name, data in files.items()})
    return plan_parts(find_inputs(["memory://readings"]), "auto", 2**20)


def parquet(*names):
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([["x"]] * len(names), list(names)), buffer)
    return buffer.getvalue()


def test_every_kind_of_file_is_said_with_its_beginning():
    parts = plan(
        a_csv=b"id;body\n1;Hello,  you\n2;b\n",
        b_jsonl_gz=gzip.compress(b'{"body": "First text."}\n'),
        c_txt="\ufeffWide text.".encode("utf-16-le"),
        d_txt=b"Another.",
        e_html=b"<html><body>x</body></html>",
    )
    assert describe_readings(parts, "body") == [
        "1 file(s) read as csv (semicolons between cells, quotes doubled; the text in 'body'),"
        " such as memory:///readings/a.csv, which begins 'Hello, you'",
        "1 file(s) read as html, such as memory:///readings/e.html, which begins"
        " '<html><body>x</body></html>'",
        "1 file(s) read as jsonl (the text in 'body'; compressed as .gz), such as"
        " memory:///readings/b.jsonl.gz, which begins 'First text.'",
        "2 file(s) read as text (UTF-16), such as memory:///readings/c.txt, which begins"
        " 'Wide text.'",
    ]


def test_text_that_seems_escaped_is_said():
    [said] = describe_readings(plan(a_jsonl=b'{"text": "R&amp;D"}\n{"text": "x"}\n'), "text")
    assert "1 of its first 2 documents hold escapes of HTML such as &amp;" in said
    [said] = describe_readings(plan(a_jsonl=b'{"text": "R&D"}\n'), "text")
    assert "escapes" not in said


@pytest.mark.parametrize(
    ("files", "field", "said"),
    [
        ({"a_txt": b"One.", "b_md": b"Two."}, "body", "no file of its source has fields: .* text"),
        ({"a_csv": b"id,body\n1,x\n", "b_csv": b"id,x\n1,x\n"}, "body", r"b\.csv: found the col"),
        ({"a_csv": b"text,text\na,b\n"}, "text", r"a\.csv: found 2 columns named 'text'"),
        ({"a_jsonl": b'{"a": 1}\n{"b": 2}\n'}, "text", r"a\.jsonl: found the columns \['a', 'b'\]"),
        ({"a_parquet": parquet("a", "b")}, "text", r"a\.parquet: found the columns"),
        ({"a_parquet": parquet("text", "text")}, "text", r"a\.parquet: found 2 columns"),
    ],
)
def test_a_field_that_is_not_there_stops(files, field, said):
    with pytest.raises(ValueError, match=said):
        check_text_field(plan(**files), field)


def test_a_field_of_some_lines_is_there():
    check_text_field(plan(a_jsonl=b'{"a": 1}\n{"body": "x"}\nbad\n', b_txt=b"Text."), "body")
    check_text_field(plan(a_jsonl=b'{"a": 1}\n'), "text", counts_bad_lines=True)
    check_text_field(plan(a_txt=b"Text."), "text")
