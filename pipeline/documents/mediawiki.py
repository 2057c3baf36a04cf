"""Reads MediaWiki XML dumps: every article is one document, with the text of its last revision.

A block of a multistream dump, which has pages and no root element, can be read as well.

A page belongs to the range that holds the start of its `<page>` tag. In bzip2 it belongs to the
range that holds the start of the compressed stream with this tag. The text of a page escapes "<",
so the tags are found without parsing, and each page is then parsed by itself. A dump that declares
entities is refused: no dump needs them, and they can make a small file expand without limit.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.documents import records
from pipeline.documents.files import FileRange, StorageOptions, read_blocks, read_stored
from pipeline.documents.lines import to_utf8
from pipeline.documents.records import BadDocumentError, Format, Record, too_long
from pipeline.storage.compression import (
    compression_suffix,
    find_bzip2_stream,
    is_compressed,
    read_frames,
    slices,
)
from pipeline.wiki import BadPageError
from pipeline.wiki.dump import Site, is_redirect, read_page, read_site, take_head
from pipeline.wiki.wikitext import parse_wikitext

_ROOT_TAG = re.compile(
    rb"(?:<\?.*?\?>\s*|<!--.*?-->\s*)*<(?:!DOCTYPE\s+)?mediawiki[\s>\[]", re.DOTALL
)
_ROOT_END = b"</mediawiki>"
# Text outside of pages is dropped but for its last bytes: a tag may continue in the next block, and
# the closing tag of the root, with blanks after it, shows that a dump is whole.
_KEPT_BYTES = 64
_TAG = re.compile(rb"</?page>")
_HEAD_BYTES = 64 * 2**10  # read for every range to learn the siteinfo, which takes some 3 kB
_OPEN = b"<page>"
_CLOSE = b"</page>"
_DECLARATION = re.compile(rb"<!(DOCTYPE|ENTITY)")
_PAGES_WITHOUT_ROOT = re.compile(rb"<page>\s*<title>")

Blocks = Iterable[tuple[bytes, bool]]
"""Blocks of UTF-8, each with whether pages that start in the block belong to the range."""


def read_pages(file_range: FileRange, storage_options: StorageOptions = None) -> Iterator[Record]:
    """Yields a record of wikitext for every page of a range, lazily.

    The record of a redirect, or of a page that is no article, only says why it is dropped.

    Raises:
        ValueError: The file is cut short, or declares entities.
    """
    site = _read_site(file_range, storage_options)
    is_last = file_range.end == file_range.size
    blocks = _read_range(file_range, storage_options)
    for page in split_pages(blocks, file_range.url, is_last, site.has_root):
        place = f"page at byte {page.offset} of the text from byte {file_range.start} on"
        if page.error:
            yield Record(1, page.offset, b"", page.error, place)
        else:
            yield _make_record(page, place, site)


def _read_site(file_range: FileRange, storage_options: StorageOptions) -> Site:
    """Reads the site's facts from the file's first bytes, wherever the range begins."""
    size = file_range.size
    head = FileRange(file_range.url, 0, min(size, _HEAD_BYTES), size, file_range.format)
    blocks = to_utf8(read_blocks(head, storage_options), file_range.url)
    return read_site(take_head(blocks))


def _read_range(file_range: FileRange, storage_options: StorageOptions) -> Blocks:
    """Returns the blocks of a range and of the text after it. A whole file may also be UTF-16."""
    blocks = _read_stored_range(file_range, storage_options)
    if file_range.start or file_range.end < file_range.size:
        return blocks
    stored = (block for block, _ in blocks)
    return ((text, True) for text in to_utf8(stored, file_range.url))


def _read_stored_range(file_range: FileRange, storage_options: StorageOptions) -> Blocks:
    """Yields the blocks of a range and of the text after it, decompressed."""
    if compression_suffix(file_range.url) == ".bz2":
        yield from _read_streams(file_range, storage_options)
        return
    offset = file_range.start
    for block in _without_first(read_blocks(file_range, storage_options), file_range.start):
        num_in_range = max(0, file_range.end - offset)
        if is_compressed(file_range.url):  # such a file is one range
            num_in_range = len(block)
        yield block[:num_in_range], True
        if num_in_range < len(block):
            yield block[num_in_range:], False
        offset += len(block)


def _read_streams(file_range: FileRange, storage_options: StorageOptions) -> Blocks:
    """Yields the text of bzip2 streams, from the first that starts in the range.

    All text of a stream belongs to the range in which the stream starts.
    """
    stored = _without_first(read_stored(file_range, storage_options), file_range.start)
    first = file_range.start
    if file_range.start:
        num_before, stored = find_bzip2_stream(stored, file_range.num_bytes)
        first += num_before
    for text, stream_start in read_frames(file_range.counted(slices(stored)), file_range.url):
        yield text, first + stream_start < file_range.end


def _without_first(blocks: Iterator[bytes], start: int) -> Iterator[bytes]:
    """Drops the first byte: ranges are read from one byte before their start."""
    if start > 0:
        yield next(blocks, b"")[1:]
    yield from blocks


class PageBytes(NamedTuple):
    """The XML of one page.

    Attributes:
        offset: Offset of the first byte of `data` in the text that was read.
        data: The bytes from the opening tag to the end of the closing tag. If the page is too long,
            only its last bytes.
        error: Why the page cannot be read, or None.
    """

    offset: int
    data: bytes
    error: BadDocumentError | None


def split_pages(
    blocks: Blocks, url: str, is_last: bool, has_root: bool = True
) -> Iterator[PageBytes]:
    """Yields every page that starts in the range, lazily.

    Args:
        blocks: The text of the range, and then the text after it.
        url: The file, for messages.
        is_last: Whether the range ends with the file.
        has_root: Whether the file begins with the root element of a dump, so that it must end with
            the closing tag.

    Raises:
        ValueError: The file is cut short, or declares entities.
    """
    scanner = _PageScanner(url)
    for block, is_in_range in blocks:
        scanner.add(block, is_in_range)
        yield from scanner.take_pages()
        if scanner.is_finished:
            return
        scanner.drop_scanned_text()

    rest = _Rest(bytes(scanner.data), scanner.offset, scanner.is_in_page)
    _refuse_cut(rest, url, is_last, has_root)
    if scanner.is_in_page:
        yield scanner.make_page(len(scanner.data), is_closed=False)


@dataclass
class _PageScanner:
    """Finds the pages in the text of a range, which arrives block by block.

    Attributes:
        url: The file, for messages.
        data: The text that was read and is still needed. Within a page it begins with the page's
            opening tag.
        offset: Offset of the first byte of `data` in the text that was read.
        num_searched: Number of bytes at the beginning of `data` in which no further tag begins.
        limit: Offset at which the range ends, once a block beyond it was read. Pages that start
            there or later belong to the next range.
        is_in_page: Whether `data` begins within a page.
        page_offset: Offset of this page's opening tag in the text that was read.
        is_too_long: Whether this page is longer than a document may be.
        is_finished: Whether all pages of the range were found.
    """

    url: str
    data: bytearray = field(default_factory=bytearray)
    offset: int = 0
    num_searched: int = 0
    limit: int | None = None
    is_in_page: bool = False
    page_offset: int = 0
    is_too_long: bool = False
    is_finished: bool = False

    def add(self, block: bytes, is_in_range: bool) -> None:
        """Appends the next block of text."""
        if not is_in_range and self.limit is None:
            self.limit = self.offset + len(self.data)
        self.data += block

    def take_pages(self) -> Iterator[PageBytes]:
        """Yields the pages that end in the text so far, and drops the text before the last tag.

        Raises:
            ValueError: The text outside of the pages declares entities.
        """
        while tag := _TAG.search(self.data, self.num_searched):
            start = tag.start()
            is_opening = tag[0] == _OPEN
            del tag  # a match locks the bytearray, whose beginning is dropped below
            end = start if is_opening else start + len(_CLOSE)
            if self.is_in_page:
                yield self.make_page(end, is_closed=not is_opening)
            else:
                _refuse_declarations(self.data[:start], self.url)
            if is_opening and self._reaches_limit(start):
                self.is_finished = True
                return
            self.is_in_page = is_opening
            self.is_too_long = False
            self._drop(end)
            self.page_offset = self.offset
            self.num_searched = len(_OPEN) if is_opening else 0

        if not self.is_in_page:
            _refuse_declarations(self.data, self.url)
            # The last bytes may be the beginning of a tag that starts before the limit.
            num_unsure = len(_CLOSE) if b"<" in self.data else 0
            self.is_finished = self._reaches_limit(len(self.data) - num_unsure)

    def make_page(self, num_bytes: int, *, is_closed: bool) -> PageBytes:
        """Returns the first bytes of `data` as a page.

        Args:
            num_bytes: Length of the page in bytes.
            is_closed: Whether the page ends with its closing tag.
        """
        is_too_long = self.is_too_long or num_bytes > records.MAX_DOCUMENT_BYTES
        error = _page_error(is_closed, is_too_long)
        return PageBytes(self.page_offset, bytes(self.data[:num_bytes]), error)

    def drop_scanned_text(self) -> None:
        """Drops most text that is outside of pages, or within a page that is too long."""
        if self.is_in_page and len(self.data) > records.MAX_DOCUMENT_BYTES:
            self.is_too_long = True
        if self.is_in_page and not self.is_too_long:
            self.num_searched = max(self.num_searched, len(self.data) - len(_CLOSE))
            return
        num_dropped = max(0, len(self.data) - _KEPT_BYTES)
        self._drop(num_dropped)
        # A page's own opening tag, if it is still there, must not be found again.
        if num_dropped or not self.is_in_page:
            self.num_searched = 0

    def _reaches_limit(self, position: int) -> bool:
        """Returns whether a position in `data` is at the limit or after it."""
        return self.limit is not None and self.offset + position >= self.limit

    def _drop(self, num_bytes: int) -> None:
        """Drops the first bytes of the text."""
        del self.data[:num_bytes]
        self.offset += num_bytes


def _page_error(is_closed: bool, is_too_long: bool) -> BadDocumentError | None:
    """Returns the error of a page without a closing tag, or of a page that is too long."""
    if not is_closed:
        message = "found <page> without its </page> before the next one or the file's end"
        return BadDocumentError("unclosed_page", message)
    return too_long() if is_too_long else None


class _Rest(NamedTuple):
    """The end of the text of a range, after its last whole page.

    Attributes:
        data: The text; outside of a page, or in a page that is too long, only its last bytes.
        num_before: Number of bytes before it in the text that was read.
        is_in_page: Whether the text begins within a page that is not closed.
    """

    data: bytes
    num_before: int
    is_in_page: bool

    def may_be(self, end: bytes) -> bool:
        """Returns whether the text is the closing tag `end`, and nothing else.

        If the range has no earlier text, it may begin within the tag. The end of the tag is then
        enough.
        """
        return self.data.strip() == end or (
            self.num_before == 0 and end.endswith(self.data.rstrip())
        )


def _refuse_cut(rest: _Rest, url: str, is_last: bool, has_root: bool) -> None:
    """Refuses a file that ends too early. Only the last range of a file can tell.

    A dump must end with the closing tag of its root. A block of pages has no such tag, unless it is
    the last block of its dump; it must end after a page.

    Raises:
        ValueError: The file ends otherwise.
    """
    if not is_last:
        return
    if has_root:
        # If no bzip2 stream starts in the last range, the text is empty, which `may_be` accepts.
        if _ROOT_END not in rest.data and not rest.may_be(_ROOT_END):
            found = f"the dump ends without {_ROOT_END.decode()}, so a part of it is missing"
            raise ValueError(f"{url}: {found}; fetch the file again")
    elif rest.is_in_page:
        raise ValueError(f"{url}: the file ends within a page; fetch it again")
    elif rest.data.strip() and not (rest.may_be(_ROOT_END) or rest.may_be(_CLOSE)):
        found = f"found {rest.data.strip()[:40]!r} outside of a page"
        raise ValueError(f"{url}: {found}, expected a MediaWiki dump, or whole pages of one")


def _refuse_declarations(data: bytes | bytearray, url: str) -> None:
    """Raises ValueError if the text has a document type or an entity declaration."""
    declaration = _DECLARATION.search(data)
    if declaration:
        expected = "expected a MediaWiki dump, which declares no entities"
        raise ValueError(f"{url}: found {bytes(declaration[0]).decode()}, {expected}")


def _make_record(page_bytes: PageBytes, place: str, site: Site) -> Record:
    """Parses a page. Returns its wikitext, or says why the page is dropped or cannot be read.

    Args:
        page_bytes: The page, which has no error so far.
        place: Where the page is in the file, for the message if it cannot be parsed.
        site: The facts about the wiki.
    """
    offset = page_bytes.offset
    try:
        page = read_page(page_bytes.data)
    except BadPageError as error:
        return Record(1, offset, b"", BadDocumentError(error.reason, str(error)), place)
    dropped = ""
    if not site.is_article(page) or page.model != "wikitext":
        dropped = "not_an_article"
    elif is_redirect(page):
        dropped = "redirect"
    place = f"page {page.id} {page.title!r}"
    return Record(
        number=1,
        offset=offset,
        data=page.text.encode(),
        place=place,
        dropped=dropped,
        hidden_prefixes=site.hidden_prefixes,
    )


MEDIAWIKI = Format(
    lambda text, record, *_: parse_wikitext(text, record.hidden_prefixes),
    lambda beginning: (
        bool(_ROOT_TAG.match(beginning.text)) or bool(_PAGES_WITHOUT_ROOT.match(beginning.text))
    ),
    read=lambda file_range, _, storage_options: read_pages(file_range, storage_options),
    cut_suffix=".bz2",
)
