"""Reads a page of a MediaWiki dump, and renders its wikitext as paragraphs."""


class BadPageError(ValueError):
    """A page cannot be read.

    Attributes:
        reason: The word by which such pages are counted, such as "bad_xml".
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
