"""HTML pages whose bytes are not what their headers or they themselves say."""

import pytest

from pipeline.documents.html_pages import decode_html, extract_text, is_text

RUSSIAN = "Это настоящий русский текст страницы, каких много."
GERMAN = "Die größte Straße führt über die Brücke."
META = "<html><head><meta charset='{}'></head><body><p>{}</p></body></html>"
EQUIV = '<html><head><meta http-equiv="Content-Type" content="text/html; charset={}"></head>{}'


@pytest.mark.parametrize(
    ("text", "encoding", "hint"),
    [
        (META.format("windows-1251", RUSSIAN), "cp1251", "utf-8"),
        (EQUIV.format("windows-1251", RUSSIAN), "cp1251", "UTF-8"),
        (META.format("windows-1251", RUSSIAN), "cp1251", "iso-8859-1"),
        (f"<p>{RUSSIAN * 3}</p>", "cp1251", "utf-8"),
        (f"<p>{RUSSIAN * 3}</p>", "cp1251", "iso-8859-1"),
        (f"<p>{RUSSIAN * 3}</p>", "koi8-r", None),
        (META.format("utf-8", RUSSIAN), "cp1251", "windows-1251"),
        (META.format("koi8-r", RUSSIAN), "koi8-r", None),
        (META.format("windows-1251", RUSSIAN), "utf-8", "windows-1251"),
        (f"<p>{GERMAN}</p>", "utf-8", "iso-8859-1"),
        (f"<p>{GERMAN}</p>", "cp1252", "iso-8859-1"),
        (f"<p>{GERMAN}</p>", "cp1252", "utf-8"),
        (META.format("utf-8", GERMAN), "cp1252", "utf-8"),
        (f'<?xml version="1.0" encoding="EUC-JP"?>{"日本語の文章です。" * 3}', "euc-jp", None),
        (f"<p>{'日本語の文章です。' * 3}</p>", "shift_jis", "Shift_JIS"),
        (f"<p>{'日本語の文章です。' * 3}</p>", "iso2022_jp", "iso-2022-jp"),
        (f"<p>{'这是一个中文网页。' * 3}</p>", "gb18030", "gb2312"),
        (f"<p>{GERMAN}</p>", "utf-16-le", "utf-16"),
        ("<p>plain</p>", "ascii", "uf-t8"),
        ("<p>plain</p>", "ascii", "ut\0f-8"),
        ("", "ascii", None),
    ],
)  # fmt: skip
def test_the_bytes_decide_which_declaration_is_believed(text, encoding, hint):
    assert decode_html(text.encode(encoding), hint) == text


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_wins(encoding):
    assert decode_html(GERMAN.encode(encoding), "windows-1251") == GERMAN


def test_utf8_with_some_wrong_bytes_is_utf8():
    body = f"<p>{RUSSIAN}</p>".encode() + b"caf\xe9!"
    assert decode_html(body, "utf-8") == f"<p>{RUSSIAN}</p>caf\ufffd!"
    assert decode_html(b"<p>caf\xe9</p>", "utf-8") == "<p>café</p>"
    cut = f"<p>{RUSSIAN}".encode()[:-2]  # the stop, and half of the letter before it
    assert decode_html(cut, "utf-8") == f"<p>{RUSSIAN[:-2]}"


def test_binary_data_are_no_text():
    assert is_text(f"<p>{RUSSIAN}</p>\n")
    assert is_text("")
    assert not is_text(decode_html(bytes(range(256)) * 4, "iso-8859-1"))


def test_main_text():
    html = "<body><nav><a href=x>Menu</a></nav><main><p>One <b>two</b>.</p></main></body>"
    assert extract_text(html) == "One two."
