"""Reads MediaWiki XML dumps: every article is one document, with the text of its last revision.

A file may also be one block of a multistream dump, which has pages but no root element.

A file may be cut into byte ranges. A page belongs to the range that holds the start of its `<page>`
tag. In a bzip2 file it belongs to the range that holds the start of the compressed stream with this
tag. "<" is escaped in the text of pages, so tags are found by a search, without an XML parser. Each
page is then parsed alone. A dump that declares entities is refused: no dump needs them, and they
can make a small file expand without limit.

In this file, "the text" is the decompressed text of a range and of what follows it up to the end of
the last page. Offsets count its bytes from the start of the range; in bzip2, from the start of the
first stream that begins in the range.
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
"""Blocks of UTF-8. The bool of each says whether pages that start in it belong to the range."""


def read_pages(file_range: FileRange, storage_options: StorageOptions = None) -> Iterator[Record]:
    """Yields a record for every page that belongs to a range, lazily.

    The data of a record are the page's wikitext. The record of a redirect, or of a page that is not
    an article, says in `dropped` why the page is not a document. If a page cannot be read, its
    record has an `error`.

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
    """Reads what the beginning of a file says about the wiki, such as its prefixes of titles.

    The first bytes of the file are read for every range, wherever the range begins.
    """
    size = file_range.size
    head = FileRange(file_range.url, 0, min(size, _HEAD_BYTES), size, file_range.format)
    blocks = to_utf8(read_blocks(head, storage_options), file_range.url)
    return read_site(take_head(blocks))


def _read_range(file_range: FileRange, storage_options: StorageOptions) -> Blocks:
    """Returns the decompressed text of a range and of the rest of the file, block by block.

    If the range is the whole file, the file may be UTF-16, which is converted to UTF-8.
    """
    blocks = _read_stored_range(file_range, storage_options)
    if file_range.start or file_range.end < file_range.size:
        return blocks
    stored = (block for block, _ in blocks)
    return ((text, True) for text in to_utf8(stored, file_range.url))


def _read_stored_range(file_range: FileRange, storage_options: StorageOptions) -> Blocks:
    """Yields the decompressed bytes of a range and of the rest of the file, block by block."""
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
    """Yields the text of a bzip2 file from the first stream that starts in the range.

    A bzip2 file may be many compressed streams, one after another. All text of a stream belongs to
    the range in which the stream starts.
    """
    stored = _without_first(read_stored(file_range, storage_options), file_range.start)
    first = file_range.start
    if file_range.start:
        num_before, stored = find_bzip2_stream(stored, file_range.num_bytes)
        first += num_before
    for text, stream_start in read_frames(file_range.counted(slices(stored)), file_range.url):
        yield text, first + stream_start < file_range.end


def _without_first(blocks: Iterator[bytes], start: int) -> Iterator[bytes]:
    """Yields blocks of stored bytes that begin exactly at the start of a range.

    `read_blocks` and `read_stored` begin one byte earlier, and this byte is dropped. A range at the
    start of the file has no earlier byte.

    Args:
        blocks: The blocks that were read.
        start: Offset of the range in the file.
    """
    if start > 0:
        yield next(blocks, b"")[1:]
    yield from blocks


class PageBytes(NamedTuple):
    """The XML of one page.

    Attributes:
        offset: Offset of the page's opening tag in the text.
        data: The bytes from the opening tag to the end of the closing tag. If the page is longer
            than a document may be, some of its bytes may be missing.
        error: Why the page cannot be read, or None.
    """

    offset: int
    data: bytes
    error: BadDocumentError | None


def split_pages(
    blocks: Blocks, url: str, is_last: bool, has_root: bool = True
) -> Iterator[PageBytes]:
    """Yields every page that starts in a range, lazily.

    Args:
        blocks: The text of the range, and then the text after it. Blocks are read until the last
            page of the range is found.
        url: The file, for messages.
        is_last: Whether the range ends at the end of the file.
        has_root: Whether the file begins with `<mediawiki>`. If so, it must end with
            `</mediawiki>`.

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
        data: The last bytes of the text so far. Earlier bytes were dropped, because they are no
            longer needed. If a page has begun and not ended, `data` begins with its opening tag,
            unless the page is too long.
        offset: Offset of the first byte of `data` in the text.
        num_searched: The search for the next tag skips so many bytes at the beginning of `data`.
        limit: Offset in the text at which the range ends. It is None until a block after the range
            is added. Pages that start at the limit or later belong to the next range.
        is_in_page: Whether a page has begun and not ended.
        page_offset: Offset of this page's opening tag in the text.
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
        """Appends the next block of the text.

        Args:
            block: The bytes.
            is_in_range: Whether pages that start in the block belong to the range.
        """
        if not is_in_range and self.limit is None:
            self.limit = self.offset + len(self.data)
        self.data += block

    def take_pages(self) -> Iterator[PageBytes]:
        """Yields the pages whose ends are in `data`, and drops their bytes from `data`.

        A page ends after its closing tag. If that is missing, the page ends before the next opening
        tag, and has an `error`. If no further page starts in the range, `is_finished` becomes True.

        Raises:
            ValueError: The text between the pages declares a document type or entities.
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
        """Drops bytes of `data` that are not needed to find and return further pages.

        Of text between pages, and of a page that is too long, only the last bytes are kept. A tag
        may have begun in them. Any other page is kept whole.
        """
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
        """Returns whether a position in `data` is at the end of the range or after it."""
        return self.limit is not None and self.offset + position >= self.limit

    def _drop(self, num_bytes: int) -> None:
        """Drops the first bytes of `data`."""
        del self.data[:num_bytes]
        self.offset += num_bytes


def _page_error(is_closed: bool, is_too_long: bool) -> BadDocumentError | None:
    """Returns the error of a page that is not closed or is too long; None for any other page."""
    if not is_closed:
        message = "found <page> without its </page> before the next one or the file's end"
        return BadDocumentError("unclosed_page", message)
    return too_long() if is_too_long else None


class _Rest(NamedTuple):
    """What remained of the text when the end of the file was read.

    Attributes:
        data: The last bytes of the text, after the last closed page. There are few of them, unless
            they are the beginning of a page.
        num_before: Number of bytes of the text before `data`.
        is_in_page: Whether `data` is from a page that is not closed.
    """

    data: bytes
    num_before: int
    is_in_page: bool

    def may_be(self, end: bytes) -> bool:
        """Returns whether `data` is the closing tag `end`, apart from white space around it.

        The tag may have been cut by the start of the range. If `data` is all the text of the range,
        the last bytes of the tag, or none at all, are therefore accepted too.
        """
        return self.data.strip() == end or (
            self.num_before == 0 and end.endswith(self.data.rstrip())
        )


def _refuse_cut(rest: _Rest, url: str, is_last: bool, has_root: bool) -> None:
    """Refuses a file of which the end is missing, if the range is the last one of the file.

    A dump must end with `</mediawiki>`. A file without a root element must end after a page. It may
    also end with `</mediawiki>`, as the last block of a multistream dump does.

    Args:
        rest: What remained of the text at the end of the file.
        url: The file, for messages.
        is_last: Whether the range ends at the end of the file.
        has_root: Whether the file begins with `<mediawiki>`.

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
    """Parses the XML of a page, and returns the record of the page.

    The record holds the wikitext. If the page is not an article or is a redirect, `dropped` says
    so. If the page cannot be parsed, the record has no data, and an `error`.

    Args:
        page_bytes: The page, whose `error` is None.
        place: Where the page is in the file, for the message if it cannot be parsed.
        site: What the beginning of the file says about the wiki.
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
