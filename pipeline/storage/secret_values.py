"""Hides secrets in messages: values of storage options, passwords in URLs, and queries of URLs.

Storage options are recognized by their values: every process learns the values when it parses
options or opens a filesystem. Secrets in URLs are recognized by their form. A query counts as a
secret because the query of a presigned URL gives access to the file.
"""

import contextlib
import json
import logging
import re
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any
from urllib.parse import quote

from pipeline.storage.quoting import printable

HIDDEN = "(hidden)"
"""Stands in messages in place of a secret."""
_SHOWN = {
    "endpoint_url", "region", "region_name", "protocol", "anon", "addressing_style", "access",
    "signature_version", "connect_timeout", "read_timeout", "max_pool_connections", "consistency",
    "default_block_size", "mode",
}  # fmt: skip
"""Names of the options that are not secrets. The values of all other options are."""

_MIN_CHARACTERS = 4
"""Values shorter than this are not hidden, as every message would have holes."""
_MAX_WORD = 12
"""Values up to this length are hidden only as whole words, as they may be parts of others."""
_MIN_DIGITS = 6
"""Numbers with fewer digits, such as timeouts, are not hidden."""
_USER_INFO = re.compile(r"\b([a-z][a-z0-9+.-]*://)[^/\s:@'\"]*:(?!\d+/)[^\s@'\"]*@", re.IGNORECASE)
_WITH_QUERY = re.compile(r"\b([a-z][a-z0-9+.-]*)(://[^\s?#'\"<>]*\?)([^\s#'\"<>]+)", re.IGNORECASE)
# In a message, a line number or punctuation such as ":12," may follow a URL. It is not hidden.
_AFTER_URL = r"(?=(?::\d+)?[:;,.)\]}]*$)"
_NOT_HIDDEN = r"(?!\(hidden\))"
_QUERY_VALUE = re.compile(rf"([^&;=]*=){_NOT_HIDDEN}[^&;]+?(?=[&;]|{_AFTER_URL})")
_BARE_QUERY = re.compile(rf"(?<![^&;]){_NOT_HIDDEN}[^&;=]+?(?=[&;]|{_AFTER_URL})")
_WITHOUT_QUERY = {"file", "local", "memory"}
"""Schemes whose paths may hold a question mark."""
_WEB = {"http", "https"}
"""Schemes whose query is a secret even if it has no "=". Elsewhere a "?" may be part of a glob."""
_NO_SECRETS = {"project="}
"""Keys whose values are shown: the page of a job on Dataflow is found by its project."""
_RENEWED = re.compile(
    r"x-(amz|goog|oss|obs|cos|ms)-.*|signature|sig|s[eiprtv]|sk[a-z]*|expires|policy|key-pair-id"
    r"|(.*access.?key.?id)|(.*token)|hdnts|verify",
    re.IGNORECASE,
)
"""Keys of a query that belong to a signature, so that their values change when it is renewed."""
_values: set[str] = set()
"""The values of options that this process hides."""


def learn(options: Mapping[str, Any] | None) -> None:
    """Makes this process hide the values of storage options from now on.

    Values of options that are not secret (`_SHOWN`) are not hidden. Neither are values of fewer
    than 4 characters, nor numbers of fewer than 6 digits, because they occur in many messages by
    chance.

    Args:
        options: Options of an fsspec filesystem, which may be nested; None for no options.
    """
    texts = {*_texts(options or {})} - _SHOWN  # gcsfs takes the word anon for a token
    secrets = {text for text in texts if len(text) >= _MIN_CHARACTERS}
    if secrets <= _values:
        return
    _values.update(secrets)
    _pattern.cache_clear()
    _watch_tracebacks()


def find_password(url: str) -> str | None:
    """Returns the password in a URL such as s3://USER:PASSWORD@HOST, or None if it has none."""
    match = _USER_INFO.search(url)
    return match[0].removesuffix("@").partition("://")[2].partition(":")[2] if match else None


def hide(text: str) -> str:
    """Returns a text with every secret in it replaced by "(hidden)".

    The keys of a URL's query stay. Values of options are also found if they are escaped as in
    Python, JSON or a URL.
    """
    if "@" in text:
        text = _USER_INFO.sub(rf"\1{HIDDEN}@", text)
    if (pattern := _pattern()) is not None:
        text = pattern.sub(HIDDEN, text)
    return _WITH_QUERY.sub(_hide_query, text) if "?" in text and "://" in text else text


def identify(url: str) -> str:
    """Returns a URL without the keys of its query that sign it, as those of a presigned URL.

    So the result stays the same when the URL is signed anew, and identifies the file. A URL without
    a query, or a local path, is returned unchanged.
    """
    return _WITH_QUERY.sub(_drop_signature, url) if "?" in url and "://" in url else url


def without_query(url: str) -> str:
    """Returns an HTTP URL without its query, so that it ends with the file's name.

    Other URLs are returned unchanged.
    """
    scheme = url.rpartition("://")[0].rpartition("::")[2].lower()
    return url.partition("?")[0] if scheme in _WEB else url


def _hide_query(match: re.Match[str]) -> str:
    """Returns a URL with the values of its query hidden; `match` is a match of `_WITH_QUERY`."""
    scheme, middle, query = match.groups()
    if scheme.lower() in _WITHOUT_QUERY:
        return match[0]
    if scheme.lower() in _WEB:
        query = _BARE_QUERY.sub(HIDDEN, query)
    return scheme + middle + _QUERY_VALUE.sub(_hide_value, query)


def _hide_value(match: re.Match[str]) -> str:
    """Returns KEY=VALUE of a query with the value hidden; `match` is a match of `_QUERY_VALUE`."""
    return match[0] if match[1] in _NO_SECRETS else match[1] + HIDDEN


def _drop_signature(match: re.Match[str]) -> str:
    """Returns a URL without the keys that sign it; `match` is a match of `_WITH_QUERY`."""
    scheme, middle, query = match.groups()
    if scheme.lower() in _WITHOUT_QUERY:
        return match[0]
    pairs = [pair for pair in query.split("&") if not _RENEWED.fullmatch(pair.partition("=")[0])]
    return (scheme + middle + "&".join(pairs)).removesuffix("?")


def show(name: str) -> str:
    """Returns a name or URL for a line of output, without secrets and control characters."""
    return printable(hide(name))


def hide_in(value: Any) -> Any:
    """Returns a copy of a JSON value in which the secrets in all texts and keys are hidden."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, Mapping):
        return {hide_in(key): hide_in(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [hide_in(item) for item in value]
    return value


def _texts(value: Any) -> Iterator[str]:
    """Yields the values in nested options that may be secrets, as texts.

    Values whose key is in `_SHOWN`, truth values and short numbers are left out.
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key not in _SHOWN:
                yield from _texts(item)
    elif isinstance(value, list | tuple | set):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str | bytes):
        yield value if isinstance(value, str) else value.decode(errors="replace")
    elif not isinstance(value, bool) and len(str(value)) >= _MIN_DIGITS:
        yield str(value)


@cache
def _pattern() -> re.Pattern[str] | None:
    """Returns a pattern that matches every value to hide, plain or escaped.

    It returns None if there are no values to hide.
    """
    spellings: set[str] = set()
    for value in _values:
        spellings |= {value, json.dumps(value)[1:-1], repr(value)[1:-1], quote(value, safe="")}
    longest_first = sorted(spellings, key=lambda spelling: (-len(spelling), spelling))
    return re.compile("|".join(map(_bounded, longest_first))) if spellings else None


def _bounded(value: str) -> str:
    """Returns a pattern for a value; a short value matches only as a whole word."""
    escaped = re.escape(value)
    return escaped if len(value) > _MAX_WORD else rf"(?<![A-Za-z0-9]){escaped}(?![A-Za-z0-9])"


@cache
def _watch_tracebacks() -> None:
    """Hides secrets in tracebacks of uncaught errors, in all threads, and in log messages."""

    def show(kind: Any, error: Any, trace: Any) -> None:
        """Prints the traceback of an uncaught error without secrets."""
        if kind is not SystemExit:  # SystemExit ends a thread silently
            sys.stderr.write(hide("".join(traceback.format_exception(kind, error, trace))))

    def make_hidden(*arguments: Any, **options: Any) -> logging.LogRecord:
        """Makes a log record by the factory that was set before, and hides secrets in it."""
        record = make(*arguments, **options)
        with contextlib.suppress(TypeError, ValueError):  # the message does not fit its arguments
            message = record.getMessage()
            hidden = hide(message)
            if hidden != message:
                record.msg = hidden
                record.args = ()
        return record

    sys.excepthook = show
    threading.excepthook = lambda failed: show(*failed[:3])
    make = logging.getLogRecordFactory()
    logging.setLogRecordFactory(make_hidden)
