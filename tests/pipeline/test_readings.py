"""What is said of each source before any work, and fields of text that a source has not."""

import gzip
import io
import zipfile

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.documents.formats import FORMATS, find_refused_suffixes
from pipeline.documents.parts import find_inputs, plan_parts
from pipeline.documents.readings import check_text_field, describe_readings
from pipeline.documents.records import BadDocumentError, Format


def pack_zip(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def plan(text_format="auto", wrapping="auto", **files):
    filesystem = fsspec.filesystem("memory")
    if filesystem.exists("/readings"):
        filesystem.rm("/readings", recursive=True)
    filesystem.pipe({f"/readings/{name.replace('_', '.')}": data for name, data in files.items()})
    inputs = find_inputs(["memory://readings"])
    return plan_parts(inputs, text_format, 2**20, wrapping=wrapping)


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
        "1 file(s) read as html, such as memory:///readings/e.html, which begins 'x'",
        "1 file(s) read as jsonl (the text in 'body'; compressed as .gz), such as"
        " memory:///readings/b.jsonl.gz, which begins 'First text.'",
        "2 file(s) read as text (UTF-16), such as memory:///readings/c.txt, which begins"
        " 'Wide text.'",
    ]


PAGE = (
    b"<!doctype html><html><head><title>A title</title></head><body><nav>Home</nav>"
    b"<main><p>R&amp;D makes texts.</p></main></body></html>"
)


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("a_html", PAGE, "html"),
        ("a_html_gz", gzip.compress(PAGE), "html (compressed as .gz)"),
        ("a_zip", pack_zip({"a.html": PAGE}), "a zip of files, each by its own name"),
    ],
)
def test_a_page_is_said_as_it_is_read_and_not_as_markup(name, data, kind):
    [said] = describe_readings(plan(**{name: data}), "text")
    url = f"memory:///readings/{name.replace('_', '.')}"
    assert said == f"1 file(s) read as {kind}, such as {url}, which begins 'R&D makes texts.'"


def test_an_archive_of_a_named_format_is_said_with_its_text():
    parts = plan("html", a_zip=pack_zip({"a.txt": PAGE}))
    [said] = describe_readings(parts, "text")
    assert said.endswith("which begins 'R&D makes texts.'")


def test_wrapped_text_is_said_as_paragraphs():
    [said] = describe_readings(
        plan(a_txt=b"It is a long-\nwinded story.\n\nNext.\n", wrapping="hard"), "text"
    )
    assert said.endswith("which begins 'It is a long-winded story. Next.'")


@pytest.fixture
def subtitles(monkeypatch):
    """A format whose files are one document each, and of which every second line is text."""

    def parse(text, *_):
        if not text.startswith("00:"):
            raise BadDocumentError("no_time", "found no time")
        return "\n".join(text.split("\n")[1::2])

    layout = Format(parse, lambda beginning: beginning.suffix == ".lines", may_be_cut=False)
    monkeypatch.setitem(FORMATS, "subtitles", layout)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"00:01\nHello.\n00:02\nBye.\n", ", which begins 'Hello. Bye.'"),
        (b"Hello.\n", ""),
        (
            b"00:01\n" + b"Hello.\n" * 2**18,
            ", whose text is not shown: it has more than 1,048,576 bytes",
        ),
    ],
    ids=["small", "malformed", "large"],
)
def test_a_file_that_is_one_document_is_parsed_unless_it_is_large(subtitles, data, said):
    [line] = describe_readings(plan(a_lines=data), "text")
    assert line == f"1 file(s) read as subtitles, such as memory:///readings/a.lines{said}"


def test_a_large_text_is_said_with_its_beginning():
    [said] = describe_readings(plan(a_txt=b"A long text.\n" * 2**18), "text")
    assert said.endswith(
        "which begins 'A long text. A long text. A long text. A long text. A long text. A lon'"
    )


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


@pytest.mark.parametrize(
    ("detect", "found"),
    [
        (lambda beginning: beginning.suffix in {".srt", ".chat", ".pdf"}, [".pdf", ".srt"]),
        (lambda beginning: beginning.suffix == ".chat", []),
        (None, []),
    ],
)
def test_an_extension_that_is_refused_cannot_be_that_of_a_format(detect, found):
    assert find_refused_suffixes(Format(lambda text, *_: text, detect)) == found
