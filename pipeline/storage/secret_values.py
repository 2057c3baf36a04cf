"""Secrets by their value: what storage options hold is shown nowhere, however it was given.

Options are learned where they are parsed and where a filesystem is opened, in every process.
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

HIDDEN = "(hidden)"
_SHOWN = {
    "endpoint_url", "region", "region_name", "protocol", "anon", "addressing_style", "access",
    "signature_version", "connect_timeout", "read_timeout", "max_pool_connections", "consistency",
    "default_block_size", "mode",
}  # fmt: skip
"""Options that are no secrets: words that messages have too. Any other is one."""

_MIN_CHARACTERS = 4
_MAX_WORD = 12  # what is shorter may be part of another word, which stays
_MIN_DIGITS = 6
_USER_INFO = re.compile(r"\b([a-z][a-z0-9+.-]*://)[^/\s:@'\"]*:(?!\d+/)[^\s@'\"]*@", re.IGNORECASE)
_values: set[str] = set()


def learn(options: Mapping[str, Any] | None) -> None:
    """Takes the values of storage options for secrets, from now on and in all of this process."""
    texts = {*_texts(options or {})} - _SHOWN  # gcsfs takes the word anon for a token
    found = {text for text in texts if len(text) >= _MIN_CHARACTERS}
    if found <= _values:
        return
    _values.update(found)
    _pattern.cache_clear()
    _watch_tracebacks()


def find_password(url: str) -> str | None:
    """The password in a URL, between user and host; None where there is none."""
    found = _USER_INFO.search(url)
    return found[0].removesuffix("@").partition("://")[2].partition(":")[2] if found else None


def hide(text: str) -> str:
    """A text without values of options, also as JSON and URLs write them, and passwords in URLs."""
    if "@" in text:
        text = _USER_INFO.sub(rf"\1{HIDDEN}@", text)
    pattern = _pattern()
    return text if pattern is None else pattern.sub(HIDDEN, text)


def hide_in(value: Any) -> Any:
    """A JSON value of which no text and no key has a secret."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, Mapping):
        return {hide_in(key): hide_in(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [hide_in(each) for each in value]
    return value


def _texts(value: Any) -> Iterator[str]:
    """The values below a mapping or list, as text."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            if key not in _SHOWN:
                yield from _texts(each)
    elif isinstance(value, list | tuple | set):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, str | bytes):
        yield value if isinstance(value, str) else value.decode(errors="replace")
    elif not isinstance(value, bool) and len(str(value)) >= _MIN_DIGITS:
        yield str(value)


@cache
def _pattern() -> re.Pattern[str] | None:
    spellings: set[str] = set()
    for value in _values:
        spellings |= {value, json.dumps(value)[1:-1], repr(value)[1:-1], quote(value, safe="")}
    longest_first = sorted(spellings, key=lambda each: (-len(each), each))
    return re.compile("|".join(map(_bounded, longest_first))) if spellings else None


def _bounded(value: str) -> str:
    escaped = re.escape(value)
    return escaped if len(value) > _MAX_WORD else rf"(?<![A-Za-z0-9]){escaped}(?![A-Za-z0-9])"


@cache
def _watch_tracebacks() -> None:
    """Has what nobody catches, in any thread, and what is logged, shown without secrets."""

    def show(kind: Any, error: Any, trace: Any) -> None:
        if kind is not SystemExit:  # which ends a thread without a word
            sys.stderr.write(hide("".join(traceback.format_exception(kind, error, trace))))

    def make_hidden(*arguments: Any, **options: Any) -> logging.LogRecord:
        record = make(*arguments, **options)
        with contextlib.suppress(TypeError, ValueError):  # the message does not fit its arguments
            if (hidden := hide(said := record.getMessage())) != said:
                record.msg, record.args = hidden, ()
        return record

    sys.excepthook = show
    threading.excepthook = lambda failed: show(*failed[:3])
    make = logging.getLogRecordFactory()
    logging.setLogRecordFactory(make_hidden)
