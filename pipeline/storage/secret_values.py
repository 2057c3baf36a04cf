"""Secrets by their value: what storage options hold is shown nowhere, however it was given. Stdlib only.

Options are learned where they are parsed and where a filesystem is opened, in every process. From
then on `hide` takes their values out of a text, `hide_in` out of a record before it is written, and
tracebacks are printed without them.
"""

import contextlib
import json
import logging
import re
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote

HIDDEN = "(hidden)"
_SHOWN = {
    "endpoint_url", "region", "region_name", "protocol", "anon", "addressing_style", "signature_version", "mode",
    "connect_timeout", "read_timeout", "max_pool_connections", "default_block_size", "access", "consistency",
}  # fmt: skip
"""Options that are no secrets: words that messages have too. Any other is one, whatever it is called."""

_MIN_CHARACTERS = 4
_MAX_WORD = 12  # what is shorter may be part of another word, which stays
_MIN_DIGITS = 6
_USER_INFO = re.compile(r"\b([a-z][a-z0-9+.-]*://)[^/\s:@'\"]*:(?!\d+/)[^\s@'\"]*@", re.IGNORECASE)
_MAPPING = re.compile(r"\{.*\}", re.DOTALL)
_values: set[str] = set()
_OPTION = "storage_opt"


def learn(options: Mapping[str, Any] | None) -> None:
    """Takes the values of storage options for secrets, from now on and in all of this process."""
    found = {text for text in _texts(options or {}) if len(text) >= _MIN_CHARACTERS}
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
    """A text without secrets: values of options, also as JSON and URLs write them, and passwords in URLs."""
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


def hide_arguments(arguments: Sequence[str]) -> list[str]:
    """Arguments of a command; of one that has a secret only the flag is left, and of a URL all but the password."""
    shown = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        flag, equals, _ = argument.partition("=")
        if _is_option(before) and "=" not in before:
            shown.append(HIDDEN)
        elif _is_option(flag) and equals:
            shown.append(f"{flag}={HIDDEN}")
        else:
            shown.append(_hide_argument(argument))
    return shown


def hide_unparsed(message: str) -> str:
    """What a parser says of arguments it does not take, without what stands in braces where that may be options."""
    if _OPTION in message or "unexpected word" in message:
        message = _MAPPING.sub(f"{{{HIDDEN}}}", message)
    return hide(message)


def _hide_argument(argument: str) -> str:
    head, equals, _ = argument.partition("=")
    hidden = hide(argument)
    if HIDDEN not in hidden or hidden == _USER_INFO.sub(rf"\1{HIDDEN}@", argument):
        return hidden
    return f"{head}={HIDDEN}" if equals and head.startswith("--") and hide(head) == head else HIDDEN


def _is_option(flag: str) -> bool:
    return flag.startswith("--") and flag.lstrip("-").replace("-", "_").startswith(_OPTION)


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


@lru_cache(maxsize=1)
def _pattern() -> re.Pattern[str] | None:
    spellings = {
        each
        for value in _values
        for each in (value, json.dumps(value)[1:-1], quote(value, safe=""))
    }
    spellings |= {repr(value)[1:-1] for value in _values}
    if not spellings:
        return None
    longest_first = sorted(spellings, key=lambda each: (-len(each), each))
    return re.compile("|".join(map(_bounded, longest_first)))


def _bounded(value: str) -> str:
    escaped = re.escape(value)
    return escaped if len(value) > _MAX_WORD else rf"(?<![A-Za-z0-9]){escaped}(?![A-Za-z0-9])"


@lru_cache(maxsize=1)
def _watch_tracebacks() -> None:
    """Has what nobody catches, in any thread, and what is logged, shown without secrets."""
    of_process, of_thread = sys.excepthook, threading.excepthook

    def show(kind: Any, error: Any, trace: Any) -> None:
        if not _print_hidden(kind, error, trace):
            of_process(kind, error, trace)

    def show_of_thread(failed: threading.ExceptHookArgs) -> None:
        if not _print_hidden(failed.exc_type, failed.exc_value, failed.exc_traceback):
            of_thread(failed)

    sys.excepthook, threading.excepthook = show, show_of_thread
    make = logging.getLogRecordFactory()

    def make_hidden(*arguments: Any, **options: Any) -> logging.LogRecord:
        record = make(*arguments, **options)
        with contextlib.suppress(
            TypeError, ValueError
        ):  # of a message that does not fit its arguments
            said = record.getMessage()
            if (hidden := hide(said)) != said:
                record.msg, record.args = hidden, ()
        return record

    logging.setLogRecordFactory(make_hidden)


def _print_hidden(kind: Any, error: Any, trace: Any) -> bool:
    """Prints a traceback that has a secret without it; whether there was one."""
    said = "".join(traceback.format_exception(kind, error, trace))
    if (hidden := hide(said)) == said:
        return False
    sys.stderr.write(hidden)
    return True
