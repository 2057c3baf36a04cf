"""Filters of the user's own: imported by dotted name, called with a document's text, their answers checked."""

import importlib
import re
from collections.abc import Callable
from typing import Any

from pipeline.documents import Document

OwnFilter = Callable[[str], Any]
RESERVED_REASONS = frozenset(
    [
        "duplicate",
        "near_duplicate",
        "excluded",
        "empty",
        "too_short",
        "too_long",
        "language",
        "task_text",
    ]
)
_REASON = re.compile("[a-z0-9_-]{1,40}")
_EXPECTED = "expected None or True to keep the document, or why it is dropped as a string of [a-z0-9_-]{1,40}"


def load_filter(name: str) -> OwnFilter:
    """The function that "module:function" names; raises ValueError where there is none."""
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        expected = "expected module:function, such as my_filters:keep_prose"
        raise ValueError(f"filter {name!r}: {expected}")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        raise ValueError(
            f"filter {name}: {module_name} cannot be imported: {error!r}; run from its folder or install it, on every"
            " worker too"
        ) from error
    function = getattr(module, function_name, None)
    if function is None or not callable(function):
        raise ValueError(f"filter {name}: {module_name} has no function {function_name}")
    found: OwnFilter = function
    return found


def describe_filter(name: str) -> str:
    """The name, and the `__version__` of the function or its module: all of a filter that a hash can cover."""
    function = load_filter(name)
    module = importlib.import_module(name.partition(":")[0])
    version = getattr(function, "__version__", getattr(module, "__version__", None))
    return name if version is None else f"{name} {version}"


def call_filter(name: str, function: OwnFilter, document: Document) -> str | None:
    """A filter's answer: None to keep the document, or the reason to drop it; raises ValueError for another one."""
    where = f"filter {name}, document {document.where}"
    try:
        answer = function(document.text)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{where}: it raised {error!r}") from error
    if answer is None or answer is True:
        return None
    if not isinstance(answer, str) or not _REASON.fullmatch(answer):
        raise ValueError(f"{where}: it returned {answer!r:.100}; {_EXPECTED}")
    if answer in RESERVED_REASONS:
        counted = "which the build counts itself; give another reason"
        raise ValueError(f"{where}: it returned {answer!r}, {counted}")
    return answer
