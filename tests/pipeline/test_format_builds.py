"""Every input format, compression and archive gives one corpus the same shards."""

import bz2
import csv
import gzip
import io
import json
import lzma
import re
import subprocess
import sys
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pipeline.documents.parts import find_inputs, plan_parts
from pipeline.documents.read import read_part
from pipeline.settings import BuildSettings
from pipeline.shards.dataset import open_dataset
from pipeline.stages.build import _say_what_is_one_document
from pipeline.stages.corpus import find_corpus
from pipeline.text.cleaning import clean_text
from tests.pipeline.programs import root_hash, run

ROOT_HASH = "c91e5a9570c4ca52066db3351da7f38691c6e32c470d944bdc6f41ab4df5e89c"
NUM_DOCUMENTS = 30


def write_json_lines(texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def write_blank_lines(texts):
    return "\n\n".join(texts).encode()


def write_cirrus(texts):
    lines = (f'{{"index": {{"_id": "{number}"}}}}\n' for number in range(len(texts)))
    rows = write_json_lines(texts).decode().splitlines(keepends=True)
    return "".join(line + row for line, row in zip(lines, rows, strict=True)).encode()


def write_wikiextractor(texts):
    return "".join(f'<doc id="1" title="T">\nT\n\n{text}\n</doc>\n' for text in texts).encode()


def write_dump(texts):
    pages = (
        f"<page><title>T</title><ns>0</ns><id>{number}</id>"
        f"<revision><text>{wikitext}</text></revision></page>\n"
        for number, text in enumerate(texts)
        if (wikitext := text.replace("\n", "\n\n"))
    )
    return [b"<mediawiki>\n", *(page.encode() for page in pages), b"</mediawiki>\n"]


def write_wet(texts):
    return b"".join(
        b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: %d\r\n\r\n%s\r\n\r\n"
        % (len(data), data)
        for text in texts
        if (data := text.encode())
    )


def write_table(texts):
    file = io.BytesIO()
    pq.write_table(pa.table({"text": texts}), file, row_group_size=7)
    return file.getvalue()


def write_stream(texts, new=pa.ipc.new_stream):
    file = io.BytesIO()
    table = pa.table({"id": list(range(len(texts))), "text": texts})
    with new(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    return file.getvalue()


def write_rows(texts):
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerows([["id", "text"], *enumerate(texts)])
    return file.getvalue().encode()


def write_archive(texts):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, text in enumerate(texts):
            archive.writestr(f"{number}.txt", text)
    return file.getvalue()


INPUTS = {
    "text": lambda texts: {f"{number}.txt": text.encode() for number, text in enumerate(texts)},
    "text-blank-lines": lambda texts: {"a.txt": write_blank_lines(texts)},
    "sentence-lines": lambda texts: {"a.txt.xz": lzma.compress(write_blank_lines(texts))},
    "jsonl": lambda texts: {"a.jsonl": write_json_lines(texts)},
    "cirrus": lambda texts: {"a.json.gz": gzip.compress(write_cirrus(texts))},
    "wikiextractor": lambda texts: {"a": write_wikiextractor(texts)},
    "mediawiki": lambda texts: {"a.xml.bz2": b"".join(map(bz2.compress, write_dump(texts)))},
    "warc": lambda texts: {"a.warc.wet.gz": gzip.compress(write_wet(texts))},
    "parquet": lambda texts: {"a.parquet": write_table(texts)},
    "arrow": lambda texts: {
        "data-00000-of-00001.arrow": write_stream(texts),
        "state.json": b"{}",
        "dataset_info.json": b"{}",
    },
    "csv": lambda texts: {"a.csv.gz": gzip.compress(write_rows(texts))},
    "auto": lambda texts: {
        "a.jsonl.zst": zstandard.compress(write_json_lines(texts[:9])),
        "b.zip": write_archive(texts[9:20]),
        "c.xml": b"".join(write_dump(texts[20:25])),
        "d.arrow": write_stream(texts[25:28], pa.ipc.new_file),
        "e.csv": write_rows(texts[28:]),
    },
}


@pytest.fixture
def corpus_of(texts, tmp_path):
    """corpus_of(text_format): a folder of the lines, and these."""

    def write(text_format):
        lines = [text.replace(". ", ".\n") for text in texts[:NUM_DOCUMENTS]]
        (tmp_path / "corpus").mkdir()
        for name, data in INPUTS[text_format](lines).items():
            (tmp_path / "corpus" / name).write_bytes(data)
        return tmp_path / "corpus", lines

    return write


@pytest.mark.parametrize("text_format", INPUTS)
def test_every_format_gives_the_same_documents(corpus_of, text_format):
    corpus, lines = corpus_of(text_format)
    parts = plan_parts(find_inputs([str(corpus)]), text_format, 4096)
    found = [document for part in parts for document in read_part(part)]
    assert sorted(clean_text(each.text) for each in found) == sorted(map(clean_text, lines))
    assert {document.is_split for document in found} == {text_format == "sentence-lines"}


@pytest.mark.processes
@pytest.mark.parametrize("text_format", ["auto", "sentence-lines"])
def test_formats_give_the_same_shards(corpus_of, vocab_file, tmp_path, text_format):
    more = ("--format", text_format, "--part_bytes", 4096)
    assert build(corpus_of(text_format)[0], vocab_file, tmp_path, *more) == 0
    assert root_hash(tmp_path / "data") == ROOT_HASH


def build(corpus, vocab_file, tmp_path, *more):
    words = ("--input", corpus, "--output", tmp_path / "data", "--vocab", vocab_file)
    return run("build", *words, "--passes", 1, "--seq_lens", 64, "--workers", 1, *more)


@pytest.mark.processes
def test_each_line_is_a_document(texts, vocab_file, tmp_path):
    corpus = tmp_path / "a.txt"
    corpus.write_text("\n".join(text.replace("\n", " ") for text in texts[:20]))
    assert build(corpus, vocab_file, tmp_path, "--format", "lines") == 0
    manifest = open_dataset(str(tmp_path / "data")).manifest
    assert manifest.counters["documents"] == 20


@pytest.mark.processes
@pytest.mark.parametrize(
    ("files", "said"),
    [
        (
            {"a.txt": b"One. " * 50},
            "a.txt: is one document, and a dataset needs two; .* or --format lines",
        ),
        ({"a.txt": gzip.compress(b"One.")}, "a.txt: holds gzip data, .* rename it to end in .gz"),
    ],
)
def test_what_cannot_become_a_dataset_is_said_before_any_work(
    files, said, vocab_file, tmp_path, capsys
):
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    assert build(tmp_path / "a.txt", vocab_file, tmp_path) == 2
    assert re.search(said, capsys.readouterr().err)
    assert not list((tmp_path / "data").glob("*"))


def test_a_document_that_is_most_of_the_input_is_said(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("One. " * 99)
    (tmp_path / "b.txt").write_text("Two.")
    corpus = find_corpus(BuildSettings(str(tmp_path / "out"), [f"{tmp_path}/*.txt"]))
    _say_what_is_one_document(corpus)
    assert "a.txt: is one document, 99% of the input; give --format" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.csv", b"text,n\nx\n", "a.csv:2: found 1 cells, expected 2 .text, n. with commas"),
        ("a.csv", b'n\n"x', "a.csv:2: unexpected end of data"),
        ("a.csv", b"n\nx\n", "a.csv:2: found the fields .'n'., expected 'text'"),
        ("a.arrow", b"nothing of Arrow", "a.arrow: cannot be read as Arrow"),
        ("a.arrow", write_stream(["x"] * 9)[:-90], "a.arrow: cannot be read as Arrow"),
        ("a.arrow", write_stream(["x"] * 9, pa.ipc.new_file)[:-1], "its end is missing"),
    ],
)
def test_broken_rows_are_named(name, data, said, tmp_path):
    (tmp_path / name).write_bytes(data)
    parts = plan_parts(find_inputs([str(tmp_path / name)]), "auto", 2**20)
    with pytest.raises(ValueError, match=said):
        [document for part in parts for document in read_part(part)]


ALONE = """
import sys
from pathlib import Path
from pipeline.documents.parts import find_inputs, plan_parts
from pipeline.documents.read import read_part
from pipeline.shards.manifest import open_parquet

def num_threads():
    return len(list(Path("/proc/self/task").iterdir()))

import pyarrow.parquet
before = num_threads()
for part in plan_parts(find_inputs(sys.argv[1:]), "auto", 2**20):
    assert list(read_part(part))
with open(sys.argv[1], "rb") as file:
    assert open_parquet(file).read_row_group(0, use_threads=False).num_rows
assert num_threads() == before, "a thread of Arrow was started"
"""


def test_tables_are_read_by_the_thread_that_asks(tmp_path):
    """One of Arrow's that still holds the Python file when the interpreter ends aborts the process."""
    texts = ["some text"] * 30
    contents = [write_table(texts), write_stream(texts), write_stream(texts, pa.ipc.new_file)]
    files = [tmp_path / name for name in ("a.parquet", "b.arrow", "c.arrow")]
    for path, data in zip(files, contents, strict=True):
        path.write_bytes(data)
    subprocess.run([sys.executable, "-c", ALONE, *map(str, files)], check=True)
