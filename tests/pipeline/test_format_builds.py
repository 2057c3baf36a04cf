"""Every input format, compression and archive gives one corpus the same shards, to the root hash."""

import bz2
import gzip
import io
import json
import lzma
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pipeline.cli import COMMANDS
from pipeline.command_line.program import run_program
from pipeline.shards.dataset import open_dataset

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
        f"<page><title>T</title><ns>0</ns><id>{number}</id><revision><text>{wikitext}</text></revision></page>\n"
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
    "auto": lambda texts: {
        "a.jsonl.zst": zstandard.compress(write_json_lines(texts[:9])),
        "b.zip": write_archive(texts[9:20]),
        "c.xml": b"".join(write_dump(texts[20:])),
    },
}


@pytest.mark.processes
@pytest.mark.parametrize("text_format", INPUTS)
def test_every_format_gives_the_same_shards(texts, vocab_file, tmp_path, text_format):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    lines = [text.replace(". ", ".\n") for text in texts[:NUM_DOCUMENTS]]
    for name, data in INPUTS[text_format](lines).items():
        corpus.joinpath(name).write_bytes(data)
    words = ["build", "--input", corpus, "--output", tmp_path / "data", "--format", text_format]
    words += ["--vocab", vocab_file, "--passes", 1, "--seq_lens", 64, "--part_bytes", 4096]
    words += ["--workers", 1]
    assert run_program("python -m pipeline", "Tests.", COMMANDS, list(map(str, words))) == 0
    assert open_dataset(str(tmp_path / "data")).manifest.root_hash == ROOT_HASH
