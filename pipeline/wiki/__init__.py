"""Reads a page of a MediaWiki dump, and renders its wikitext as paragraphs."""


class BadPageError(ValueError):
    """A page cannot be read.

    Attributes:
        reason: A word for the fault, such as "bad_xml". Pages that cannot be read are counted by
            this word.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
