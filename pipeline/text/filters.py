"""Decides which cleaned documents are left out: by length, language, or the user's own functions.

Every rule looks at one document alone, so the result does not depend on how the input is cut into
parts.
"""

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from pipeline.documents import Document
from pipeline.documents.counts import WORDS_OF_REASONS

FilterFunction = Callable[[str], Any]
_REASON = re.compile("[a-z0-9_-]{1,40}")
_DESCRIBED = ("languages", "language_threshold", "functions")
"""Fields of FilterRule for which `content` has more than their values, or other names."""
_EXPECTED = (
    "expected None or True to keep the document, or why it is dropped as a string of"
    f" {_REASON.pattern}"
)


@dataclass(frozen=True)
class FilterRule:
    """The settings that decide which documents are kept. By default all documents are kept.

    If a field has its default, its filter is off.

    Attributes:
        min_characters: Documents with fewer characters of cleaned text are dropped as too_short.
        max_characters: Documents with more characters are dropped as too_long; None for no limit.
        languages: Codes of the languages that are kept; empty for all.
        language_threshold: A document is kept if the probabilities of its being in any of the
            `languages` add up to at least this.
        functions: The user's own functions as "module:function". Each gets the cleaned text, and
            returns None or True to keep the document, or a reason to drop it, such as "no_verbs".
            They are called in this order until one returns a reason.
    """

    min_characters: int = 0
    max_characters: int | None = None
    languages: tuple[str, ...] = ()
    language_threshold: float = 0.5
    functions: tuple[str, ...] = ()

    @property
    def keeps_all(self) -> bool:
        """Whether no document is left out."""
        return self == FilterRule()

    def content(self) -> dict[str, Any]:
        """Returns the settings that decide which documents are kept, by name.

        The hash of a dataset's settings covers them. A filter that is off is not in the mapping. So
        if a later version of this program has one more filter, hashes stay as they are until the
        filter is used.
        """
        content: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in _DESCRIBED and value != field.default:
                content[field.name] = value
        if self.languages:
            from pipeline.text.languages import describe_method

            content["languages"] = sorted(set(self.languages))
            content["language_threshold"] = self.language_threshold
            content["language_method"] = describe_method()
        if self.functions:
            content["filter"] = [describe_filter(name) for name in self.functions]
        return content


class DocumentFilter:
    """Applies a `FilterRule` to documents.

    The language model and the user's functions are loaded when the object is created.
    """

    def __init__(self, rule: FilterRule) -> None:
        """Loads the functions and checks the languages.

        Raises:
            ValueError: A function cannot be imported, or the model does not know a language.
        """
        self._rule = rule
        self._functions = [(name, load_filter(name)) for name in rule.functions]
        if rule.languages:
            from pipeline.text.languages import check_languages

            check_languages(rule.languages)

    def find_reason(self, document: Document) -> str | None:
        """Returns the first reason to drop a cleaned document, or None if it is kept.

        Raises:
            ValueError: A function of the user fails, or does not return a reason.
        """
        rule = self._rule
        length = len(document.text)
        if length < rule.min_characters:
            return "too_short"
        if rule.max_characters is not None and length > rule.max_characters:
            return "too_long"
        if rule.languages:
            from pipeline.text.languages import language_shares

            shares = language_shares(document.text)
            if sum(shares[code] for code in sorted(set(rule.languages))) < rule.language_threshold:
                return "language"
        for name, function in self._functions:
            reason = call_filter(name, function, document)
            if reason:
                return reason
        return None


def load_filter(name: str) -> FilterFunction:
    """Imports the function that "module:function" names.

    Raises:
        ValueError: The module cannot be imported, or has no such function.
    """
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        expected = "expected module:function, such as my_filters:keep_prose"
        raise ValueError(f"filter {name!r}: {expected}")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        advice = "run from its folder or install it, on every worker too"
        raise ValueError(
            f"filter {name}: {module_name} cannot be imported: {error!r}; {advice}"
        ) from error
    function = getattr(module, function_name, None)
    if function is None or not callable(function):
        raise ValueError(f"filter {name}: {module_name} has no function {function_name}")
    filter_function: FilterFunction = function
    return filter_function


def describe_filter(name: str) -> str:
    """Returns a filter's name and its `__version__`, which a dataset's hash covers.

    The version is an attribute of the function or of its module. A change of the code alone is not
    noticed.
    """
    function = load_filter(name)
    module = importlib.import_module(name.partition(":")[0])
    version = getattr(function, "__version__", getattr(module, "__version__", None))
    return name if version is None else f"{name} {version}"


def call_filter(name: str, function: FilterFunction, document: Document) -> str | None:
    """Calls a user's filter with the text of a document.

    A filter returns None or True to keep the document. To drop it, the filter returns a reason, a
    text of at most 40 lower-case letters, digits, "_" and "-".

    Args:
        name: The filter as "module:function", for messages.
        function: The filter.
        document: The cleaned document.

    Returns:
        The reason, or None if the document is kept.

    Raises:
        ValueError: The filter raises an error, or returns something else, or a reason that the
            build counts itself, such as "empty".
    """
    where = f"filter {name}, document {document.where}"
    try:
        answer = function(document.text)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{where}: it raised {error!r}") from error
    if answer is None or answer is True:
        return None
    if not isinstance(answer, str) or not _REASON.fullmatch(answer):
        raise ValueError(f"{where}: it returned {answer!r:.100}; {_EXPECTED}")
    if answer in WORDS_OF_REASONS:
        counted = "which the build counts itself; give another reason"
        raise ValueError(f"{where}: it returned {answer!r}, {counted}")
    return answer
