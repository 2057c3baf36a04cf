"""Compressed and encoded input: the same documents as plain, in bounded memory."""

import bz2
import gzip
import lzma
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest
import zstandard

from pipeline.documents import records
from pipeline.documents.parts import find_inputs, plan_parts
from pipeline.documents.read import read_part
from pipeline.storage import compression

ROOT = Path(__file__).parents[2]
COMPRESSORS = {".zst": zstandard.compress, ".gz": gzip.compress}
COMPRESSORS |= {".bz2": bz2.compress, ".xz": lzma.compress}
NAMES = {".zst": "zstd", ".gz": "gzip", ".bz2": "bzip2", ".xz": "xz"}
SAMPLES = {
    "text": b"One.\nTwo.\n",
    "text-blank-lines": b"One.\n\nTwo.\n",
    "jsonl": b'{"text": "One."}\n{"text": "Two."}\n',
    "cirrus": b'{"index":{"_id":"1"}}\n{"text": "One."}\n{"index":{"_id":"2"}}\n{"text": "Two."}\n',
    "wikiextractor": b'<doc id="1" title="T">\nT\nOne.\n</doc>\n<doc id="2">\nTwo.\n</doc>\n',
}


def read(data: bytes, text_format: str, name: str = "f", **options):
    fsspec.filesystem("memory").pipe(f"/compressed/{name}", data)
    parts = plan_parts(find_inputs([f"memory://compressed/{name}"]), text_format, 2**20)
    return [document.text for part in parts for document in read_part(part, **options)]


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize("text_format", SAMPLES)
def test_every_layout_in_every_compression(text_format, suffix):
    data = SAMPLES[text_format]
    pieces = (data[start : start + 7] for start in range(0, len(data), 7))
    frames = b"".join(map(COMPRESSORS[suffix], pieces))
    told = text_format if text_format in ("text-blank-lines", "cirrus") else "auto"
    assert read(frames, told, f"f.txt{suffix}") == read(data, text_format)


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize("zeros", [1, 4096, 9000])
def test_zeros_between_and_after_frames_are_padding(suffix, zeros):
    frames = [COMPRESSORS[suffix](text) + b"\0" * zeros for text in (b"One", b" two.")]
    assert read(b"".join(frames), "text", f"f{suffix}") == ["One two."]


@pytest.mark.parametrize("policy", ["stop", "skip"])
@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_broken_streams_are_named_always(suffix, policy):
    data = bytearray(COMPRESSORS[suffix](b"text " * 1000))
    said = rf"f\{suffix}: the {NAMES[suffix]} data ends in the middle of a frame"
    with pytest.raises(ValueError, match=said):
        read(bytes(data[:-3]), "text", f"f{suffix}", on_bad_document=policy)
    with pytest.raises(ValueError, match=rf"f\{suffix}: not {NAMES[suffix]} data"):
        read(b"plain text of some length", "text", f"f{suffix}", on_bad_document=policy)
    if suffix != ".zst":  # frames of zstd carry no checksum unless asked
        data[len(data) // 2] ^= 0xFF
        with pytest.raises(ValueError, match=rf"f\{suffix}: "):
            read(bytes(data), "text", f"f{suffix}", on_bad_document=policy)


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_bombs_are_refused(monkeypatch, suffix):
    monkeypatch.setattr(compression, "FREE_BYTES", 100_000)
    bomb = COMPRESSORS[suffix](b"x" * 4_000_000)
    said = rf"f\{suffix}: \d+ stored bytes became over \d+ bytes, .* 250 times"
    with pytest.raises(ValueError, match=said):
        read(bomb, "text", f"f{suffix}")
    harmless = COMPRESSORS[suffix](b"x" * 90_000)
    assert read(harmless, "text", f"f{suffix}") == ["x" * 90_000]


@pytest.mark.processes
def test_a_zstd_bomb_stops_before_it_is_unpacked(tmp_path):
    compressor = zstandard.ZstdCompressor().compressobj()
    zeros = b"\0" * 2**20
    path = tmp_path / "bomb.zst"
    path.write_bytes(b"".join(compressor.compress(zeros) for _ in range(2000)) + compressor.flush())
    peak, said = read_in_a_process(path)
    assert "bomb.zst" in said
    assert "a decompression bomb" in said
    assert peak < 400 * 2**20


def read_in_a_process(path):
    """Peak memory above that of the imports, in bytes, and what was said."""
    code = f"""
import sys
from pipeline.documents.parts import find_inputs, plan_parts
from pipeline.documents.read import read_part
peak = lambda: int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) * 1024
before = peak()
said = 0
try:
    for part in plan_parts(find_inputs([{str(path)!r}]), "auto", 2**20):
        for document in read_part(part):
            said += len(document.text)
except ValueError as error:
    said = error
print(peak() - before)
print(said)
"""
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    peak, said = ran.stdout.split("\n", 1)
    return int(peak), said.strip()


@pytest.mark.parametrize("text_format", SAMPLES)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_documents_over_the_limit_are_refused_by_place(monkeypatch, text_format, suffix):
    monkeypatch.setattr(records, "MAX_DOCUMENT_BYTES", 60)
    wrap = {
        "jsonl": b'{"text": "%s"}\n',
        "cirrus": b'{"index":{}}\n{"text": "%s"}\n',
        "wikiextractor": b'<doc id="3">\n%s\n</doc>\n',
    }.get(text_format, b"%s\n\n")
    long = b"x" * 99 if text_format in ("jsonl", "cirrus") else b"long\n" * 20
    data = b"".join(wrap % body for body in (b"short", long, b"end"))
    data = gzip.compress(data) if suffix else data
    lines = {"text": 1, "text-blank-lines": 3, "jsonl": 2, "cirrus": 4, "wikiextractor": 4}
    line = lines[text_format]
    said = f"f{suffix}:{line}: found a document of more than 60 bytes.*cut it"
    with pytest.raises(ValueError, match=said):
        read(data, text_format, f"f{suffix}")
    skipped: dict[str, int] = {}
    found = read(data, text_format, f"f{suffix}", on_bad_document="skip", skipped=skipped)
    assert skipped == {"too_long": 1}
    assert [text.strip() for text in found] == ([] if text_format == "text" else ["short", "end"])


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-8"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_byte_order_marks(encoding, suffix):
    data = '\ufeff{"text": "é力🎓"}\n{"text": "b"}\n'.encode(encoding)
    data = gzip.compress(data) if suffix else data
    assert read(data, "auto", f"f{suffix}") == ["é力🎓", "b"]


def test_broken_utf16_is_named():
    lone = '\ufeff{"text": "a"}\n{"text": "\ud800"}\n'.encode("utf-16-le", "surrogatepass")
    with pytest.raises(ValueError, match=r"f:2: found the byte 0xed"):
        read(lone, "jsonl")
    with pytest.raises(ValueError, match="f: the UTF-16 text ends in the middle of a character"):
        read(b"\xff\xfea\0b", "text")
