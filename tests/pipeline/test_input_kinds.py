r"""Files of every kind, by literal bytes: read as they are meant, or refused with the cure.

The same bytes under a wrong name, in an archive or compressed are other kinds.
"""

import bz2
import csv
import gzip
import io
import lzma
import os
import re
import struct
import tarfile
import zipfile
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import zstandard
from pyarrow import ipc

from pipeline.documents.kinds import KINDS
from pipeline.documents.lines import is_blank
from pipeline.documents.parts import find_inputs, plan_parts
from pipeline.documents.read import read_part
from pipeline.storage.tensorflow_bytes import masked_crc32c


def read(name, data, text_format="auto", **options):
    """Returns the texts of a file."""
    url = f"memory://kinds/{name}"
    fsspec.filesystem("memory").pipe(f"/kinds/{name}", data)
    parts = plan_parts(find_inputs([url]), text_format, 2**30)
    return [document.text for part in parts for document in read_part(part, **options)]


def pack_tar(members, layout=tarfile.PAX_FORMAT):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=layout) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def pack_zip(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def pack_arrow(table, new=ipc.new_file):
    buffer = io.BytesIO()
    with new(buffer, table.schema) as writer:
        writer.write_table(table)
    return buffer.getvalue()


def pack_parquet(table):
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def column(kind, texts=("one", "é and a text longer than twelve bytes", "one")):
    values = pa.array(texts, pa.string())
    if pa.types.is_dictionary(kind):
        return values.dictionary_encode()
    if pa.types.is_run_end_encoded(kind):
        return pa.compute.run_end_encode(values)
    return values.cast(kind)


def by_footer_alone(data):
    """An Arrow file that does not begin as a stream: Polars writes such files."""
    return data[:8] + b"\xff\xff\xff\xff\0\0\0\0" + data[16:]


def long_window(data):
    parameters = zstandard.ZstdCompressionParameters(window_log=31, enable_ldm=True)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return compressor.compress(data) + compressor.flush()


def dump_of_streams(num_pages):
    """A dump of one bzip2 stream a page, each of which is about 4 kB."""
    pages = (
        f"<page><title>P{n}</title><ns>0</ns><id>{n}</id><revision><text>Page {n}."
        f"{''.join(str(n * 7919 % (k + 11)) for k in range(5000))}</text></revision></page>"
        for n in range(num_pages)
    )
    pieces = ["<mediawiki>", *pages, "</mediawiki>"]
    return b"".join(bz2.compress(piece.encode()) for piece in pieces)


def wet_record(text, line_end="\r\n"):
    header = [
        "WARC/1.0", "WARC-Type: conversion", "Content-Type: text/plain",
        f"Content-Length: {len(text)}", "", text, "", "",
    ]  # fmt: skip
    return line_end.join(header).encode()


def tfrecord(data):
    length = struct.pack("<Q", len(data))
    checksums = [struct.pack("<I", masked_crc32c(each)) for each in (length, data)]
    return length + checksums[0] + data + checksums[1]


BOOKS = {"books/one.txt": b"The first book.\n", "books/two.jsonl": b'{"text": "Two."}\n'}
TAR = pack_tar(BOOKS)
TAR_TEXTS = ["The first book.\n", "Two."]
JSONL = b'{"text": "One."}\n'
PAGE = (
    "<html><head><meta charset=windows-1251><title>T</title></head><body><p>Это настоящий текст."
    "</p><script>x()</script></body></html>"
)
LATIN_PAGE = b"<!DOCTYPE html><body><p>Caf\xe9 au lait, cr\xe8me et sucre.</p></body>"
SPARK = b'id,text\n1,"He said \\"hello, you\\" to me"\n2,"C:\\new"\n'
MYSQL = b"id\ttext\n1\ta\\\tb \\\\ c\\\nd\n2\t\\N\n"
POLARS = by_footer_alone(pack_arrow(pa.table({"text": ["Polars one.", "Two."]})))
EXTRACTED = b'<doc id="1" title="T">\nT\n\nAT&amp;T: x &lt; y &amp;amp; z.\n</doc>\n'
NOT_ESCAPED = b'<doc id="1" title="T">\nT\n\nWrite &amp; for R&D.\n</doc>\n'
EXTRACTED_JSON = (
    b'{"id": "1", "revid": "2", "url": "https://a?curid=1", "title": "T", "text": "R&amp;D"}\n'
)
DOCUMENT = "A dog slept by the door all day.\nNobody came to the farm that week.\n"
DOCUMENT += "The wind turned north.\n"
SENTENCES = [DOCUMENT.strip()] * 12

READ = {
    "tar": ("a.tar", TAR, TAR_TEXTS),
    "tar.gz": ("a.tar.gz", gzip.compress(TAR), TAR_TEXTS),
    "tgz": ("a.TGZ", gzip.compress(TAR), TAR_TEXTS),
    "tar.bz2": ("a.tar.bz2", bz2.compress(TAR), TAR_TEXTS),
    "tar.xz": ("a.txz", lzma.compress(TAR), TAR_TEXTS),
    "tar.zst": ("a.tar.zst", zstandard.compress(TAR), TAR_TEXTS),
    "tar of before POSIX": ("a.tar", pack_tar(BOOKS, tarfile.GNU_FORMAT), TAR_TEXTS),
    "tar with HTML and CSV": (
        "a.tar",
        pack_tar({"./a.html": PAGE.encode("cp1251"), "b.TSV.gz": gzip.compress(b"text\ti\nx\t1")}),
        ["Это настоящий текст.", "x"],
    ),
    "zip in capitals": ("A.ZIP", pack_zip(BOOKS), TAR_TEXTS),
    "HTML by its name": ("a.html", PAGE.encode("cp1251"), ["Это настоящий текст."]),
    "HTML by its bytes": ("page", LATIN_PAGE, ["Café au lait, crème et sucre."]),
    "XHTML": (
        "a.xml",
        b'<?xml version="1.0"?>\n<html xmlns="x"><body><p>A text in XHTML.</p></body></html>',
        ["A text in XHTML."],
    ),
    "WARC of before 1.0": (
        "a.warc",
        b"WARC/0.18\r\nWARC-Type: conversion\r\nContent-Type: text/plain\r\n"
        b"Content-Length: 5\r\n\r\nText.\r\n\r\n",
        ["Text."],
    ),
    "CSV": ("a.csv", b'id,text\n1,"a, ""b"""\n2,c\n', ['a, "b"', "c"]),
    "CSV in capitals": ("UP.CSV", b"id,text\n1,a\n2,b\n", ["a", "b"]),
    "CSV of semicolons": ("a.csv", b"id;text\n1;Hello, you\n2;x, y\n", ["Hello, you", "x, y"]),
    "CSV of bars": ("a.csv", b"id|text\n1|a\n2|b\n", ["a", "b"]),
    "CSV of tabs": ("a.csv", b"id\ttext\n1\ta\n2\tb, c\n", ["a", "b, c"]),
    "CSV of Spark": ("a.csv", SPARK, ['He said "hello, you" to me', "C:\\new"]),
    "CSV of one column": ("a.csv", b'text\n"Hello, you"\nno; yes\n', ["Hello, you", "no; yes"]),
    "CSV of old Macs": ("a.csv", b"id,text\r1,a\r2,b", ["a", "b"]),
    "CSV in UTF-16": ("a.csv", "id;text\n1;é\n".encode("utf-16"), ["é"]),
    "TSV": ("a.tsv", b'id\ttext\n1\t"Hi," he said "now"\n2\tx\n', ['"Hi," he said "now"', "x"]),
    "TSV of pandas": ("a.tsv", b'id\ttext\n1\t"a\tb ""c"""\n2\tx\n', ['a\tb "c"', "x"]),
    "TSV of MySQL": ("a.tsv", MYSQL, ["a\tb \\ c\nd", ""]),
    "TSV of PostgreSQL": ("a.tsv", b"id\ttext\n1\ta\\nb\n2\t\\N\n", ["a\nb", ""]),
    "TSV with a quotation of two rows": (
        "a.tsv", b'id\ttext\n1\t"I came here.\n2\tThey came.\n3\tWe left."\n',
        ['"I came here.', "They came.", 'We left."'],
    ),
    "TSV of one column": ("a.tsv", b'text\n"a\nb"\nc\n', ["a\nb", "c"]),
    "WARC behind blank lines": ("a", b"\r\n\r\n" + wet_record("One."), ["One."]),
    "JSON lines in capitals": ("A.JSONL.GZ", gzip.compress(JSONL), ["One."]),
    "JSON lines of old Macs": ("a.jsonl", b'{"text": "a"}\r{"text": "b"}\r', ["a", "b"]),
    "ideographic spaces between documents": (
        "a.txt", "\u3000\n".join([DOCUMENT] * 12).encode(), SENTENCES,
    ),
    "no-break spaces between documents": (
        "a.txt", "\u00a0 \n".join([DOCUMENT] * 12).encode(), SENTENCES,
    ),
    "sentence lines of old Macs": (
        "a.txt", "\n".join([DOCUMENT] * 12).replace("\n", "\r").encode(), SENTENCES,
    ),
    "WikiExtractor": ("wiki_00", EXTRACTED, ["\nAT&T: x < y &amp; z."]),
    "WikiExtractor without escapes": ("wiki_00", NOT_ESCAPED, ["\nWrite &amp; for R&D."]),
    "WikiExtractor's JSON": ("wiki_00", EXTRACTED_JSON, ["R&D"]),
    "Arrow of Polars": ("a.arrow", POLARS, ["Polars one.", "Two."]),
    "Arrow stream": (
        "a.arrows", pack_arrow(pa.table({"text": ["x"]}), ipc.new_stream), ["x"],
    ),
    "Feather": ("a.feather", pack_arrow(pa.table({"text": ["x"]})), ["x"]),
    "zstd --long": ("a.jsonl.zst", long_window(JSONL), ["One."]),
    "lzma": ("a.txt.lzma", lzma.compress(b"One.", lzma.FORMAT_ALONE), ["One."]),
    "text under the name of a program": ("a.doc", b"It is a plain text.", ["It is a plain text."]),
    "text that begins as a sound": ("a.txt", b"ID3 is an algorithm.", ["ID3 is an algorithm."]),
    "Markdown that begins with HTML": ("a.md", b"<p><b>Name</b></p> x", ["<p><b>Name</b></p> x"]),
    "text that begins with a tag": ("a.txt", b"<unk> is a word.", ["<unk> is a word."]),
}  # fmt: skip
CYRILLIC = "Река текла мимо дома.\nДальше лежали степи.\n"  # noqa: RUF001
# Sound text whose beginning has something of another kind, read as it stands.
AS_IT_STANDS = {
    "of PDF": ("a.tex", "%PDF-output is chosen here.\n\\section{A}\n"),
    "of PostScript": ("a.txt", "%!PS is a mark of PostScript.\n"),
    "of RTF": ("a.tex", "{\\rtf is a control word of RTF.}\n"),
    "of subtitles": ("a.txt", "WEBVTT is a format of subtitles.\n"),
    "of Parquet": ("a.txt", "PAR1 is a receptor of thrombin.\n"),
    "of Arrow": ("a.txt", "ARROW1 was the first ship of its kind.\n"),
    "of zip": ("a.txt", "PK\x0cPK is a kinase.\n"),
    "of JSON": ("a.js", '{"use strict"; run()}\n'),
    "of empty braces": ("a.tex", "{} is the empty set.\n"),
    "of a JSON array": ("a.txt", '["Quoted"], she said, and ["so", he said] on.\n'),
    "words in angle brackets": ("a.txt", "<user> <url> lol <hashtag>\n<user> hi\n"),
    "sentences in angle brackets": ("a.txt", "<s> <unk> went to the <unk> . </s>\n"),
    "HTML in prose": ("a.txt", "<html> is the first tag of a page.\n"),
    "a word of HTML": ("a.txt", "<body> of water: a lake.\n"),
    "HTML in Markdown": ("a.md", "<!-- x -->\n<head> of state\n\nThe page ends by `</html>`.\n"),
    "a dump in Markdown": (
        "a.md", "# Dumps\n\n    <mediawiki>\n    <page><title>A</title></page></mediawiki>\n",
    ),
    "a dump in prose": ("a.txt", "A dump begins with <mediawiki xmlns=...> and has pages.\n"),
    "source code": ("a.h", "#include <vector>\ntemplate <typename T> class A { };\n"),
    "a log": ("a.log", '<134>Jan 1 host x: y\n[2024] ["x"] <a><b>\n'),
}  # fmt: skip
REFUSED = {
    "UTF-16 without a mark": (
        "a.txt", CYRILLIC.encode("utf-16-le"), "as UTF-16 without a byte order mark", "iconv",
    ),
    "UTF-16 of big ends without a mark": (
        "a.jsonl", f'{{"text": "{CYRILLIC}"}}'.encode("utf-16-be"), "as UTF-16 without", "iconv",
    ),
    "UTF-16 as HTML without a mark": (
        "a.html", f"<p>{CYRILLIC}</p>".encode("utf-16-le"), "as UTF-16 without", "iconv",
    ),
    "UTF-32 without a mark": ("a.txt", CYRILLIC.encode("utf-32-le"), "UTF-32", "iconv"),
    "UTF-32 of big ends in CSV": (
        "a.csv", "id,text\n1,é\n".encode("utf-32-be"), "UTF-32", "iconv",
    ),
    "zeros alone": ("a.txt", bytes(3000), "a zero byte at byte 0", "leave it out"),
    "zeros before text": ("a.txt", bytes(70) + b"A text.\n" * 99, "zero byte at byte 0", "tr -d"),
    "gzip as tar": ("a.tar", gzip.compress(TAR), "gzip data", r"rename it to end in \.tar\.gz"),
    "tar as zip": ("a.zip", TAR, "tar data", r"rename it to end in \.tar$"),
    "zip of a method that is not read": (
        "a.zip", pack_zip({"a": b""}).replace(b"\x14\0\0\0\x08\0", b"\x14\0\0\0\x09\0"),
        "compression method is not supported", "7z x FILE",
    ),
    "compressed Parquet": (
        "a.parquet.gz", gzip.compress(pack_parquet(pa.table({"text": ["x"]}))),
        r"Parquet that is compressed as \.gz", "decompress the file",
    ),
    "compressed Arrow": (
        "a.arrow.zst", zstandard.compress(pack_arrow(pa.table({"text": ["x"]}))),
        r"Arrow that is compressed as \.zst", "decompress the file",
    ),
    "a part of HTML": (
        "a.txt", b"<p>A <b>bold</b> text.</p>\n<p>More.</p>", "begins with", "--format html",
    ),
    "tags with attributes": (
        "a.txt", b'<CHAPTER ID=1>\nResumption\n<SPEAKER ID=1 NAME="P">\n', "begins with", "JSON l",
    ),
    "elements on one line": (
        "a.txt", b"<DOC> <DOCNO> A1 </DOCNO>\nText.\n</DOC>\n", "begins with", "JSON lines",
    ),
    "the end of a dump": (
        "a.xml", b"of a page.</text></revision></page>\n</mediawiki>", "begins with", "JSON lines",
    ),
    "WARC without its beginning": (
        "a.wet", wet_record("One.")[9:], "cannot be read as WARC", "fetch the file again",
    ),
    "WARC of line feeds": (
        "a.wet", wet_record("One.", "\n"), r"lines end in \\n alone", "warcio recompress",
    ),
    "tar under another name": ("a.gz", gzip.compress(TAR), "tar data", r"end in \.tar\.gz"),
    "tar joined": ("a.tar", TAR + TAR, "behind the archive's end", "unpack it"),
    "tar without its end": (
        "a.tar", TAR[:2048], "ends without the blocks of zeros", "fetch or pack it again",
    ),
    "tar cut in a member": (
        "a.tar", TAR[:520], r"one\.txt: cannot be read as tar .unexpected end", "fetch or pack",
    ),
    "tar damaged": (
        "a.tar", TAR[:1100] + b"\x07" + TAR[1101:], "found bytes behind", "damaged there",
    ),
    "tar of names elsewhere": ("a.tar", pack_tar({"../a": b"x"}), "member '../a'", "pack it again"),
    "zip in tar": (
        "a.tar", pack_tar({"b.zip": pack_zip(BOOKS)}), "a zip file in an archive", "unpack",
    ),
    "DOCX": ("a.docx", pack_zip({"[Content_Types].xml": b"<T/>", "word/document.xml": b"<w/>"}),
             "a Word document", "pandoc"),
    "DOCX in a zip's name": (
        "a.docx.zip", pack_zip({"[Content_Types].xml": b"<T/>", "word/document.xml": b"<w/>"}),
        "a Word document", "pandoc",
    ),
    "XLSX without a name": (
        "a", pack_zip({"docProps/app.xml": b"<a/>", "xl/workbook.xml": b"<w/>"}),
        "an Excel sheet", "libreoffice --headless --convert-to csv",
    ),
    "EPUB": (
        "a.epub", pack_zip({"mimetype": b"application/epub+zip"}), "an EPUB book", "pandoc",
    ),
    "NPZ": ("a.npz", pack_zip({"a.npy": b"\x93NUMPY"}), "a NumPy array", "JSON lines"),
    "PDF": ("a.pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "a PDF document", "pdftotext"),
    "RTF": ("a.rtf", rb"{\rtf1\ansi A text.}", "found RTF", "pandoc"),
    "RTF under another name": ("a.doc", rb"{\rtf1\ansi A text.}", "found RTF", "pandoc"),
    "DOC": ("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(9), "of before 2007", "libreof"),
    "7z": ("a.7z", b"7z\xbc\xaf\x27\x1c\0\x04", "7z data", "7z x FILE"),
    "RAR": ("a.rar", b"Rar!\x1a\x07\x01\0", "a RAR archive", "unrar x"),
    "lz4": ("a.txt.lz4", b"\x04\x22\x4d\x18\x64\x40", "lz4 data", "lz4 -d FILE"),
    "compress": ("a.txt.Z", b"\x1f\x9d\x90abc", "data of Unix compress", "gzip -d FILE"),
    "TFRecord": ("part-00000", tfrecord(b"x" * 300), "found TFRecord", "TFRecordDataset"),
    "NumPy": ("ids", b"\x93NUMPY\x01\0v\0{'descr': '<i4'}", "a NumPy array", "token ids"),
    "pickle": ("a.pkl", b"\x80\x04\x95\x10\0\0\0\0\0\0\0]", "a pickle", "JSON lines"),
    "HDF5": ("a.h5", b"\x89HDF\r\n\x1a\n\0", "found HDF5", "h5py"),
    "SQLite": ("a.db", b"SQLite format 3\0\x10", "an SQLite database", "sqlite3 -csv"),
    "image": ("a.txt", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "an image", "tesseract"),
    "sound": ("a.mp3", b"ID3\x04\0\0\0\0\0\0", "sound or video", "transcribe"),
    "program": ("tool", b"\x7fELF\x02\x01\x01\0", "a program", "leave it out"),
    "subtitles": ("a.srt", b"1\n00:00:01,000 --> 00:00:02,000\nHi.\n", "subtitles", "times"),
    "notebook": ("a.ipynb", b'{\n "cells": []}', "a notebook", "nbconvert"),
    "XML of Stack Exchange": (
        "Posts.xml", b'<?xml version="1.0"?>\n<posts>\n<row Body="x"/>', "begins with", "iterparse",
    ),
    "XML without a name": ("posts", b'<posts>\n  <row Id="1"/>', "begins with", "iterparse"),
    "zero bytes": ("a.txt", b"A text\0with zeros", "a zero byte at byte 6", r"tr -d '\\000'"),
    "gzip in gzip": (
        "a.jsonl.gz", gzip.compress(gzip.compress(JSONL)), "gzip data inside of its gzip data",
        r"gzip -dc < FILE > NEW\.gz",
    ),
    "gzip in zstd": (
        "a.zst", zstandard.compress(gzip.compress(JSONL)), "gzip data inside of its zstd data",
        r"zstd -dc < FILE > NEW\.gz",
    ),
    "gzip under another name": ("a.txt", gzip.compress(b"x"), "gzip data", r"end in \.gz"),
    "JSON array": ("a.json", b'[{"text": "x"}]', "a JSON array", "jq -c"),
    "JSON lines of a doubled field": (
        "a.jsonl", b'{"text": "a", "text": "b"}\n', "field 'text' twice", "rename one",
    ),
    "CSV of a doubled column": ("a.csv", b"text,text\na,b\n", "field 'text' twice", "rename one"),
    "Arrow of a doubled column": (
        "a.arrow", pack_arrow(pa.Table.from_arrays([["a"], ["b"]], ["text", "text"])),
        "2 columns named 'text'", "rename",
    ),
    "Parquet of a doubled column": (
        "a.parquet", pack_parquet(pa.Table.from_arrays([["a"], ["b"]], ["text", "text"])),
        "2 columns named 'text'", "rename",
    ),
    "CSV in Latin-1": ("a.csv", b"id,text\n1,caf\xe9\n", "a.csv:2: found the byte 0xe9", "iconv"),
    "CSV of another width": (
        "a.csv", b"id;text\n1;a\n2;b\n3\n", "a.csv:4: found 1 cells, expected 2", "semicolons",
    ),
    "old and new line ends": (
        "a.jsonl", b'{"text": "a"}\r' * 5000 + b'{"text": "b"}\n', r"lines end in \\r at f", "tr ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", READ)
def test_what_is_known_is_read(kind):
    name, data, texts = READ[kind]
    assert read(name, data) == texts


@pytest.mark.parametrize("kind", AS_IT_STANDS)
def test_text_that_speaks_of_another_kind_is_text(kind):
    name, text = AS_IT_STANDS[kind]
    assert read(name, text.encode()) == [text]


@pytest.mark.parametrize("name", ["a.xml.bz2", "A.XML.BZ2"])
def test_ranges_of_a_dump_hold_its_pages_once_whatever_the_case_of_its_name(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(dump_of_streams(9))
    parts = plan_parts(find_inputs([str(path)]), "auto", path.stat().st_size)
    assert len(parts) == 4
    texts = [document.text for part in parts for document in read_part(part)]
    assert [text[:7] for text in texts] == [f"Page {n}." for n in range(9)]


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_known_is_refused_in_one_line_with_its_cure(kind):
    name, data, found, cure = REFUSED[kind]
    with pytest.raises(ValueError, match=found) as error:
        read(name, data)
    said = str(error.value)
    assert said.startswith(f"memory:///kinds/{name}")
    assert re.search(cure, said)
    assert "\n" not in said
    # A cure is no guess: a file is renamed where its name lies, and iconv is for text.
    assert "rename it to end" not in said or "which its name does not say" in said
    assert "iconv" not in said or "byte 0xe9" in said or "UTF-" in found


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()),
        pa.run_end_encoded(pa.int32(), pa.string()),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("pack", [pack_arrow, lambda t: by_footer_alone(pack_arrow(t))])
def test_every_arrow_type_of_text_is_text(kind, pack):
    """The types that arrow-testing has files of; pyarrow says what their texts are."""
    table = pa.table({"text": column(kind)})
    assert read("a.arrow", pack(table)) == table["text"].to_pylist()


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
@pytest.mark.parametrize("encoding", ["PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_every_parquet_encoding_of_text_is_text(codec, encoding):
    """The encodings and codecs that parquet-testing has files of."""
    buffer = io.BytesIO()
    table = pa.table({"text": column(pa.string())})
    options = {"use_dictionary": False, "column_encoding": {"text": encoding}}
    pq.write_table(table, buffer, compression=codec, **options)
    assert read("a.parquet", buffer.getvalue()) == table["text"].to_pylist()


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_what_pythons_csv_writes_is_read(delimiter, quoting):
    texts = ['He said "no", then; left', "two\nlines\tand a tab", "a | b", "", "plain", '"', "\\"]
    buffer = io.StringIO()
    writer = csv.writer(buffer, delimiter=delimiter, quoting=quoting)
    writer.writerows([["id", "text"], *([str(n), text] for n, text in enumerate(texts))])
    for name in ("a.csv", "a.tsv") if delimiter == "\t" else ("a.csv",):
        assert read(name, buffer.getvalue().encode()) == texts


def test_csv_is_what_pyarrow_reads():
    data = b'id,text\n1,"a ""b"""\n2,c d\n3,\n4,"x,y"\n'
    assert read("a.csv", data) == pyarrow.csv.read_csv(io.BytesIO(data))["text"].to_pylist()


ROWS = b'id,text\n1,"open\n2,fine\n3,a"b\n4,"c"d\n5,\xe9\n6,"x\ny"\n7,z,z\n8,end\n'


def test_a_fault_of_a_row_is_counted_and_costs_no_other_row():
    skipped: dict[str, int] = {}
    found = read("a.csv", ROWS, on_bad_document="skip", skipped=skipped)
    assert found == ["fine", 'a"b', "x\ny", "end"]
    assert skipped == {"bad_row": 3, "not_utf8": 1}
    said = r"a\.csv:2: ',' expected after '\"', with commas between cells, quotes doubled"
    with pytest.raises(ValueError, match=said):
        read("a.csv", ROWS)


def test_blank_is_what_strip_takes_off():
    wrong = [
        code
        for code in range(0x110000)
        if not 0xD800 <= code < 0xE000 and is_blank(chr(code).encode()) == bool(chr(code).strip())
    ]
    assert wrong == []
    assert is_blank("\u3000 \t\u00a0\r".encode())
    assert not is_blank("\u3000 \u00b7".encode())
    assert not is_blank(b"\xe3\x80")


@pytest.mark.parametrize("cut", [1, 3, 6])
def test_old_line_ends_are_known_in_every_range(tmp_path, cut):
    path = tmp_path / "a.txt"
    path.write_bytes(b"First.\rOne.\r\rSecond.\r\rThird.\r")
    expected = ["First.\nOne.", "Second.", "Third."]
    parts = plan_parts(find_inputs([str(path)]), "text-blank-lines", -(-path.stat().st_size // cut))
    assert len(parts) == cut
    assert [document.text for part in parts for document in read_part(part)] == expected


def test_the_table_of_kinds_can_be_read_and_extended():
    suffixes = [suffix for kind in KINDS for suffix in kind.suffixes.split()]
    assert len(suffixes) == len(set(suffixes))
    assert all(suffix.startswith(".") and suffix == suffix.lower() for suffix in suffixes)
    assert all(kind.suffixes or kind.magic for kind in KINDS)


def test_other_text_may_be_read_as_it_stands():
    for name, data in (("a.rtf", rb"{\rtf1 A.}"), ("a.xml", b"<a><b>x</b></a>")):
        assert read(name, data, "text") == [data.decode()]
    with pytest.raises(ValueError, match="a PDF document"):
        read("a.pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "text")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (b"caf\xe9.txt", r"/caf\\xe9\.txt: the file's name is no UTF-8; rename it"),
        (b"a::b.txt", "/a::b.txt: '::' in a file's name is taken for a part of a URL; rename"),
    ],
)
def test_names_that_cannot_be_opened_are_named(tmp_path, name, said):
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(b"Text.")
    with pytest.raises(ValueError, match=said):
        find_inputs([str(tmp_path)])


def test_names_that_look_like_urls_are_read(tmp_path):
    for name in ("v?versionId=3.txt", "a[1].txt", "a#b.txt"):
        (tmp_path / name).write_text(name)
    parts = plan_parts(find_inputs([str(tmp_path)]), "auto", 2**20)
    assert [document.text for part in parts for document in read_part(part)] == [
        "a#b.txt", "a[1].txt", "v?versionId=3.txt",
    ]  # fmt: skip
