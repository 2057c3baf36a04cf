"""Which cleaned documents are left out, and why: by length, by language, by functions of the user's own.

Every rule looks at one document alone, so what is dropped does not depend on how work is cut.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.documents import Document
from pipeline.text.own_filters import call_filter, describe_filter, load_filter


@dataclass(frozen=True)
class FilterRule:
    """Which documents stay; a field at its default leaves none out.

    Attributes:
        min_characters: Documents with fewer characters of cleaned text are too_short.
        max_characters: Documents with more characters of cleaned text are too_long; None is no
            limit.
        languages: Codes of the languages that stay; empty for all.
        language_threshold: The least probability of all these languages together.
        own: The user's own functions as "module:function", asked in this order.
    """

    min_characters: int = 0
    max_characters: int | None = None
    languages: tuple[str, ...] = ()
    language_threshold: float = 0.5
    own: tuple[str, ...] = ()

    @property
    def keeps_all(self) -> bool:
        """Whether no document can be left out."""
        return not (self.min_characters or self.max_characters or self.languages or self.own)

    def content(self) -> dict[str, Any]:
        """What decides which documents stay: nothing for filters that are off, so that old hashes stay as they are."""
        found: dict[str, Any] = {}
        if self.min_characters:
            found["min_characters"] = self.min_characters
        if self.max_characters is not None:
            found["max_characters"] = self.max_characters
        if self.languages:
            from pipeline.text.languages import describe_method

            found["languages"] = sorted(set(self.languages))
            found["language_threshold"] = self.language_threshold
            found["language_method"] = describe_method()
        if self.own:
            found["filter"] = [describe_filter(name) for name in self.own]
        return found


class DocumentFilter:
    """A rule with its model and functions loaded: made once a worker."""

    def __init__(self, rule: FilterRule) -> None:
        """Raises ValueError where a filter cannot be imported, or a language is not known."""
        self._rule = rule
        self._own = [(name, load_filter(name)) for name in rule.own]
        if rule.languages:
            from pipeline.text.languages import check_languages

            check_languages(rule.languages)

    def find_reason(self, document: Document) -> str | None:
        """Why a cleaned document is left out, the first reason that holds; None for one that stays."""
        rule, length = self._rule, len(document.text)
        if length < rule.min_characters:
            return "too_short"
        if rule.max_characters is not None and length > rule.max_characters:
            return "too_long"
        if rule.languages and self._share(document.text) < rule.language_threshold:
            return "language"
        for name, function in self._own:
            if reason := call_filter(name, function, document):
                return reason
        return None

    def _share(self, text: str) -> float:
        from pipeline.text.languages import language_shares

        shares: Mapping[str, float] = language_shares(text)
        return sum(shares[code] for code in sorted(set(self._rule.languages)))
