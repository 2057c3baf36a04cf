"""WARC and WET: pages of literal records, real Common Crawl files."""

import gzip

import fsspec
import pytest

from pipeline.documents import Document, records
from pipeline.documents.parts import find_inputs, plan_parts
from pipeline.documents.read import read_part

HTML_UTF8 = b"Content-Type: text/html; charset=utf-8"
MAIN = "<main><p>One <b>bold</b> caf\u00e9.</p><p>Two.</p></main>"
HTML = f"<html><body><nav><a href=x>Menu</a></nav>{MAIN}</body></html>"
CHUNKED = b"5;x=y\r\n<html\r\n%x\r\n%s\r\n0\r\n\r\n"
GZIP, CUT = b"\r\nContent-Encoding: gzip", gzip.compress(HTML.encode())[:-9]


def record(kind, content, content_type="text/plain"):
    head = f"WARC/1.0\r\nWARC-Type: {kind}\r\nContent-Type: {content_type}\r\n"
    head += f"Content-Length: {len(content)}\r\n\r\n"
    return head.encode() + content + b"\r\n\r\n"


def response(body, header=HTML_UTF8, status=b"200 OK"):
    http = b"HTTP/1.1 " + status + b"\r\n" + header + b"\r\n\r\n" + body
    return record("response", http, "application/http; msgtype=response")


def read(data, name="f.warc", text_format="auto", **options):
    fsspec.filesystem("memory").pipe(f"/warc/{name}", data)
    [part] = plan_parts(find_inputs([f"memory://warc/{name}"]), text_format, 2**20)
    return list(read_part(part, **options))


INFO = record("warcinfo", b"a: b\r\n")
NO_HTTP = record("response", b"no http", "application/http")


@pytest.mark.parametrize("name", ["f.wet", "f.warc.wet.gz", "f"])
def test_wet(name):
    members = [INFO, record("conversion", "One\nlin\u00e9.".encode())]
    members += [record("metadata", b"x"), record("conversion", b"Two")]
    data = b"".join(map(gzip.compress, members)) if name.endswith(".gz") else b"".join(members)
    skipped: dict[str, int] = {}
    assert read(data, name, skipped=skipped) == [
        Document("One\nlin\u00e9.", f"memory:///warc/{name}, record 2"),
        Document("Two", f"memory:///warc/{name}, record 4"),
    ]
    assert skipped == {"not_a_page": 2}


@pytest.mark.parametrize(
    ("body", "header"),
    [
        (HTML.encode(), HTML_UTF8),
        (HTML.encode("latin-1"), b"Content-Type: text/html; charset=iso-8859-1"),
        (gzip.compress(HTML.encode()), HTML_UTF8 + b"\r\nContent-Encoding: gzip"),
        (
            CHUNKED % (len(HTML) - 4, HTML.encode()[5:]),
            HTML_UTF8 + b"\r\nTransfer-Encoding: chunked",
        ),
    ],
)
def test_html(body, header):
    skipped: dict[str, int] = {}
    others = response(b"x", status=b"404 Not Found") + response(b"x", b"Content-Type: image/png")
    [document] = read(INFO + response(body, header) + others, skipped=skipped)
    expected = ["One bold caf\u00e9.", "Two."]
    assert [line for line in document.text.split("\n") if line.strip()] == expected
    assert document.where == "memory:///warc/f.warc, record 2"
    assert skipped == {"not_a_page": 3}


@pytest.mark.parametrize(
    "charset", [b"uf-t8", b"hex", b"undefined", b'"', b"idna", b"utf-7", b"ut\0f-8"]
)
def test_a_charset_that_does_not_exist_is_guessed(charset):
    body = HTML.replace("caf\u00e9", "cafe").encode()
    [document] = read(response(body, b"Content-Type: text/html; charset=" + charset))
    assert document.text.split() == ["One", "bold", "cafe.", "Two."]


@pytest.mark.parametrize(
    ("bad", "message", "reason"),
    [
        (record("conversion", b"caf\xe9"), "found the byte 0xe9", "not_utf8"),
        (NO_HTTP, "found b'no http', expected a response", "bad_http"),
        (response(b"x", HTML_UTF8 + GZIP), "found a body that is not", "bad_http"),
        (response(CUT, HTML_UTF8 + GZIP), "found a body that is not encoded .* cut short", "bad_http"),
        (response(b"x", HTML_UTF8 + b"\r\nContent-Encoding: br"), "found a body .*'br'", "bad_http"),
        (response(b"9\r\nx", HTML_UTF8 + b"\r\nTransfer-Encoding: chunked"), "found a body", "bad_http"),
        (record("conversion", b"x" * 301), "found a document of more than 300 bytes", "too_long"),
    ],
)  # fmt: skip
def test_malformed_pages_are_named_and_counted(monkeypatch, bad, message, reason):
    monkeypatch.setattr(records, "MAX_DOCUMENT_BYTES", 300)
    data = record("conversion", b"One") + bad + record("conversion", b"Two")
    said = f"^memory:///warc/f.warc, record 2: {message}.*--on_bad_document skip"
    with pytest.raises(ValueError, match=said):
        read(data)
    skipped: dict[str, int] = {}
    assert [d.text for d in read(data, on_bad_document="skip", skipped=skipped)] == ["One", "Two"]
    assert skipped == {reason: 1}


def test_broken_files_are_named():
    whole = INFO + record("conversion", b"One" * 100)
    said = "record 2: found 200 bytes of content, expected 300: the record is cut short"
    with pytest.raises(ValueError, match=said):
        read(whole[:-104])
    with pytest.raises(ValueError, match=r"f\.warc, record \d: cannot be read as WARC"):
        read(INFO + b"junk " * 99, on_bad_document="skip")
    with pytest.raises(ValueError, match=r"f\.warc\.gz: the gzip data ends in the middle"):
        read(gzip.compress(whole)[:-9], "f.warc.gz", "warc")


def test_real_files(shared_data):
    found = {}
    for kind in ("warc", "warc.wet"):
        path = shared_data / f"data/commoncrawl_sample/whirlwind.{kind}.gz"
        [part] = plan_parts(find_inputs([str(path)]), "auto", 2**20)
        [document] = read_part(part)
        found[kind] = document.text
    assert found["warc.wet"].startswith("Escopete - Biquipedia, a enciclopedia libre")
    assert "Ir al contenido" not in found["warc"]
    for text in found.values():
        assert "Escopete ye un municipio d'a provincia de Guadalachara" in text
