"""Sound little files of every format, for scripts/soak/fuzz.py and tests that damage them."""

import bz2
import functools
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from pipeline.shards import block_tables, manifest
from pipeline.shards.block import Block, encode_block
from pipeline.shards.records import Manifest, canonical_hash
from pipeline.shards.seal import NOTHING, add_seals
from pipeline.shards.shard_file import pack_shard

TEXTS = (
    "One sentence. Another one, of words.",
    "Zwei Sätze. 二 Zeichen.",
    "A third text\nof two lines.",
)
PAGE = (
    "<page><title>A {0}</title><ns>0</ns><id>{0}</id><revision><id>9</id><model>wikitext</model>"
    "<text>'''{1}''' [[link|word]] {{{{t|a=b}}}} &lt;ref&gt;x&lt;/ref&gt;</text></revision>"
    "</page>\n"
)
RECORD = (
    "WARC/1.0\r\nWARC-Type: {0}\r\nWARC-Record-ID: <urn:uuid:{1}>\r\n"
    "Content-Type: {2}\r\nContent-Length: {3}\r\n\r\n"
)
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "gz": lambda data: gzip.compress(data, mtime=0),
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: zstandard.ZstdCompressor().compress(data),
}


@functools.cache
def reader_seeds() -> dict[str, list[bytes]]:
    """Returns files by "FORMAT.SUFFIX"; FORMAT is one of pipeline.documents.formats.FORMATS."""
    jsonl = "".join(json.dumps({"text": text, "id": 1}) + "\n" for text in TEXTS).encode()
    plain = "\n\n".join(TEXTS).encode()
    seeds = {
        "text.txt": [plain, plain.decode().encode("utf-16"), b"\xef\xbb\xbf" + plain],
        "text-blank-lines.txt": [plain, ("\ufeff" + plain.decode()).encode("utf-16-be")],
        "jsonl.jsonl": [jsonl],
        "cirrus.json": [
            b"".join(b'{"index":{"_id":"1"}}\n' + line for line in jsonl.splitlines(keepends=True))
        ],
        "wikiextractor.txt": [_wikiextractor()],
        "parquet.parquet": [_parquet(None), _parquet("zstd"), _parquet("snappy")],
        "mediawiki.xml": [_mediawiki()],
        "mediawiki.xml.bz2": [bz2.compress(_mediawiki()) + bz2.compress(_mediawiki())],
        "warc.warc": [_warc()],
        "arrow.arrow": [_arrow(), _arrow()[:8] + b"\xff\xff\xff\xff\0\0\0\0" + _arrow()[16:]],
        "jsonl.tar": [_tar(jsonl)],
        "html.html": [b"<html><body><p>One sentence. Another one.</p></body></html>"],
        "csv.csv": [b'id,text\n1,"a, ""b"""\n2,c\n', b'id;text\n1;"a \\"b\\""\n2;c\n'],
        "csv.tsv": [b"id\ttext\n1\ta\\\tb\\\nc\n2\t\\N\n"],
        "jsonl.zip": [_zip(jsonl, zipfile.ZIP_DEFLATED), _zip(jsonl, zipfile.ZIP_STORED)],
    }
    return seeds | {
        f"jsonl.jsonl.{suffix}": [compress(jsonl)] for suffix, compress in COMPRESSIONS.items()
    }


@functools.cache
def codec_seeds() -> dict[str, list[bytes]]:
    """Returns a block, and the manifest and both tables of a dataset with two shards."""
    packed = [
        pack_shard(
            [_block(3 + index)],
            "train",
            64,
            0,
            manifest.shard_name("train", 64, 0, index),
            4,
            NOTHING,
        )
        for index in range(2)
    ]
    rows = [shard for shard, _ in ((shard, table) for _, shard, table in packed)]
    settings = {"seed": 1}
    whole = Manifest(
        format_version=manifest.FORMAT_VERSION,
        software={"beambert": "0"},
        settings=settings,
        settings_hash=canonical_hash(settings),
        vocab_sha256="0" * 64,
        tokenizer_sha256="0" * 64,
        vocab_size=100,
        special_ids={"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4},
        groups=manifest.group_totals(rows),
        counters={"documents": 5},
        root_hash=manifest.root_hash(rows),
        seal=add_seals(row.seal for row in rows),
    )
    return {
        "block": [encode_block(_block(3)), encode_block(_block(40)), encode_block(_block(0))],
        "manifest": [whole.to_json()],
        "shards.parquet": [manifest.shards_table(rows)],
        "blocks.parquet": [block_tables.blocks_table([table for _, _, table in packed])],
    }


def _block(num_instances: int) -> Block:
    """Instances [CLS] w w [SEP] w [SEP] with the second token masked."""
    ids = np.tile(np.array([2, 4, 10, 3, 12, 3], np.uint16), num_instances)
    numbers = np.arange(num_instances, dtype=np.uint64)
    return Block(
        input_ids=ids,
        offsets=np.arange(0, 6 * num_instances + 1, 6, dtype=np.int32),
        segment_a_length=np.full(num_instances, 4, np.uint16),
        masked_lm_positions=np.ones(num_instances, np.uint16),
        masked_lm_ids=np.full(num_instances, 11, np.uint16),
        masked_offsets=np.arange(num_instances + 1, dtype=np.int32),
        is_random_next=numbers % 2 == 1,
        document_a=numbers,
        document_b=numbers + numbers % np.uint64(2),
    )


def _wikiextractor() -> bytes:
    pages = (
        f'<doc id="{n}" url="u" title="T {n}">\nT {n}\n{text}\n</doc>\n'
        for n, text in enumerate(TEXTS)
    )
    return "".join(pages).encode()


def _mediawiki() -> bytes:
    pages = "".join(PAGE.format(number, text) for number, text in enumerate(TEXTS))
    return f'<mediawiki version="0.11"><siteinfo/>{pages}</mediawiki>'.encode()


def _warc() -> bytes:
    html = "<html><body><p>Hello &amp; good words on a page, enough to be text.</p></body></html>"
    response = f"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n{html}"
    bodies = [
        ("conversion", "text/plain", TEXTS[1]),
        ("response", "application/http; msgtype=response", response),
    ]
    records = (
        (RECORD.format(kind, number, media, len(body.encode())) + body).encode() + b"\r\n\r\n"
        for number, (kind, media, body) in enumerate(bodies)
    )
    return b"".join(records)


def _parquet(compression: str | None) -> bytes:
    sink = io.BytesIO()
    pq.write_table(
        pa.table({"text": list(TEXTS), "id": [1, 2, 3]}), sink, compression=compression or "none"
    )
    return sink.getvalue()


def _arrow() -> bytes:
    sink = io.BytesIO()
    table = pa.table({"text": list(TEXTS), "id": list(range(len(TEXTS)))})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def _tar(data: bytes) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for name, content in (("one.jsonl", data), ("two.jsonl.gz", COMPRESSIONS["gz"](data))):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return sink.getvalue()


def _zip(data: bytes, method: int) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", method) as archive:
        archive.writestr(zipfile.ZipInfo("a/one.jsonl"), data, method)
        archive.writestr(zipfile.ZipInfo("two.jsonl.gz"), COMPRESSIONS["gz"](data), method)
    return sink.getvalue()
