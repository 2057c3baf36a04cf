"""Pages of MediaWiki's dumps, and their wikitext as paragraphs, a page at a time."""


class BadPageError(ValueError):
    """A page that cannot be read, and the reason to count it by."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
